"""The benchmark of adapters, on recordings whose numbers can be counted by hand."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from benchmarks.adapters import LastUsed, MostUsed, Shipped, main, optimum, play, told
from benchmarks.trace_format import Request
from benchmarks.trace_source import load_set
from benchmarks.traces import TraceSettings, build_trace
from tests.unit.recorded_kit import write_set


def turns(agents: str, sessions: int = 1) -> list[Request]:
    """One session after the other, a request every ten seconds."""
    made = [(f"s{n}", agent, i + 1 == len(agents)) for n in range(sessions) for i, agent in enumerate(agents)]
    return [Request(s, agent, ("x",), 0, final, 10.0 * at) for at, (s, agent, final) in enumerate(made)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_set(tmp_path / "chain", {f"s{n}": "abc" for n in range(4)})
    write_set(tmp_path / "pair", {f"s{n}": "ab" for n in range(4)})
    return tmp_path


def test_in_turn_stock_finds_nothing_and_the_optimum_every_other() -> None:
    trace = turns("abc", sessions=10)
    stock = asyncio.run(play(trace, 2, None))
    assert (stock["requests"], stock["hits"], stock["loads"], stock["ahead"]) == (27, 0, 27, 0)
    best = optimum(trace, 2)
    assert best["requests"] == 27 and 12 <= best["hits"] <= 14


def test_what_is_foreseen_is_there() -> None:
    trace = turns("abc", sessions=20)
    counts = asyncio.run(play(trace, 2, told(trace, Shipped(), 0.5)))
    # All but each session's first agent, which nobody could foresee.
    assert (counts["requests"], counts["hits"], counts["wasted"]) == (54, 36, 0)


def test_what_comes_too_late_is_of_no_use() -> None:
    trace = turns("abc", sessions=20)
    counts = asyncio.run(play(trace, 2, told(trace, Shipped(), 1e6)))
    assert (counts["hits"], counts["ahead"]) == (0, 0)


def test_sources_without_a_forecast() -> None:
    trace = turns("abc")
    last, most = LastUsed(), MostUsed()
    for request in trace[:2]:
        last.arrived(request, 0.0)
        most.arrived(request, 0.0)
    assert last.values(0.0) == {"b": 1.0} and most.values(0.0) == {"a": 0.5, "b": 0.5}
    last.arrived(trace[2], 0.0)
    assert last.values(0.0) == {}


def test_loaded_and_never_used_is_waste() -> None:
    trace = turns("ab", sessions=5)
    wrong = {"c": 1.0}
    counts = asyncio.run(play([*trace, *turns("c")], 3, [{}] * 2 + [wrong] * 9))
    assert (counts["ahead"], counts["wasted"]) == (1, 0), "used at last"
    counts = asyncio.run(play([*trace, Request("z", "c", ("x",), 0, True, None)][:-1], 2, [{}] * 2 + [wrong] * 8))
    assert counts["ahead"] == 0, "an adapter that the engine doesn't have is not loaded"


def test_the_command(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(source), "--slots", "2", "--seeds", "1", "--requests", "60", "--sessions", "2", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["set"] for row in rows} == {"chain"}, "two slots hold all adapters of the other"
    by_policy = {row["policy"]: row for row in rows}
    assert set(by_policy) == {"stock", "adapters", "horizon 1", "horizon 4", "last used", "most used", "min"}
    trace = build_trace(load_set(source, "chain"), TraceSettings(2, 1, requests=60))
    stock = asyncio.run(play(trace, 2, None))
    assert by_policy["stock"]["found"] == pytest.approx(stock["hits"] / stock["requests"])
    assert by_policy["stock"]["found"] <= by_policy["min"]["found"] and by_policy["stock"]["loaded ahead"] == 0
