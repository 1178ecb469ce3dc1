"""Recorded agent sessions: folders with steps.jsonl, sessions.jsonl and systems.jsonl."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.trace_format import TraceError


@dataclass(frozen=True, slots=True)
class Step:
    """One LLM call of a recorded session.

    `anchor` names the system prompt; `thread`: calls of one thread continue one conversation. `pause_s`: from
    the session's request before to this one, None where not recorded; `tool_steps`: human, tool or code steps
    in between.
    """

    agent: str
    anchor: str
    thread: str
    anchor_tokens: int
    input_tokens: int
    output_tokens: int
    pause_s: float | None
    tool_steps: int


@dataclass(frozen=True, slots=True)
class Recording:
    session: str
    group: str
    steps: tuple[Step, ...]


def load_set(source: Path, name: str) -> list[Recording]:
    """The sessions of one set of `source`.

    Raises:
        TraceError: no such folder or set (the known ones are listed), or a malformed record.
    """
    folders = _folders(source)
    base, _, group = name.partition("/")
    if base in folders:
        recordings = _read(folders[base])
        groups = sorted({recording.group for recording in recordings})
        if not group:
            return recordings if len(groups) == 1 else [_qualified(r) for r in recordings]
        if group in groups:
            return [recording for recording in recordings if recording.group == group]
    raise TraceError(f"unknown set {name!r}; known: {', '.join(known_sets(source))}")


def known_sets(source: Path) -> list[str]:
    """`folder`, and `folder/framework-benchmark` where a folder holds several kinds of session."""
    names = []
    for base, folder in _folders(source).items():
        groups = sorted(set(_groups(folder).values()))
        names.append(base)
        if len(groups) > 1:
            names.extend(f"{base}/{group}" for group in groups)
    return names


def _folders(source: Path) -> dict[str, Path]:
    if not source.is_dir():
        raise TraceError(f"{source}: no such folder")
    inside = [source, *sorted(path for path in source.iterdir() if path.is_dir())]
    found = {path.name: path for path in inside if (path / "steps.jsonl").is_file()}
    if not found:
        raise TraceError(f"{source}: neither it nor a folder in it has a steps.jsonl")
    return found


def _groups(folder: Path) -> dict[str, str]:
    """session -> "framework-benchmark", each shortened to its first word."""
    groups = {}
    for _, record in read_records(folder / "sessions.jsonl"):
        words = (str(record.get(key) or "unknown").split()[0] for key in ("framework", "benchmark"))
        groups[str(record.get("session"))] = "-".join(words)
    return groups


def _read(folder: Path) -> list[Recording]:
    groups = _groups(folder)
    anchors = _anchor_tokens(folder / "systems.jsonl")
    rows: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    path = folder / "steps.jsonl"
    for number, record in read_records(path):
        for field, allowed in (("session", str), ("agent", str), ("llm", bool)):
            if not isinstance(record.get(field), allowed):
                raise TraceError(f"{path}, line {number}, field {field}: expected {allowed.__name__}")
        for field in ("input_tokens", "output_tokens", "ts"):
            value = record.get(field)
            if value is not None and (not isinstance(value, (int, float)) or value < 0):
                raise TraceError(f"{path}, line {number}, field {field}: expected a number from 0 up")
        rows[record["session"]].append(record)
    recordings = [
        Recording(session, groups.get(session, "unknown-unknown"), _steps(records, anchors))
        for session, records in rows.items()
    ]
    return [recording for recording in recordings if recording.steps]


def _steps(records: list[dict[str, Any]], anchors: dict[str, int]) -> tuple[Step, ...]:
    steps: list[Step] = []
    tool_steps = 0
    last_s: float | None = None
    longest: dict[str, int] = {}
    for record in records:
        if not record["llm"]:
            tool_steps += 1
            continue
        system = record.get("system_id")
        anchor = str(system or record["agent"])
        thread = "/".join(str(x) for x in (record["agent"], record.get("instance", ""), anchor))
        tokens = int(record.get("input_tokens") or 0)
        longest[thread] = max(tokens, longest.get(thread, 0))
        at_s = record.get("ts")
        pause_s = max(at_s - last_s, 0.0) if at_s is not None and last_s is not None else None
        steps.append(
            Step(
                agent=record["agent"],
                anchor=anchor,
                thread=thread,
                anchor_tokens=min(anchors.get(anchor, 0), longest[thread]),
                input_tokens=longest[thread],
                output_tokens=int(record.get("output_tokens") or 0),
                pause_s=pause_s,
                tool_steps=tool_steps,
            )
        )
        tool_steps, last_s = 0, at_s
    return tuple(steps)


def _anchor_tokens(path: Path) -> dict[str, int]:
    """System prompt -> tokens that repeat; a template's `static_prefix_tokens` where one is given."""
    tokens = {}
    for _, record in read_records(path) if path.is_file() else ():
        static = record.get("static_prefix_tokens", record.get("tokens"))
        tokens[str(record.get("system_id"))] = int(static or 0)
    return tokens


def _qualified(recording: Recording) -> Recording:
    """Agents of different frameworks may share a name without being the same agent."""
    steps = tuple(
        replace(s, agent=f"{recording.group}.{s.agent}", anchor=f"{recording.group}.{s.anchor}")
        for s in recording.steps
    )
    return Recording(recording.session, recording.group, steps)


def read_records(path: Path) -> list[tuple[int, dict[str, Any]]]:
    records = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise TraceError(f"{path}, line {number}: not JSON: {error}") from error
        if not isinstance(record, dict):
            raise TraceError(f"{path}, line {number}: expected an object")
        records.append((number, record))
    return records
