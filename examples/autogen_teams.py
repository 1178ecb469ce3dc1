"""AutoGen: the same three agents in a round-robin group chat, then in one where a model selects the speaker."""

from __future__ import annotations

import asyncio
import os
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

ROLES = {
    "planner": "You are the planner of a bridge repair. List what has to happen first.",
    "engineer": "You are the engineer of a bridge repair. Answer the plan with loads and materials.",
    "inspector": "You are the inspector of a bridge repair. Name one risk that the others forgot.",
}


def client() -> OpenAIChatCompletionClient:
    return OpenAIChatCompletionClient(
        model="smollm2-135m-instruct",
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        model_info=ModelInfo(
            vision=False, function_calling=False, json_output=False, family="unknown", structured_output=False
        ),
        max_tokens=32,
        temperature=0.0,
        # Identity in one line, with a client an agent:
        # default_headers={"x-session-id": task_id, "x-claude-code-agent-id": "planner"},
    )


def agents(model: OpenAIChatCompletionClient) -> list[AssistantAgent]:
    return [
        AssistantAgent(name, model_client=model, system_message=text, description=text) for name, text in ROLES.items()
    ]


async def main(task: str) -> None:
    model = client()
    # Two rounds of all three; the selector asks the model who is next and is told to give up at once.
    teams = (
        RoundRobinGroupChat(list(agents(model)), max_turns=6),
        SelectorGroupChat(list(agents(model)), model_client=model, max_turns=3, max_selector_attempts=1),
    )
    for team in teams:
        async for message in team.run_stream(task=task):
            if getattr(message, "source", "user") != "user":
                print(f"{type(team).__name__} {message.source}: {message.content!r}")
    await model.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "Repair the footbridge before the flood season."))
