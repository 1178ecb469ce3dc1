"""smolagents: a manager calls a managed agent like a tool, and sums up what came back."""

from __future__ import annotations

import os
import sys
from typing import Any

from smolagents import ChatMessage, OpenAIModel, ToolCallingAgent, tool


@tool
def tide_table(harbour: str) -> str:
    """Times of high water.

    Args:
        harbour: Name of the harbour.
    """
    return f"High water at {harbour}: 04:10 and 16:35."


class NamedTool(OpenAIModel):
    """The small model would not choose: while there are tools, the first one is named."""

    def generate(self, messages: Any, tools_to_call_from: Any = None, **options: Any) -> ChatMessage:
        if tools_to_call_from:
            name = next(one.name for one in tools_to_call_from if one.name != "final_answer")
            options["tool_choice"] = {"type": "function", "function": {"name": name}}
        return super().generate(messages, tools_to_call_from=tools_to_call_from, **options)


def model() -> OpenAIModel:
    return NamedTool(
        model_id="smollm2-135m-instruct",
        api_base=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        max_tokens=128,
        temperature=0.0,
        # Identity in one line, with a model object an agent:
        # client_kwargs={"default_headers": {"x-session-id": task_id, "x-claude-code-agent-id": "pilot"}},
    )


def main(task: str) -> None:
    pilot = ToolCallingAgent(
        name="pilot",
        description="Knows the tides and the fairway.",
        instructions="You are the pilot of a harbour. Look up the tides before you advise.",
        tools=[tide_table],
        model=model(),
        max_steps=2,
        verbosity_level=0,
    )
    manager = ToolCallingAgent(
        name="harbour_master",
        instructions="You are the harbour master. Ask the pilot, then decide when the ship may enter.",
        tools=[],
        managed_agents=[pilot],
        model=model(),
        max_steps=1,
        verbosity_level=0,
    )
    print(f"harbour master: {manager.run(task)!r}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "When may the freighter with eleven metres of draught enter?")
