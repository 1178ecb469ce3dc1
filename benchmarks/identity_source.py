"""Recorded conversations that carry text -> the chat requests that a client without hints would have sent."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.trace_format import TraceError
from benchmarks.trace_source import read_records

Record = dict[str, Any]
Messages = list[dict[str, Any]]

_TURN = re.compile(r"(?:\A|\n\n)(system|user|assistant): ")
_GREETING = "Hi! How can I help you today?"
"""What the recorded user simulators were opened with; the recording begins behind it."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request, who sent it, and the answer it got. `prompt` names its system prompt as recorded."""

    agent: str
    prompt: str
    body: dict[str, Any]
    answer: str


@dataclass(frozen=True, slots=True)
class Talk:
    """A recorded session in its order."""

    session: str
    calls: tuple[Call, ...]


def load_talks(source: Path, names: Iterable[str] = ()) -> dict[str, list[Talk]]:
    """Set -> sessions, of the named sets or of all that carry text.

    Raises:
        TraceError: no set with text there, an unknown name, or a malformed record.
    """
    found = dict(_sets(source))
    if not found:
        raise TraceError(f"{source}: no recording with text in it")
    wanted = list(names) or list(found)
    for name in wanted:
        if name not in found:
            raise TraceError(f"unknown set {name!r}; known: {', '.join(found)}")
    return {name: [talk for talk in found[name]() if talk.calls] for name in wanted}


def _sets(source: Path) -> Iterator[tuple[str, Callable[[], list[Talk]]]]:
    for path in sorted(source.glob("*/text/*.jsonl")):
        yield f"{path.parent.parent.name}/{path.stem}", lambda path=path: _logged(path)  # type: ignore[misc]
    for folder in sorted(path.parent for path in source.glob("*/steps.jsonl")):
        dialogues = sorted(folder.glob("messages*.jsonl"))
        if dialogues:
            yield folder.name, lambda folder=folder, path=dialogues[0]: _dialogues(folder, path)  # type: ignore[misc]
        elif any("input" in record for record in _first(folder / "steps.jsonl")):
            yield folder.name, lambda folder=folder: _inputs(folder)  # type: ignore[misc]


def _first(path: Path) -> list[Record]:
    return [record for _, record in read_records(path)[:1]]


def _by_session(records: Iterable[Record]) -> dict[str, list[Record]]:
    grouped: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        grouped[str(record.get("session"))].append(record)
    return grouped


def _logged(path: Path) -> list[Talk]:
    """Each step has its messages as they were sent."""
    records = [record for _, record in read_records(path) if record.get("llm") and record.get("messages")]
    return [
        Talk(
            session,
            tuple(
                Call(str(r["agent"]), str(r.get("system_id")), {"messages": r["messages"]}, str(r.get("output") or ""))
                for r in steps
            ),
        )
        for session, steps in _by_session(records).items()
    ]


def _inputs(folder: Path) -> list[Talk]:
    """Each step has its input as one text: turns behind their roles, or a user's message alone.

    Steps whose input was not recorded are left out: there is nothing to send.
    """
    systems = {r["system_id"]: str(r["system"]) for _, r in read_records(folder / "systems.jsonl")}
    records = [r for _, r in read_records(folder / "steps.jsonl") if r.get("llm") and r.get("input")]
    return [
        Talk(
            session,
            tuple(
                Call(
                    str(r["agent"]),
                    str(r.get("system_id")),
                    {"messages": _turns(r["input"], systems.get(r.get("system_id")))},
                    str(r.get("output") or ""),
                )
                for r in steps
            ),
        )
        for session, steps in _by_session(records).items()
    ]


def _turns(text: str, system: str | None) -> Messages:
    parts = _TURN.split(text)
    if parts[0]:
        turns: Messages = [{"role": "user", "content": text}]
    else:
        turns = [{"role": role, "content": said} for role, said in zip(parts[1::2], parts[2::2], strict=True)]
    if system is not None and turns[0]["role"] != "system":
        turns.insert(0, {"role": "system", "content": system})
    return turns


def _dialogues(folder: Path, path: Path) -> list[Talk]:
    """A tool-using agent and a simulated user, each with a prompt of its own, over one list of messages."""
    systems = {r["system_id"]: r for _, r in read_records(folder / "systems.jsonl")}
    steps = _by_session(r for _, r in read_records(folder / "steps.jsonl") if r.get("llm"))
    talks = []
    for _, record in read_records(path):
        session = str(record["session"])
        agent, user = systems[record["agent_system_id"]], systems[record["user_system_id"]]
        calls = [
            _dialogue_call(record["messages"], int(step["msg_index"]) - 1, step["agent"], agent, user)
            for step in steps[session]
            if int(step["msg_index"]) <= len(record["messages"])
        ]
        talks.append(Talk(session, tuple(calls)))
    return talks


def _dialogue_call(messages: Messages, at: int, name: str, agent: Record, user: Record) -> Call:
    """The request whose answer is `messages[at]`; the simulated user sees the roles turned round."""
    before = messages[:at]
    answer = str(messages[at].get("content") or "")
    if messages[at].get("role") == "user":
        turned = {"user": "assistant", "assistant": "user"}
        seen: Messages = [{"role": "user", "content": _GREETING}]
        seen += [
            {"role": turned[m["role"]], "content": m["content"]}
            for m in before
            if m["role"] in turned and m.get("content") and not m.get("tool_calls")
        ]
        return Call(name, name, {"messages": [{"role": "system", "content": user["system"]}, *seen]}, answer)
    body = {"messages": [{"role": "system", "content": agent["system"]}, *before], "tools": agent["tools"]}
    return Call(name, name, body, answer)
