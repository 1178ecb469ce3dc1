"""A team's members: name, instructions, tools."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from demo import tools


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    instructions: str
    tools: tuple[dict[str, Any], ...]

    def system_prompt(self, heading: str) -> str:
        """Instructions, tools and the rules for all, different from the first token on for each `heading`.

        The rules stand last, after what is each member's own: no block of them is shared between members.
        """
        listed = "\n".join(json.dumps(tool["function"]) for tool in self.tools)
        return f"[{heading}] {self.instructions}\n\nTools, one JSON definition a line:\n{listed}\n\n{_text('rules')}"


@dataclass(frozen=True, slots=True)
class Team:
    """`number` from 1; `nonce` is fresh for each run.

    Teams stand for applications: each has agents of its own, whose prompts share nothing with another team's,
    and runs that are compared must not find each other's blocks in the prefix cache.
    """

    number: int
    nonce: str
    members: dict[str, Member] = field(default_factory=lambda: load_members())

    @property
    def heading(self) -> str:
        return f"{self.nonce} team {self.number}"

    def agent(self, name: str) -> str:
        """What the runtime is told: `coder@2`."""
        return f"{name}@{self.number}"


def role(agent: str) -> str:
    """`coder@2` -> `coder`."""
    return agent.partition("@")[0]


def _member(name: str, *own_tools: dict[str, Any]) -> Member:
    return Member(name, _text(name), own_tools)


def _text(name: str) -> str:
    return resources.files("demo").joinpath("prompts", f"{name}.md").read_text(encoding="utf-8").strip()


def load_members() -> dict[str, Member]:
    members = (
        _member("planner", tools.SEARCH_LIBRARY, tools.NOTE),
        _member("coder", tools.SEARCH_LIBRARY, tools.COMPILE, tools.FORMAT),
        _member("debugger", tools.COMPILE, tools.SHOW_LINES),
        _member("tester", tools.RUN_CHECKS, tools.COVERAGE),
        _member("reviewer", tools.SHOW_LINES, tools.DIFF, tools.DECIDE),
    )
    return {member.name: member for member in members}
