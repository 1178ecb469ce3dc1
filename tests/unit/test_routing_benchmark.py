"""The benchmark of routing: what it finds where it can be said beforehand, and that the clock is the trace's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.cache import PrefixCache
from benchmarks.policies.known import make
from benchmarks.routing import ANSWER_S, POLICIES, Cluster, Replica, RoutedCluster, main, play
from benchmarks.trace_format import Request
from tests.unit.recorded_kit import write_set

SLOW = Cluster(replicas=2, blocks=64, order="lru", token_s=1.0 / 32, exchange_s=1.0)


def request(session: str, agent: str, blocks: int, at_s: float, anchor_blocks: int = 0, final: bool = False) -> Request:
    shared = tuple(f"{agent}/{k}" for k in range(anchor_blocks))
    return Request(session, agent, (*shared, *(f"{session}/{agent}/{k}" for k in range(anchor_blocks, blocks))),
                   anchor_blocks, final, at_s)  # fmt: skip


def test_an_engine_computes_one_prompt_after_the_other() -> None:
    replica = Replica(PrefixCache(64, make("lru")))
    assert replica.serve(request("s", "a", 4, 0.0), 0, 0.0, SLOW.token_s) == (0, 4.0)
    assert replica.serve(request("t", "b", 4, 1.0), 1, 1.0, SLOW.token_s) == (0, 7.0)
    assert replica.load(4.0 + ANSWER_S - 0.1) == 2 and replica.load(4.0 + ANSWER_S) == 1
    assert replica.serve(request("s", "a", 4, 100.0), 2, 100.0, SLOW.token_s) == (3, 1.0)
    assert replica.resident() == {"a": 4, "b": 4} or replica.resident() == {"a": 5, "b": 4}, "the last block twice"


def test_an_anchor_is_known_once_two_sessions_share_it() -> None:
    replica = Replica(PrefixCache(64, make("lru")))
    for index, session in enumerate("sst"):
        assert replica.anchors == {}
        replica.serve(request(session, "a", 8, 0.0, anchor_blocks=4), index, 0.0, SLOW.token_s)
    assert replica.anchors == {"a": 128}


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "stock"])
def test_a_session_that_nobody_disturbs_stays(policy: str) -> None:
    routed = RoutedCluster(SLOW, policy, seed=1)
    places = {routed.serve(request("s", "a", 8, 100.0 * n), n)[:2] for n in range(1, 12)}
    assert len({name for name, _ in places}) == 1 and {hits for _, hits in places} == {0, 7}


def test_stock_goes_anywhere() -> None:
    routed = RoutedCluster(SLOW, "stock", seed=1)
    assert {routed.serve(request("s", "a", 8, 100.0 * n), n)[0] for n in range(12)} == {"r0", "r1"}


def test_another_sessions_anchor_draws_and_a_busy_replica_does_not() -> None:
    cluster = Cluster(replicas=2, blocks=256, order="lru", token_s=1.0 / 3200, exchange_s=1.0)
    routed = RoutedCluster(cluster, "routing", seed=1)
    home = {routed.serve(request(f"s{n}", "a", 40, 20.0 * n, anchor_blocks=32), n)[0] for n in range(6)}
    assert len(home) == 1
    crowd = [routed.serve(request(f"t{n}", "a", 40, 200.0, anchor_blocks=32), 6 + n)[0] for n in range(12)]
    assert set(crowd) == {"r0", "r1"} and crowd[0] in home


def test_the_figures_are_of_all_but_the_first_tenth() -> None:
    trace = [request("s", "a", 8, 100.0 * n, final=n == 19) for n in range(20)]
    figures = play(trace, SLOW, "session", seed=1)
    assert figures == {"found": pytest.approx(7 / 8), "busiest": 1.0, "first token": pytest.approx(1 / 8)}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_set(tmp_path / "chain", {f"s{n}": "abc" for n in range(6)})
    asked = [str(tmp_path), "--replicas", "2", "--seeds", "1,2", "--requests", "40", "--sessions", "1", "--json"]
    main([*asked, "--policy", "stock", "--policy", "routing"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["policy"] for row in rows] == ["stock", "routing", "one cache"]
    assert all(row["lowest"] <= row["found"] <= row["highest"] for row in rows)
    assert all(0.5 <= row["busiest"] <= 1.0 and row["first token"] > 0.0 for row in rows[:2])
