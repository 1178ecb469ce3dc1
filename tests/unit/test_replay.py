"""The replay: MIN against exhaustive search and every policy, bad input."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.optimum import optimal_hits
from benchmarks.policies.known import ONLINE
from benchmarks.replay import main, replay, smallest_cache
from benchmarks.trace_format import Request, TraceError, read_trace


def request(session: str, agent: str, path: str, anchor: int = 0, final: bool = False) -> Request:
    """A block id is the path down to it, so equal ids always stand for equal prefixes."""
    blocks = tuple(f"{agent[:0]}{path[: i + 1]}" for i in range(len(path)))
    return Request(session, agent, blocks, min(anchor, len(path)), final, None)


def traces(letters: str, longest: int, most: int) -> st.SearchStrategy[list[Request]]:
    one = st.builds(
        request,
        st.sampled_from(["s1", "s2", "s3"]),
        st.sampled_from(["a", "b", "c"]),
        st.text(letters, min_size=1, max_size=longest),
        st.integers(0, 2),
        st.booleans(),
    )
    return st.lists(one, min_size=1, max_size=most)


def exhaustive_hits(requests: Sequence[Request], capacity: int, count_from: int) -> int:
    """Most counted hits over every way to evict, by trying them all."""

    @cache
    def best(index: int, cached: frozenset[str]) -> int:
        if index == len(requests):
            return 0
        blocks = requests[index].blocks
        found = 0
        while found < len(blocks) - 1 and blocks[found] in cached:
            found += 1
        others = cached - set(blocks)
        room = min(capacity - len(blocks), len(others))
        outcomes = (best(index + 1, frozenset(kept) | set(blocks)) for kept in combinations(sorted(others), room))
        return max(outcomes) + (found if index >= count_from else 0)

    return best(0, frozenset())


@given(traces("xy", 3, 8), st.integers(0, 2), st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_min_equals_exhaustive_search(requests: list[Request], spare: int, count_from: int) -> None:
    capacity = smallest_cache(requests) + spare
    hits = optimal_hits(requests, capacity, count_from)
    assert sum(hits[count_from:]) == exhaustive_hits(requests, capacity, count_from)


@given(traces("xyz", 5, 40), st.integers(0, 6))
@settings(max_examples=60, deadline=None)
def test_no_policy_beats_min(requests: list[Request], spare: int) -> None:
    blocks = smallest_cache(requests) + spare
    bound = replay(requests, blocks, "min")
    for policy in ONLINE:
        result = replay(requests, blocks, policy)
        assert result.hit_blocks <= bound.hit_blocks, policy
        assert 0.0 <= result.anchor_hit_rate <= 1.0
        assert (result.requests, result.prompt_blocks) == (bound.requests, bound.prompt_blocks)


@given(traces("xy", 4, 30))
@settings(max_examples=30, deadline=None)
def test_a_cache_for_everything_misses_only_what_is_new(requests: list[Request]) -> None:
    blocks = sum(len(r.blocks) for r in requests)
    rates = {policy: replay(requests, blocks, policy).hit_blocks for policy in (*ONLINE, "min")}
    assert len(set(rates.values())) == 1, rates


def test_reach_keeps_what_a_cycle_needs_next() -> None:
    """Three agents with anchors in turn and room for two of them: LRU never hits, MIN and reach do."""
    requests = [
        Request(
            f"s{i // 30}",
            "abc"[i % 3],
            (*(f"{'abc'[i % 3]}{k}" for k in range(8)), f"u{i}", f"v{i}"),
            8,
            i % 30 == 29,
            float(i),
        )
        for i in range(600)
    ]
    rates = {policy: replay(requests, 20, policy).hit_rate for policy in ("lru", "reach", "min")}
    assert rates["lru"] == 0.0
    assert rates["reach"] > 0.8 * rates["min"] > 0.2


GOOD = {"session": "s", "agent": "a", "blocks": ["x", "y"], "anchor_blocks": 1, "final": False, "t": 1.0}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"session": ""}, "session"),
        ({"session": None}, "session"),
        ({"agent": 7}, "agent"),
        ({"blocks": []}, "blocks"),
        ({"blocks": ["x", 2]}, "blocks"),
        ({"blocks": "xy"}, "blocks"),
        ({"blocks": ["x", "x"]}, "blocks"),
        ({"blocks": ["y"]}, "blocks"),
        ({"anchor_blocks": 3}, "anchor_blocks"),
        ({"anchor_blocks": -1}, "anchor_blocks"),
        ({"anchor_blocks": True}, "anchor_blocks"),
        ({"final": "no"}, "final"),
        ({"t": "now"}, "t"),
        ({"t": -1}, "t"),
        ({"t": float("nan")}, "t"),
        ({"t": 0.5}, "t"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_malformed_line_names_file_line_and_field(tmp_path: Path, change: dict, field: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n\n{json.dumps(GOOD | change)}\n")
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)
    assert f"line 3, field {field}:" in str(caught.value)


@pytest.mark.parametrize("line", ["{", "[]", "null", '"x"'])
def test_a_line_that_is_no_object_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(TraceError, match="line 1"):
        read_trace(path)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(GOOD | {"t": None}) + "\n" for _ in range(20)))
    assert main([str(path), "--blocks", "4", "--policy", "lru", "--policy", "min", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == {
        "policy": "lru",
        "blocks": 4,
        "requests": 18,
        "hit_rate": 0.5,
        "anchor_hit_rate": 1.0,
        "prompt_blocks": 36,
        "hit_blocks": 18,
    }
    assert lines[1] == lines[0] | {"policy": "min"}

    assert main([str(path), "--blocks", "1", "--policy", "lru"]) == 2
    assert "smallest possible cache is 2" in capsys.readouterr().err
    assert main([str(path), "--blocks", "4", "--policy", "fifo"]) == 2
    assert "known: lru, cachesage, cachescout, ttl, anchors, reach, min" in capsys.readouterr().err
    assert main([str(tmp_path / "absent"), "--blocks", "4", "--policy", "lru"]) == 2
    assert "cannot be read" in capsys.readouterr().err
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert main([str(empty), "--blocks", "4", "--policy", "lru"]) == 2
    assert "no request" in capsys.readouterr().err
