"""An assistant's turn as one number: the same as it was answered and as a later history has it (pure)."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from serve_app.recognition.canonical import text_of
from serve_app.recognition.quotes import MAX_TEXT_CHARS

_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_THOUGHT, _THOUGHT_ENDS = "<think>", "</think>"


def turn_of(pieces: Iterable[str]) -> int | None:
    """Of its text and the names and arguments of its calls in their order; None if it says nothing or too much.

    White space doesn't count, nor whether a letter is escaped: clients tidy up text and write arguments anew. Nor do
    thoughts at the beginning, which they don't keep. The number is the interpreter's own keyed hash and never leaves
    the process.
    """
    said = "".join("".join(pieces).split())
    if said.startswith(_THOUGHT):
        said = said.partition(_THOUGHT_ENDS)[2] or said
    if "\\u" in said:
        said = _unescaped(said)
    return hash(said) if 0 < len(said) < MAX_TEXT_CHARS else None


def _unescaped(text: str) -> str:
    """Letters as themselves; two escapes of a pair are one letter."""
    plain = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


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
