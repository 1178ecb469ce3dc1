"""The replay's trace format: one request a line, in arrival order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class TraceError(ValueError):
    """Raised when a trace or its source is malformed; the message names file, line and field."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt. `blocks` are ids of its blocks from the head; an id stands for the whole prefix up to
    it. The first `anchor_blocks` of them are the agent's anchor. `final`: the session's last request.
    `t_s`: arrival in seconds, None if not recorded.
    """

    session: str
    agent: str
    blocks: tuple[str, ...]
    anchor_blocks: int
    final: bool
    t_s: float | None

    def to_line(self) -> str:
        record = {
            "session": self.session,
            "agent": self.agent,
            "blocks": list(self.blocks),
            "anchor_blocks": self.anchor_blocks,
            "final": self.final,
            "t": self.t_s,
        }
        return json.dumps(record, separators=(",", ":"))


FIELDS = ("session", "agent", "blocks", "anchor_blocks", "final", "t")


def read_trace(path: Path) -> list[Request]:
    """Raises TraceError naming the file, the line and the field that is wrong."""
    try:
        with path.open(encoding="utf-8") as lines:
            requests = list(parse_trace(lines, str(path)))
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    if not requests:
        raise TraceError(f"{path}: no request in it")
    return requests


def parse_trace(lines: Iterable[str], name: str) -> Iterator[Request]:
    """Checks each line on its own, times for order, and that a block id has one parent everywhere."""
    parents: dict[str, tuple[str, int]] = {}
    last_s: float | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        request = _request(line, where)
        if request.t_s is not None:
            if last_s is not None and request.t_s < last_s:
                raise TraceError(f"{where}, field t: {request.t_s} is before the line above ({last_s})")
            last_s = request.t_s
        _check_prefixes(request.blocks, parents, number, where)
        yield request


def _request(line: str, where: str) -> Request:
    try:
        record: Any = json.loads(line)
    except ValueError as error:
        raise TraceError(f"{where}: not JSON: {error}") from error
    if not isinstance(record, dict):
        raise TraceError(f"{where}: expected an object, got {type(record).__name__}")
    for field in FIELDS[:3]:
        if field not in record:
            raise TraceError(f"{where}, field {field}: missing")
    unknown = sorted(set(record) - set(FIELDS))
    if unknown:
        raise TraceError(f"{where}, field {unknown[0]}: unknown; known: {', '.join(FIELDS)}")
    for field in ("session", "agent"):
        if not isinstance(record[field], str) or not record[field]:
            raise TraceError(f"{where}, field {field}: expected a non-empty string")
    blocks = record["blocks"]
    if not isinstance(blocks, list) or not blocks or not all(isinstance(b, str) for b in blocks):
        raise TraceError(f"{where}, field blocks: expected a non-empty list of strings")
    anchor_blocks = record.get("anchor_blocks", 0)
    if type(anchor_blocks) is not int or not 0 <= anchor_blocks <= len(blocks):
        raise TraceError(f"{where}, field anchor_blocks: expected an integer from 0 to {len(blocks)}")
    final = record.get("final", False)
    if not isinstance(final, bool):
        raise TraceError(f"{where}, field final: expected true or false")
    t_s = record.get("t")
    if t_s is not None and (type(t_s) not in (int, float) or not 0.0 <= t_s < float("inf")):
        raise TraceError(f"{where}, field t: expected seconds from 0 up, or null")
    return Request(
        record["session"],
        record["agent"],
        tuple(blocks),
        anchor_blocks,
        final,
        None if t_s is None else float(t_s),
    )


def _check_prefixes(blocks: tuple[str, ...], parents: dict[str, tuple[str, int]], number: int, where: str) -> None:
    """A block id names a whole prefix, so it must follow the same block wherever it stands."""
    before = ""
    seen = set()
    for block in blocks:
        if block in seen:
            raise TraceError(f"{where}, field blocks: {block!r} stands twice in one request")
        seen.add(block)
        parent, first_line = parents.setdefault(block, (before, number))
        if parent != before:
            raise TraceError(
                f"{where}, field blocks: {block!r} follows {before!r} here and {parent!r} in line {first_line}"
            )
        before = block
