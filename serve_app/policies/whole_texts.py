"""Every text that a model wrote in an answer of Responses or Messages, changed in place (pure)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Change = Callable[[str], str]

TEXT_KEYS = ("text", "thinking", "refusal", "arguments")
REPEATS = ("logprobs", "token_ids", "routed_experts")
"""Of a choice: the same text once more, as tokens."""
MESSAGES = ("output_messages", "input_messages")
"""Of a response, where a client asked for them: what the model wrote once more, raw and as tokens."""


def change_answer(body: dict[str, Any], change: Change) -> None:
    """`output` items of Responses, `content` blocks of Messages; what repeats texts as tokens goes."""
    for name in MESSAGES:
        if body.get(name) is not None:
            body[name] = None
    for name in ("output", "content"):
        for item in body.get(name) or ():
            change_item(item, change)


def change_item(item: Any, change: Change) -> None:
    """One item or block: its texts, those of its parts and summary, and the arguments of a tool that it uses."""
    if not isinstance(item, dict):
        return
    for name in TEXT_KEYS:
        if isinstance(item.get(name), str):
            item[name] = change(item[name])
    if item.get("logprobs"):
        item["logprobs"] = []
    if item.get("type") == "tool_use":
        item["input"] = _changed(item.get("input"), change)
    for name in ("content", "summary"):
        parts = item.get(name)
        if isinstance(parts, str):
            item[name] = change(parts)
        for part in parts if isinstance(parts, list) else ():
            change_item(part, change)


def _changed(value: Any, change: Change) -> Any:
    """Arguments as an object: a model wrote the names and the numbers in it too. Raises RecursionError where they are
    nested too deeply."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _changed(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_changed(item, change) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    told = json.dumps(value)
    said = change(told)
    return value if said == told else said
