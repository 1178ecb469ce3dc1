"""Where a value stands in a tool call and in its result, and how the next call's arguments are made of such places.

A place is a path with `*` for an index of a list, such as `result.reservations.*`. Text that holds JSON is read as
such: that is how most tools' results come through MCP.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

MAX_PLACES = 128
MAX_LOOKED_AT = 4096
"""Of one call, values that tell something and values in all; the rest of it isn't looked at."""
MAX_RESULT_BYTES = 32 * 1024
"""A longer result isn't looked into: this is done while requests wait."""
MAX_PATH_CHARS = 256
MAX_VALUE_CHARS = 128
MIN_VALUE_CHARS = 3
MIN_NUMBER = 100
"""Shorter texts and smaller numbers are alike by chance, and link nothing."""
MAX_DEPTH = 12
MAX_CALLS = 8
"""Made of one template: a list has many items."""

Place = tuple[str, str | int]
"""(path, value)."""


def places(root: str, value: Any) -> list[Place]:
    """The texts and numbers in it that tell something, in order, at most MAX_PLACES."""
    found: list[Place] = []
    waiting: list[tuple[str, Any, int]] = [(root, value, 0)]
    looked_at = 0
    while waiting and len(found) < MAX_PLACES and looked_at < MAX_LOOKED_AT:
        path, item, depth = waiting.pop()
        looked_at += 1
        if depth > MAX_DEPTH or len(path) > MAX_PATH_CHARS:
            continue
        if isinstance(item, str) and item[:1] in ("{", "["):
            item = _inner(item)
        if isinstance(item, Mapping):
            inside = [(f"{path}.{name}", part, depth + 1) for name, part in islice(item.items(), MAX_LOOKED_AT)]
            waiting += reversed(inside)
        elif isinstance(item, (list, tuple)):
            waiting += reversed([(f"{path}.*", part, depth + 1) for part in item[:MAX_LOOKED_AT]])
        elif tells(item):
            found.append((path, item))
    return found


def result_places(encoded: bytes) -> list[Place]:
    """Those of a result as JSON; none where it is too long or no JSON."""
    if len(encoded) > MAX_RESULT_BYTES:
        return []
    try:
        return places("result", json.loads(encoded))
    except (ValueError, RecursionError):
        return []


def _inner(text: str) -> Any:
    """What a text holds as JSON; None where it holds none."""
    try:
        return json.loads(text) if len(text) <= MAX_RESULT_BYTES else None
    except (ValueError, RecursionError):
        return None


def tells(value: Any) -> bool:
    if isinstance(value, str):
        return MIN_VALUE_CHARS <= len(value) <= MAX_VALUE_CHARS
    return isinstance(value, int) and not isinstance(value, bool) and MIN_NUMBER <= abs(value) < 1 << 63


@dataclass(frozen=True, slots=True)
class Template:
    """Arguments by name: those that stand at a path of the call before, and the others as JSON."""

    linked: tuple[tuple[str, str], ...]
    constant: str

    @property
    def needs_result(self) -> bool:
        return any(path.startswith("result") for _, path in self.linked)

    def fill(self, found: list[Place]) -> list[dict[str, Any]]:
        """The calls' arguments, at most MAX_CALLS: as many as there are values at the paths. Where several paths have
        several values, their first belong together, then their second; a single value of a path with fewer `*`
        belongs to all."""
        values = {name: [value for at, value in found if at == path] for name, path in self.linked}
        count = max(map(len, values.values()), default=0)
        stars = max(path.count("*") for _, path in self.linked)
        for name, path in self.linked:
            if len(values[name]) != count and (len(values[name]) != 1 or path.count("*") == stars):
                return []
        rest = json.loads(self.constant)
        return [
            {**rest, **{name: some[index if len(some) > 1 else 0] for name, some in values.items()}}
            for index in range(min(count, MAX_CALLS))
        ]


def template(arguments: Mapping[str, Any], ignored: tuple[str, ...], found: list[Place]) -> Template | None:
    """How the arguments but the ignored ones come from those places; None if none of them does."""
    at: dict[str | int, str] = {}
    for path, value in found:
        at.setdefault(value, path)
    linked = tuple(
        (name, at[value])
        for name, value in sorted(arguments.items())
        if name not in ignored and tells(value) and value in at
    )
    if not linked:
        return None
    rest = {name: value for name, value in arguments.items() if name not in dict(linked) and name not in ignored}
    return Template(linked, json.dumps(rest, sort_keys=True))
