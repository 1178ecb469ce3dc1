"""Recorded sessions into traces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.trace_format import TraceError, parse_trace, read_trace
from benchmarks.trace_source import known_sets, load_set
from benchmarks.traces import TraceSettings, build_trace, main


def step(session: str, number: int, agent: str, tokens: int, **more: object) -> dict:
    return {
        "session": session,
        "step": number,
        "agent": agent,
        "llm": True,
        "system_id": f"sys_{agent}",
        "input_tokens": tokens,
        "output_tokens": 50,
        "ts": None,
    } | more


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "recorded"
    folder.mkdir()
    steps = []
    for i in range(6):
        session = f"r{i}"
        steps += [
            step(session, 0, "planner", 200),
            step(session, 1, "user", 0, llm=False),
            step(session, 2, "coder", 300),
            step(session, 3, "planner", 400),
        ]
    systems = [{"system_id": f"sys_{agent}", "tokens": 128} for agent in ("planner", "coder")]
    sessions = [
        {"session": f"r{i}", "framework": "Frame (x)", "benchmark": "one" if i < 3 else "two"} for i in range(6)
    ]
    for name, rows in (("steps", steps), ("systems", systems), ("sessions", sessions)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_history_is_append_only_and_fresh_is_not(source: Path) -> None:
    recordings = load_set(source, "recorded/Frame-one")
    history = build_trace(recordings, TraceSettings(2, seed=1))
    assert len(history) == 9
    planner = [r for r in history if r.session == "r0#0" and r.agent == "planner"]
    assert planner[1].blocks[: len(planner[0].blocks)] == planner[0].blocks
    assert [len(r.blocks) for r in planner] == [200 // 32, 400 // 32]
    assert {r.anchor_blocks for r in history} == {4}
    fresh = build_trace(recordings, TraceSettings(2, seed=1, variant="fresh"))
    tails = [block for r in fresh for block in r.blocks[r.anchor_blocks :]]
    assert len(tails) == len(set(tails))
    for trace in (history, fresh):
        assert list(parse_trace((r.to_line() for r in trace), "built")) == trace


def test_seed_decides_and_concurrency_bounds_the_live_sessions(source: Path) -> None:
    recordings = load_set(source, "recorded")
    assert {step.agent for r in recordings for step in r.steps} >= {"Frame-one.coder", "Frame-two.coder"}
    for clock in ("paced", "random"):
        one = build_trace(recordings, TraceSettings(3, seed=1, clock=clock))
        assert one == build_trace(recordings, TraceSettings(3, seed=1, clock=clock))
        assert one != build_trace(recordings, TraceSettings(3, seed=2, clock=clock))
        live: set[str] = set()
        for request in one:
            live.add(request.session)
            assert len(live) <= 3
            if request.final:
                live.discard(request.session)
        assert not live


def test_anchor_size_and_number_of_requests(source: Path) -> None:
    recordings = load_set(source, "recorded")
    settings = TraceSettings(2, seed=1, anchor_tokens=(2000, 3000), requests=100)
    trace = build_trace(recordings, settings)
    assert 100 <= len(trace) <= 103
    assert {r.session.partition("#")[2] for r in trace} >= {"0", "5"}
    assert all(2000 // 32 <= r.anchor_blocks <= 3000 // 32 for r in trace)


def test_command_line(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    fixed = ["--concurrency", "2", "--seed", "1", "--out", str(out)]
    assert main([str(source), "--set", "recorded", *fixed]) == 0
    assert len(read_trace(out)) == 18
    assert main([str(source), "--set", "nothing", *fixed]) == 2
    assert "known: recorded, recorded/Frame-one, recorded/Frame-two" in capsys.readouterr().err
    assert main([str(tmp_path / "absent"), "--set", "x", *fixed]) == 2
    with pytest.raises(SystemExit):
        main([str(source), "--set", "recorded", "--concurrency", "0", "--seed", "1", "--out", str(out)])


def test_a_malformed_source_names_file_line_and_field(source: Path) -> None:
    path = source / "recorded" / "steps.jsonl"
    lines = path.read_text().splitlines()
    lines[1] = json.dumps({"session": "r0", "agent": 5, "llm": True})
    path.write_text("\n".join(lines))
    with pytest.raises(TraceError, match=r"steps\.jsonl, line 2, field agent"):
        load_set(source, "recorded")
    path.write_text("{")
    with pytest.raises(TraceError, match="line 1: not JSON"):
        load_set(source, "recorded")
    assert known_sets(source)
