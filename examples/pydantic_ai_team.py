"""pydantic-ai: a scout's conversation goes on with a cook, and a critic gives a typed verdict."""

from __future__ import annotations

import os
import sys

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

model = OpenAIChatModel(
    "smollm2-135m-instruct",
    provider=OpenAIProvider(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    ),
)
# Identity in one line, an agent or a run: ModelSettings(extra_headers={"x-session-id": task_id})
# Without drawing words a run repeats: an empty answer, which the small model gives now and then, ends one.
SHORT = ModelSettings(max_tokens=48, temperature=0.0)
# The small model puts much white space into its JSON.
VERDICT = ModelSettings(max_tokens=160, temperature=0.0)


class Verdict(BaseModel):
    """What the critic thinks."""

    approved: bool


scout = Agent(model, instructions="You are the scout of a camp kitchen. Say what can be found nearby.")
cook = Agent(model, instructions="You are the cook of a camp kitchen. Turn the finds into one dish.")
critic = Agent(model, instructions="You are the critic of a camp kitchen. Approve or refuse.", output_type=Verdict)


@scout.tool_plain
def season() -> str:
    """The season, which decides what grows."""
    return "late autumn"


def main(task: str) -> None:
    found = scout.run_sync(task, model_settings=SHORT)
    print(f"scout: {found.output!r}")
    dish = cook.run_sync("Cook it.", message_history=found.all_messages(), model_settings=SHORT)
    print(f"cook: {dish.output!r}")
    try:
        verdict = critic.run_sync("Is it good?", message_history=dish.all_messages(), model_settings=VERDICT, retries=0)
        print(f"critic: {verdict.output!r}")
    except UnexpectedModelBehavior as error:
        print(f"critic: no verdict ({error})")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "Dinner for six by the lake.")
