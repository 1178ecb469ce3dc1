"""What of a request stays from one session to the next, and where texts of its own session stand in it (pure).

A template is learnt from one request and the texts that were known before it (answers of the session so far, its
task): wherever one of these stands inside a text of the request, the text of another session would stand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Source = tuple[str, int]
"""Names a text of a session: ("answer", 2) is its third answer."""
Path = tuple[str | int, ...]

MIN_SOURCE_CHARS = 8
"""A shorter text may stand anywhere by chance."""
MAX_PLACES = 32
"""Places of session texts in one text of a request; one with more is taken as it is."""
MAX_LEAVES = 1024
MAX_REQUEST_CHARS = 65_536
MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Template:
    """A request's fields, and for each text with something of its session in it (path, pieces)."""

    fields: Mapping[str, Any]
    varying: tuple[tuple[Path, tuple[str | Source, ...]], ...]

    def filled(self, sources: Mapping[Source, str]) -> dict[str, Any] | None:
        """The fields of another session; None if it lacks one of the texts."""
        made: Any = self.fields
        for path, pieces in self.varying:
            texts = [piece if isinstance(piece, str) else sources.get(piece) for piece in pieces]
            known = [text for text in texts if text is not None]
            if len(known) < len(texts):
                return None
            made = _replaced(made, path, "".join(known))
        return dict(made)


def learnt(
    fields: Mapping[str, Any], sources: Mapping[Source, str], before: Mapping[str, Any] | None
) -> Template | None:
    """None for a request that is too long. `before`: the request at this place of an earlier session; a text that
    is the same in both isn't the session's."""
    ordered = sorted(
        ((name, text) for name, text in sources.items() if len(text) >= MIN_SOURCE_CHARS),
        key=lambda item: (-len(item[1]), item[0]),
    )
    varying = []
    chars = 0
    for count, (path, text) in enumerate(_leaves(fields, (), MAX_DEPTH)):
        chars += len(text)
        if chars > MAX_REQUEST_CHARS or count >= MAX_LEAVES:
            return None
        if before is not None and _at(before, path) == text:
            continue
        pieces = _pieces(text, ordered)
        if pieces is not None:
            varying.append((path, pieces))
    return Template(fields, tuple(varying))


def _pieces(text: str, sources: Sequence[tuple[Source, str]]) -> tuple[str | Source, ...] | None:
    """The text as literals and sources, longest sources first; None: nothing of the session is in it."""
    pieces: list[str | Source] = [text]
    for name, value in sources:
        split: list[str | Source] = []
        for piece in pieces:
            if not isinstance(piece, str) or value not in piece:
                split.append(piece)
                continue
            literals = piece.split(value, MAX_PLACES)
            for index, literal in enumerate(literals):
                split += ([name] if index else []) + ([literal] if literal else [])
        pieces = split
        if len(pieces) > 2 * MAX_PLACES:
            return None
    return tuple(pieces) if any(not isinstance(piece, str) for piece in pieces) else None


def _leaves(value: Any, path: Path, depth: int) -> Iterator[tuple[Path, str]]:
    if isinstance(value, str):
        yield path, value
    elif depth and isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, (*path, name), depth - 1)
    elif depth and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index), depth - 1)


def _at(value: Any, path: Path) -> Any:
    for part in path:
        if isinstance(part, int):
            value = value[part] if isinstance(value, list) and part < len(value) else None
        else:
            value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _replaced(value: Any, path: Path, text: str) -> Any:
    """A copy along the path; all beside it is shared."""
    if not path:
        return text
    copy: Any = dict(value) if isinstance(value, Mapping) else list(value)
    copy[path[0]] = _replaced(value[path[0]], path[1:], text)
    return copy


# --- what a session is about ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """What the first prompts of an agent's sessions begin and end with alike; between them stands the task."""

    head: str
    tail: str

    def narrowed(self, text: str) -> Frame:
        """So that `text` has it too; whole words, since two tasks may begin with the same letters."""
        if text == self.head:
            return self
        head = os.path.commonprefix([self.head, text])
        if len(head) < len(text) and not head[-1:].isspace():
            head = head[: max(head.rfind(" "), head.rfind("\n")) + 1]
        rest = text[len(head) :]
        tail = os.path.commonprefix([self.tail[::-1], rest[::-1]])[::-1]
        if tail and not tail[0].isspace() and len(tail) < len(rest):
            cuts = [at for at in (tail.find(" "), tail.find("\n")) if at >= 0]
            tail = tail[min(cuts) :] if cuts else ""
        return Frame(head, tail)

    def inside(self, text: str) -> str:
        return text[len(self.head) : max(len(self.head), len(text) - len(self.tail))]


def asked_text(fields: Mapping[str, Any]) -> str:
    """The last text of a request: its last message, prompt or input; "" if that isn't plain text."""
    for name in ("messages", "input", "prompt"):
        value = fields.get(name)
        if isinstance(value, list) and value:
            last = value[-1]
            value = last.get("content") if isinstance(last, Mapping) else last
        if isinstance(value, str):
            return value
    return ""
