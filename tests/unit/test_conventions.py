"""Each row of docs/conventions.md against the code: the reply's word, and what the name decides."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from serve_app.hints import read_hints
from serve_app.identity import Identity, IdentityResolver, fold_headers

TABLE = Path(__file__).parents[2] / "docs" / "conventions.md"
CHAT = {"messages": [{"role": "system", "content": "You plan."}, {"role": "user", "content": "hi"}]}

IN_USE = {
    *("x-session-id", "x-parent-session-id", "x-dynamo-session-id", "x-dynamo-parent-session-id"),
    *("x-dynamo-session-final", "x-claude-code-session-id", "x-claude-code-agent-id", "session-id"),
    *("x-gateway-inference-fairness-id", "x-slo-ttft-ms"),
    *("session_id", "cache_salt", "priority", "vllm_xargs", "prompt_cache_key"),
    *(f"nvext.agent_hints.{name}" for name in ("priority", "strict_priority", "osl", "speculative_prefill")),
    *(f"nvext.agent_hints.{name}" for name in ("latency_sensitivity", "prefix_id", "total_requests", "iat")),
    *(f"nvext.agent_context.{name}" for name in ("session_type_id", "session_id", "trajectory_id")),
    *(f"nvext.agent_context.{name}" for name in ("parent_trajectory_id", "trajectory_final")),
    *(f"agent_hints.{name}" for name in ("workflow_id", "agent_id", "step_id", "parent_step_id")),
    *(f"agent_hints.{name}" for name in ("expected_tool_duration_ms", "cache_ttl_ms", "reuse_hint")),
}


@dataclass(frozen=True)
class Row:
    name: str
    headers: dict[str, str]
    fields: dict[str, Any]
    meaning: str
    standing: str
    reply: str


def rows() -> list[Row]:
    found = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        match = re.fullmatch(r"\| `(.+?)` \| (.+?) \| (\w+) \| .*?\| ([\w ]+) \|", line)
        if match:
            example, meaning, standing, reply = match.groups()
            if example.startswith("{"):
                fields = json.loads(example)
                found.append(Row(path_of(fields), {}, fields, meaning, standing, reply))
            else:
                name, value = example.split(": ", 1)
                found.append(Row(name, {name: value}, {}, meaning, standing, reply))
    return found


def path_of(fields: dict[str, Any]) -> str:
    """The dotted name of an example; of objects that are one hint as a whole, or whose field has no plain name, their
    own."""
    ((name, value),) = fields.items()
    if not isinstance(value, dict) or not all(map(str.isidentifier, value)):
        return str(name)
    if name in ("nvext", "agent_hints", "agent_context") or value == {"session_id": "task-17"}:
        return f"{name}.{path_of(value)}"
    return str(name)


ROWS = rows()


def resolved(row: Row) -> Identity:
    raw = [(name.encode(), value.encode()) for name, value in row.headers.items()]
    return IdentityResolver(b"secret").resolve("t", fold_headers(raw), {**CHAT, **row.fields}).identity


def test_every_name_in_use_has_a_row() -> None:
    names = {row.name for row in ROWS}
    assert names >= IN_USE - {"vllm_xargs"} and "vllm_xargs" in names
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert len(ROWS) == len(lines)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name}-{row.reply}")
def test_the_reply_says_what_the_table_says(row: Row) -> None:
    header = read_hints(row.headers, {**CHAT, **row.fields})[1].header()
    assert header == ("none" if row.reply == "not named" else f"{row.name}={row.reply}")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name}-{row.reply}")
def test_a_name_decides_what_the_table_says(row: Row) -> None:
    identity = resolved(row)
    taken = row.standing == "trusted" and row.reply == "accepted"
    assert (identity.session_source == row.name) == (
        taken and re.match(r"the session\b( \(|$)", row.meaning) is not None
    )
    assert (identity.agent_source == row.name) == (taken and row.meaning.startswith("the agent"))
    assert identity.ends_session == (taken and ends(row))
    priority, _ = read_hints(row.headers, {**CHAT, **row.fields})
    assert (priority > 0) <= (row.standing == "advisory")
    assert 0 <= priority <= 10


def ends(row: Row) -> bool:
    return "ends with this request" in row.meaning


@pytest.mark.parametrize("row", [row for row in ROWS if row.standing == "refused"], ids=lambda row: row.name)
def test_what_is_refused_changes_nothing(row: Row) -> None:
    plain = IdentityResolver(b"secret").resolve("t", {}, CHAT).identity
    identity = resolved(row)
    assert (identity.agent, identity.session_source, identity.ends_session) == (plain.agent, "new", False)
    assert read_hints(row.headers, {**CHAT, **row.fields})[0] == 0
