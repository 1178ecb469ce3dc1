"""Every text of a request that a model will read (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Change = Callable[[str], str]

TEXT_KEYS = frozenset(
    {"content", "text", "refusal", "reasoning", "reasoning_content", "arguments", "description", "output"}
)
MAX_DEPTH = 64
"""As deep as a body may be."""


def texts(fields: Mapping[str, Any]) -> Iterator[str]:
    """Messages with their parts and tool calls, completion prompts, descriptions of tools; of Responses the
    instructions and the input's items."""
    found: list[str] = []

    def note(text: str) -> str:
        found.append(text)
        return text

    mapped_texts(fields, note)
    yield from found


def mapped_texts(fields: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """A copy with each text changed; what has none is shared with the original."""
    changed = dict(fields)
    for name in ("messages", "tools", "input"):
        if isinstance(fields.get(name), list):
            changed[name] = [_mapped(item, change, MAX_DEPTH) for item in fields[name]]
    for name in ("instructions", "input"):
        if isinstance(fields.get(name), str):
            changed[name] = change(fields[name])
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        changed["prompt"] = change(prompt)
    elif isinstance(prompt, list):
        changed["prompt"] = [change(item) if isinstance(item, str) else item for item in prompt]
    return changed


def unreadable(fields: Mapping[str, Any]) -> bool:
    """Whether the prompt is token ids."""
    prompt = fields.get("prompt")
    return isinstance(prompt, list) and any(not isinstance(item, str) for item in prompt)


def _mapped(value: Any, change: Change, depth: int) -> Any:
    if depth == 0:
        return value
    if isinstance(value, list):
        return [_mapped(item, change, depth - 1) for item in value]
    if not isinstance(value, Mapping):
        return value
    return {
        name: change(item) if name in TEXT_KEYS and isinstance(item, str) else _mapped(item, change, depth - 1)
        for name, item in value.items()
    }
