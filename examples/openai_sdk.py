"""A team of three through the `openai` package: one answers at once, one streams, one is async and calls a tool."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from openai import AsyncOpenAI, OpenAI

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
API_KEY = os.environ.get("OPENAI_API_KEY", "none")
MODEL = "smollm2-135m-instruct"
# Identity in one line, for both clients: default_headers={"x-session-id": task_id, "x-claude-code-agent-id": role}

PLANNER = "You are the planner of a small newsroom. Break the task into three steps and say who does them."
WRITER = "You are the writer of a small newsroom. Follow the plan and write a short paragraph."
CHECKER = "You are the checker of a small newsroom. Count the words with your tool, then approve or object."
COUNT_WORDS: Any = {
    "type": "function",
    "function": {
        "name": "count_words",
        "description": "Number of words of the last paragraph.",
        "parameters": {
            "type": "object",
            "properties": {"unit": {"type": "string", "enum": ["words", "lines"]}},
            "required": ["unit"],
            "additionalProperties": False,
        },
    },
}

History = list[Any]


def prompt(role: str, history: History) -> History:
    return [{"role": "system", "content": role}, *history]


def plan(client: OpenAI, history: History) -> str:
    answer = client.chat.completions.create(
        model=MODEL, messages=prompt(PLANNER, history), max_tokens=32, temperature=0.0
    )
    return answer.choices[0].message.content or ""


def write(client: OpenAI, history: History) -> str:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=prompt(WRITER, history),
        max_tokens=32,
        temperature=0.0,
        stream=True,
        stream_options={"include_usage": True},
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


async def check(client: AsyncOpenAI, history: History) -> str:
    """The small model would not call a tool by itself, so the first request names it."""
    create = client.chat.completions.create
    chosen: Any = {"type": "function", "function": {"name": "count_words"}}
    asked = await create(
        model=MODEL,
        messages=prompt(CHECKER, history),
        max_tokens=32,
        temperature=0.0,
        tools=[COUNT_WORDS],
        tool_choice=chosen,
    )
    message = asked.choices[0].message
    history.append(message.model_dump(exclude_none=True))
    for call in message.tool_calls or ():
        history.append({"role": "tool", "tool_call_id": call.id, "content": "42"})
    answer = await create(
        model=MODEL,
        messages=prompt(CHECKER, history),
        max_tokens=32,
        temperature=0.0,
        tools=[COUNT_WORDS],
        tool_choice="none",
    )
    return answer.choices[0].message.content or ""


def main(task: str) -> None:
    client = OpenAI(base_url=BASE_URL, api_key=API_KEY)
    history: History = [{"role": "user", "content": task}]
    for role, work in (("planner", plan), ("writer", write)):
        history.append({"role": "assistant", "content": work(client, history)})
        print(f"{role}: {history[-1]['content']!r}")
    history.append({"role": "user", "content": "Is that short enough?"})
    print(f"checker: {asyncio.run(check(AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY), history))!r}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "Write about the lighthouse that was moved inland.")
