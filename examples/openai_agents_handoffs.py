"""OpenAI Agents SDK: a front desk hands over to a tracer, who hands over to a clerk."""

from __future__ import annotations

import os
import sys

from agents import (
    Agent,
    HandoffOutputItem,
    ModelSettings,
    Runner,
    set_default_openai_api,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

MODEL = "smollm2-135m-instruct"
# The small model would not hand over by itself: one handoff to choose from, and some tool is required.
# It takes the likeliest words: drawn ones may fill the limit before the call is closed.
HAND_OVER = ModelSettings(tool_choice="required", max_tokens=128, temperature=0.0)

clerk = Agent(
    name="clerk",
    model=MODEL,
    instructions="You are the clerk of a parcel service. Close the case with one polite sentence.",
    # Over Responses the SDK takes an answer that was cut at its limit for a failure, and the small model
    # may go on for ever: one sentence is all that is asked for.
    model_settings=ModelSettings(max_tokens=512, temperature=0.0, extra_body={"stop": [".", "!", "?", "\n"]}),
)
tracer = Agent(
    name="tracer",
    model=MODEL,
    instructions="You are the tracer of a parcel service. Find the parcel, then hand over to the clerk.",
    handoffs=[clerk],
    model_settings=HAND_OVER,
)
front_desk = Agent(
    name="front desk",
    model=MODEL,
    instructions="You are the front desk of a parcel service. Understand the complaint, then hand over to the tracer.",
    handoffs=[tracer],
    model_settings=HAND_OVER,
)


def main(question: str) -> None:
    client = AsyncOpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    # Identity in one line, a run: Runner.run_sync(..., run_config=RunConfig(model_settings=ModelSettings(
    #     extra_headers={"x-session-id": case_id})))
    set_default_openai_client(client, use_for_tracing=False)
    # Either of the SDK's two: "responses" is its own default.
    set_default_openai_api(os.environ.get("OPENAI_AGENTS_API", "responses"))
    set_tracing_disabled(True)
    first = Runner.run_sync(front_desk, question, max_turns=4)
    for item in first.new_items:
        if isinstance(item, HandoffOutputItem):
            print(f"{item.source_agent.name} hands over to {item.target_agent.name}")
    # The small model's template shows it nothing of the calls but two empty turns, and it may add a third.
    said = first.final_output
    print(f"{first.last_agent.name}: {said!r}" if said else f"{first.last_agent.name} takes the case without a word")
    again = Runner.run_sync(
        first.last_agent,
        [*first.to_input_list(), {"role": "user", "content": "When will my parcel arrive?"}],
        max_turns=2,
    )
    print(f"{again.last_agent.name}: {again.final_output!r}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "My parcel with the violin has been in the same depot for a week.")
