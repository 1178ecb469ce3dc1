"""Requests rebuilt from recordings, and how well identity recovers who sent them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.identity import interleaved, main, measure_cost, pairwise, run_set
from benchmarks.identity_source import Talk, load_talks
from benchmarks.trace_format import TraceError

RECORDED = os.environ.get("AGENT_RUNTIME_TRACES", "")
SAME_WORDS = "debate"
"""Three debaters without a system prompt open with one question in equal words: nothing tells them apart, and
nothing tells them from strangers."""

LEAST_F1 = 0.95


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """One set of each form: messages as sent, one text a step, a dialogue of two."""
    logged = [
        {"session": f"l{n}", "agent": "solo", "llm": True, "messages": [{"role": "user", "content": f"q{n}"}]}
        for n in range(3)
    ]
    write(tmp_path / "logs" / "text" / "solo.jsonl", logged)
    turns = "user: First question.\n\nassistant: An answer.\n\nuser: Second question."
    steps = [
        {"session": "i0", "agent": "a", "llm": True, "system_id": "sys", "input": "Only a user's text.", "output": "x"},
        {"session": "i0", "agent": "b", "llm": True, "system_id": None, "input": turns, "output": "y"},
        {"session": "i0", "agent": "b", "llm": True, "system_id": None, "input": ""},
        {"session": "i0", "agent": "tool", "llm": False, "input": "z"},
    ]
    write(tmp_path / "inputs" / "steps.jsonl", steps)
    write(tmp_path / "inputs" / "systems.jsonl", [{"system_id": "sys", "system": "You plan."}])
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said = [
        {"role": "user", "content": "I want to fly."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "[]"},
        {"role": "assistant", "content": "Where to?"},
        {"role": "user", "content": "Rome."},
    ]
    dialogue = {"session": "d0", "agent_system_id": "desk", "user_system_id": "guest", "messages": said}
    write(tmp_path / "talks" / "messages.jsonl", [dialogue])
    order = [(1, "guest"), (2, "desk"), (4, "desk"), (5, "guest")]
    write(
        tmp_path / "talks" / "steps.jsonl",
        [{"session": "d0", "agent": agent, "llm": True, "msg_index": index} for index, agent in order],
    )
    systems = [{"system_id": name, "system": f"You are the {name}.", "tools": [{"name": "look"}]} for name in "ab"]
    systems += [{"system_id": name, "system": f"The {name}.", "tools": []} for name in ("desk", "guest")]
    write(tmp_path / "talks" / "systems.jsonl", systems)
    return tmp_path


def test_requests_are_what_a_client_sent(source: Path) -> None:
    talks = load_talks(source)
    assert list(talks) == ["logs/solo", "inputs", "talks"]
    assert [talk.session for talk in talks["logs/solo"]] == ["l0", "l1", "l2"]
    first, second = talks["inputs"][0].calls
    assert [m["role"] for m in first.body["messages"]] == ["system", "user"] and first.answer == "x"
    assert [m["role"] for m in second.body["messages"]] == ["user", "assistant", "user"]
    assert second.body["messages"][1]["content"] == "An answer."
    guest, desk, desk_again, guest_again = talks["talks"][0].calls
    assert "tools" not in guest.body and desk.body["messages"][1]["content"] == guest.answer == "I want to fly."
    assert [m["role"] for m in desk_again.body["messages"]] == ["system", "user", "assistant", "tool"]
    turned = [(m["role"], m["content"]) for m in guest_again.body["messages"]][2:]
    assert turned == [("assistant", "I want to fly."), ("user", "Where to?")]


def test_unknown_and_empty_sources_are_named(source: Path, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="unknown set 'x'; known: logs/solo, inputs, talks"):
        load_talks(source, ["x"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError, match="no recording with text"):
        load_talks(tmp_path / "empty")


def test_pairs() -> None:
    assert pairwise("aabb", "xxyy").f1 == 1.0
    assert pairwise("abcd", "xxyy") == pairwise("efgh", "xxyy")
    half = pairwise("aaaa", "xxyy")
    assert (half.precision, half.recall) == (2 / 6, 1.0)
    assert pairwise("", "").f1 == 1.0


def test_order_keeps_sessions_and_bounds_the_live_ones(source: Path) -> None:
    talks: list[Talk] = [talk for found in load_talks(source).values() for talk in found]
    order = interleaved(talks, 2, seed=1)
    assert order == interleaved(talks, 2, seed=1)
    live: set[str] = set()
    for session, _, last in order:
        live.add(session)
        assert len(live) <= 2
        if last:
            live.discard(session)
    for talk in talks:
        assert [call for session, call, _ in order if session == talk.session] == list(talk.calls)


def test_command_line(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(source), "--set", "logs/solo", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["sets"][0]["session_pairs"]["f1"] == 1.0 and set(report["cost"]) == {
        "first_us",
        "prose_us",
        "retry_us",
        "turn_us",
    }
    assert main([str(source / "nothing")]) == 2
    assert main([str(source)]) == 0
    assert "32k tokens, 64 tools" in capsys.readouterr().out


def test_cost_of_a_long_conversation() -> None:
    """32k tokens with 64 tools: 300 us a request is the aim; the bound allows for a busy machine."""
    cost = measure_cost(repeats=20)
    assert min(cost.retry_us, cost.turn_us) < 1500


@pytest.mark.traces
@pytest.mark.skipif(not RECORDED, reason="AGENT_RUNTIME_TRACES names no folder of recorded sessions")
@pytest.mark.parametrize("seed", [1, 2])
def test_recorded_agents_and_sessions_are_recovered(seed: int) -> None:
    short = {}
    for name, talks in load_talks(Path(RECORDED)).items():
        result = run_set(name, talks, 8, seed)
        # A label that a prompt can't tell from another's is judged by its prompt.
        found = {"agents": max(result.agents.f1, result.agents_by_prompt.f1), "sessions": result.session_pairs.f1}
        for what, f1 in found.items():
            if f1 < LEAST_F1 and SAME_WORDS not in name:
                short[name, what] = f1
    assert not short
