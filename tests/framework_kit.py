"""The framework examples: who is in them, by which words each agent is told, and how they are run."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "unit" / "fixtures"


@dataclass(frozen=True, slots=True)
class Example:
    """One script in examples/.

    agents: name -> words that stand in this agent's leading message and in no other's; the selector's come
        first, since its message holds all agents' words.
    second_team_opens: the agent with whose first request a run begins a second conversation.
    apis: where the example can use either of OpenAI's, their names for `OPENAI_AGENTS_API`; recordings are of the
        first.
    """

    name: str
    agents: dict[str, str]
    packages: tuple[str, ...]
    environment: str = ".venv-frameworks"
    second_team_opens: str = ""
    apis: tuple[str, ...] = ("",)

    @property
    def script(self) -> Path:
        return ROOT / "examples" / f"{self.name}.py"

    @property
    def python(self) -> Path:
        return ROOT / self.environment / "bin" / "python"

    def agent_of(self, body: dict[str, Any]) -> str:
        """The truth about a request: whose words its first message holds.

        Raises:
            ValueError: nobody's; the example and this table don't fit any more.
        """
        leading = json.dumps(body["messages"][0])
        for name, words in self.agents.items():
            if words in leading:
                return name
        raise ValueError(f"{self.name}: no agent's words in {leading[:200]}")

    def start(
        self, python: Path, base_url: str, task: str, key: str = "none", api: str | None = None
    ) -> subprocess.Popen[str]:
        """As a user would run it, with nothing of this project to import."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment["OPENAI_AGENTS_API"] = self.apis[0] if api is None else api
        return subprocess.Popen(
            [str(python), str(self.script), task],
            env={**environment, "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": key, "NO_PROXY": "127.0.0.1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def _named(trade: str, *roles: str) -> dict[str, str]:
    return {role: f"You are the {role} of {trade}" for role in roles}


EXAMPLES = {
    example.name: example
    for example in (
        Example("openai_sdk", _named("a small newsroom", "planner", "writer", "checker"), ("openai",)),
        Example(
            "langgraph_supervisor",
            _named("a field study", "supervisor", "surveyor", "analyst"),
            ("langgraph", "langchain-openai"),
        ),
        Example(
            "autogen_teams",
            {"selector": "You are in a role play game"} | _named("a bridge repair", "planner", "engineer", "inspector"),
            ("autogen-agentchat", "autogen-ext"),
            second_team_opens="selector",
        ),
        Example(
            "openai_agents_handoffs",
            _named("a parcel service", "front desk", "tracer", "clerk"),
            ("openai-agents",),
            apis=("chat_completions", "responses"),
        ),
        Example(
            "smolagents_manager",
            {
                # smolagents' own words for an agent that used up its steps, the same for every agent.
                "closing": "An agent tried to answer a user query but it got stuck",
                "pilot": "You are the pilot of a harbour",
                "harbour master": "You are the harbour master",
            },
            ("smolagents",),
        ),
        Example("pydantic_ai_team", _named("a camp kitchen", "scout", "cook", "critic"), ("pydantic-ai-slim",)),
        Example(
            "crewai_crew",
            {role: f"You are {role}." for role in ("gardener", "carpenter", "treasurer")},
            ("crewai",),
            ".venv-crewai",
        ),
        Example(
            "metagpt_company",
            {role: f"You are a {role}, named" for role in ("draughtswoman", "millwright", "miller")},
            ("metagpt",),
            ".venv-metagpt",
        ),
    )
}
