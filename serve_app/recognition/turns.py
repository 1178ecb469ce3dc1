"""An assistant's turn as one number: the same as it was answered and as a later history has it (pure)."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from serve_app.recognition.canonical import text_of
from serve_app.recognition.quotes import MAX_TEXT_CHARS


def turn_of(pieces: Iterable[str]) -> int | None:
    """Of its text and the names and arguments of its calls in their order; None if it says nothing or too much.

    White space doesn't count: clients tidy up text and write arguments anew. The number is the interpreter's own
    keyed hash and never leaves the process.
    """
    said = "".join("".join(pieces).split())
    return hash(said) if 0 < len(said) < MAX_TEXT_CHARS else None


def turn_of_message(message: Mapping[str, Any]) -> int | None:
    """Of a message in a history; None if it isn't the assistant's."""
    if message.get("role") != "assistant":
        return None
    pieces = [text_of(message.get("content"))]
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            pieces += str(function.get("name") or ""), arguments_of(function.get("arguments"))
    return turn_of(pieces)


def arguments_of(value: Any) -> str:
    """A call's arguments as JSON text; Messages have them as an object."""
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    return value if isinstance(value, str) else ""
