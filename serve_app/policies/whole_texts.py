"""Every text that a model wrote in an answer of Responses or Messages, changed in place (pure)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Change = Callable[[str], str]

MAX_DEPTH = 64
TEXT_KEYS = ("text", "thinking", "refusal", "arguments")


def change_answer(body: dict[str, Any], change: Change) -> None:
    """`output` items of Responses, `content` blocks of Messages; log probabilities, which repeat texts, go."""
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
        item["input"] = _changed(item.get("input"), change, MAX_DEPTH)
    for name in ("content", "summary"):
        parts = item.get(name)
        if isinstance(parts, str):
            item[name] = change(parts)
        for part in parts if isinstance(parts, list) else ():
            change_item(part, change)


def _changed(value: Any, change: Change, depth: int) -> Any:
    if isinstance(value, str):
        return change(value)
    if depth and isinstance(value, dict):
        return {key: _changed(item, change, depth - 1) for key, item in value.items()}
    if depth and isinstance(value, list):
        return [_changed(item, change, depth - 1) for item in value]
    return value
