"""Our scheduler beside vLLM's own, block for block, and what the value order changes."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm.v1.request import RequestStatus

from replicas.cache.residency import COUNT_INTERVAL_S
from replicas.engine.messages import WARMUP_DEADLINE_S, EngineTables, decode, encode
from runtime_actor.messages import OWNER_XARG, WARMUP
from runtime_actor.tables import OTHER, ReachTables
from tests.serve.scheduler_harness import BLOCK_TOKENS, Engine, text, workload


def play(engine: Engine, seed: int, requests: int) -> list[tuple[Any, ...]]:
    for steps, name, prompt, agent, session, max_tokens, aborts in workload(seed, requests):
        for _ in range(steps):
            engine.step()
        engine.add(name, prompt, agent, session, max_tokens=max_tokens)
        if aborts:
            engine.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        engine.log.append(("waiting", len(engine.scheduler.waiting)))
    engine.drain()
    engine.log.append(("order", [b.block_id for b in engine.pool.free_block_queue.get_all_free_blocks()]))
    return engine.log


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize(
    "runtime",
    [{"policy": "lru"}, {"policy": "reach"}, {"policy": "reach", "weight": 0.0}],
    ids=["lru", "reach without tables", "reach with weight 0"],
)
def test_the_order_is_stock_vllms_block_for_block(
    tmp_path: Path, runtime: dict[str, Any], async_scheduling: bool
) -> None:
    stock = Engine(tmp_path, None, async_scheduling=async_scheduling)
    ours = Engine(tmp_path, runtime, async_scheduling=async_scheduling)
    expected, got = play(stock, 1, 400), play(ours, 1, 400)
    evictions = sum(h is not None for kind, what in expected if kind == "get" for _, h in what)
    preempted = ours.scheduler.keeper.exchange(EngineTables(), 0, 0).preemptions
    assert evictions > 500 and preempted > 10
    assert len(expected) == len(got)
    for position, (theirs, mine) in enumerate(zip(expected, got, strict=True)):
        assert theirs == mine, f"differs at {position}"
    assert ours.cached_tokens == stock.cached_tokens


# --- the value order --------------------------------------------------------------------------------

AGENTS = ("a", "b", OTHER)


def tables(first: list[list[float]]) -> bytes:
    n = len(AGENTS)
    return ReachTables(
        workload="w",
        agents=AGENTS,
        first=np.array(first, np.float32),
        contexts=np.zeros((0, 3), np.int16),
        context_values=np.zeros((0, n), np.float32),
        arrivals_per_request=0.0,
        gap_s=np.full(n, 1000.0, np.float32),
        end_probability=np.full(n, 0.1, np.float32),
    ).to_bytes()


A_COMES_BACK = tables([[0.9, 0, 0], [0.9, 0, 0], [0.0, 0, 0], [0.9, 0, 0]])


def exchange(engine: Engine, **down: Any) -> Any:
    scheduler = engine.scheduler
    answer = scheduler.keeper.exchange(decode(encode(EngineTables(**down)), EngineTables), 0, 0)
    return decode(encode(answer), type(answer))


def flood(engine: Engine, requests: int, agent: str = "b", offset: int = 0) -> None:
    """Unique prompts that together are larger than the cache."""
    for i in range(offset, offset + requests):
        engine.serve(f"flood{i}", text(f"flood{i}", 20 * BLOCK_TOKENS), agent, f"f{i}")


def cached_after_flood(folder: Path, runtime: dict[str, Any]) -> tuple[int, int]:
    """(cached tokens of a valued session's next turn, of an ended one's) after a flood."""
    engine = Engine(folder, runtime, num_blocks=100)
    exchange(engine, tables={"w": A_COMES_BACK})
    kept, ended = text("kept", 320), text("ended", 320)
    engine.serve("k1", kept, "a", "kept")
    engine.serve("e1", ended, "a", "ended")
    exchange(engine, ended=[("w", "ended")])
    flood(engine, 10)
    return engine.serve("k2", kept, "a", "kept"), engine.serve("e2", ended, "a", "ended")


def test_reach_keeps_the_valued_owners_blocks_under_pressure(tmp_path: Path) -> None:
    assert cached_after_flood(tmp_path, {"policy": "lru"}) == (0, 0)
    kept, ended = cached_after_flood(tmp_path, {"policy": "reach"})
    assert kept == 304 and ended == 0


def test_an_anchor_outlives_the_sessions_that_used_it(tmp_path: Path) -> None:
    engine = Engine(tmp_path, {"policy": "reach"}, num_blocks=100)
    exchange(engine, tables={"w": A_COMES_BACK})
    anchor = text("anchor", 160)
    for i in range(3):
        engine.serve(f"r{i}", anchor + text(f"own{i}", 64), "a", f"s{i}")
    report = exchange(engine)
    assert report.resident_anchors["w"]["a"] == 10
    (found,) = report.anchors
    assert np.frombuffer(found.token_ids, "<i4").tolist() == anchor
    for i in range(2):
        exchange(engine, ended=[("w", f"s{i}")])
    flood(engine, 10)
    assert engine.serve("new", anchor + text("new", 64), "a", "new") == 160
    assert engine.serve("again", anchor + text("own0", 64), "a", "s0") == 160


def test_the_order_switches_on_the_running_engine(tmp_path: Path) -> None:
    """reach -> lru: from then on what stock would do from the same state; and back."""
    engine = Engine(tmp_path, {"policy": "reach"}, num_blocks=100)
    exchange(engine, tables={"w": A_COMES_BACK})
    kept = text("kept", 320)
    engine.serve("k1", kept, "a", "kept")
    flood(engine, 6)
    report = exchange(engine, policy="lru")
    assert report.policy == "lru"
    flood(engine, 6, offset=6)
    assert engine.serve("k2", kept, "a", "kept") == 0
    assert exchange(engine, policy="reach", weight=1.0).policy == "reach"
    flood(engine, 6, offset=12)
    assert engine.serve("k3", kept, "a", "kept") == 304


def test_back_in_lru_the_order_is_stock_from_then_on(tmp_path: Path) -> None:
    stock, ours = Engine(tmp_path, None), Engine(tmp_path, {"policy": "reach"})
    exchange(ours, tables={"w": A_COMES_BACK})
    play(ours, 5, 80)
    ours.scheduler.reset_prefix_cache()
    exchange(ours, policy="lru")
    ours_order = [b.block_id for b in ours.pool.free_block_queue.get_all_free_blocks()]
    queue = stock.pool.free_block_queue
    for block in queue.get_all_free_blocks():
        queue.remove(block)
    queue.append_n([stock.pool.blocks[i] for i in ours_order])
    ours.log.clear()
    ours.rng.seed(7)
    stock.rng.seed(7)
    expected, got = play(stock, 6, 200), play(ours, 6, 200)
    for position, (theirs, mine) in enumerate(zip(expected, got, strict=True)):
        assert theirs == mine, f"differs at {position}"


def test_the_engine_goes_back_to_stock_order_where_values_lose(tmp_path: Path) -> None:
    """Values keep what never comes again, and what comes again would fit in the cache but for that."""
    engine = Engine(tmp_path, {"policy": "reach"})
    exchange(engine, tables={"w": A_COMES_BACK})
    for i in range(7):
        engine.serve(f"a{i}", text(f"once{i}", 270), "a", f"a{i}")
    hits = [engine.serve(f"b{i}", text(f"again{i % 3}", 270), "b", f"b{i % 3}") for i in range(24)]
    assert exchange(engine).fallbacks == 1
    assert sum(hits[:3]) == 0 and min(hits[-3:]) == 270 // BLOCK_TOKENS * BLOCK_TOKENS


@pytest.mark.parametrize("kind", ["aborted", "reads no cache"])
def test_what_stock_order_had_not_either_counts_for_nothing(tmp_path: Path, kind: str) -> None:
    """Nobody switches values off by requests that could hit nothing in any order."""
    engine = Engine(tmp_path, {"policy": "reach"})
    exchange(engine, tables={"w": A_COMES_BACK})
    for i in range(10):
        tokens = text(f"p{i}", 300)
        engine.add(f"first{i}", tokens, "b", f"s{i}")
        if kind == "aborted":
            engine.scheduler.finish_requests(f"first{i}", RequestStatus.FINISHED_ABORTED)
        engine.drain()
        engine.add(f"second{i}", tokens, "b", f"s{i}")
        if kind == "reads no cache":
            engine.scheduler.requests[f"second{i}"].skip_reading_prefix_cache = True
        engine.drain()
        assert engine.cached_tokens[f"second{i}"] == 0
    assert exchange(engine).fallbacks == 0


def test_waiting_and_preempted_requests_keep_their_blocks(tmp_path: Path) -> None:
    engine = Engine(tmp_path, {"policy": "reach"}, num_blocks=40)
    exchange(engine, tables={"w": A_COMES_BACK})
    for i in range(8):
        engine.add(f"r{i}", text(f"p{i}", 160), "b", f"s{i}", max_tokens=60)
    engine.drain()
    assert exchange(engine).preemptions > 0
    waiting = engine.serve("w1", text("w", 160), "b", "w")
    assert waiting == 0
    engine.add("w2", text("w", 160) + text("more", 32), "b", "w")
    keeper = engine.scheduler.keeper
    owner = keeper.directory.claims.get("w2").rest
    keeper.directory.changed()
    assert owner.value > 1.0
    engine.drain()
    assert engine.cached_tokens["w2"] == 160


# --- what must never stop the engine ----------------------------------------------------------------

BAD_TAGS: list[Any] = [
    {},
    {OWNER_XARG: None},
    {OWNER_XARG: "a"},
    {OWNER_XARG: ["w", "a", "s"]},
    {OWNER_XARG: ["w", "a", "s", "unknown"]},
    {OWNER_XARG: [1, 2, 3, 4]},
    {OWNER_XARG: ["", "", "", "demand"]},
    {OWNER_XARG: ["w" * 5000, "\x00", "\ud800", "demand"]},
]


@pytest.mark.parametrize("position", range(len(BAD_TAGS)))
def test_a_bad_owner_tag_makes_a_request_nobodys(tmp_path: Path, position: int) -> None:
    engine = Engine(tmp_path, {"policy": "reach"})
    engine.add("r", text("r", 100), extra=BAD_TAGS[position])
    engine.drain()
    report = exchange(engine, tables={"w": A_COMES_BACK})
    assert report.faults == 0 and report.requests <= 1


def test_bad_input_from_the_server_is_refused_by_name(tmp_path: Path) -> None:
    engine = Engine(tmp_path, {"policy": "reach"})
    report = exchange(
        engine,
        tables={"w": b"nonsense", "other": A_COMES_BACK},
        ended=[("nowhere", "nobody")],
        policy="magic",
    )
    assert len(report.rejected) == 3 and "magic" in report.rejected[2]
    assert report.policy == "reach"


def test_a_fault_in_the_policy_falls_back_to_stock_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(tmp_path, {"policy": "reach"}, num_blocks=60)
    exchange(engine, tables={"w": A_COMES_BACK})
    monkeypatch.setattr(engine.scheduler.keeper.directory, "changed", lambda: 1 / 0)
    flood(engine, 8)
    report = exchange(engine, policy="reach")
    assert report.faults == 1 and report.policy == "lru"
    flood(engine, 4, offset=8)


# --- warm-ups and probes ----------------------------------------------------------------------------


def test_a_warm_up_is_useful_at_its_agents_first_hit(tmp_path: Path) -> None:
    engine = Engine(tmp_path, {"policy": "reach"})
    anchor = text("anchor", 160)
    engine.serve("w1", anchor, "a", "action-1", kind=WARMUP, max_tokens=1)
    assert exchange(engine).warmups == []
    engine.serve("other", anchor + text("x", 40), "b", "s1")
    assert exchange(engine).warmups == []
    engine.serve("r1", anchor + text("y", 40), "a", "s2")
    report = exchange(engine)
    assert [(w.action_id, w.outcome, w.reason, w.blocks) for w in report.warmups] == [("action-1", "useful", "hit", 10)]
    assert report.requests == 2 and len(exchange(engine, with_sessions=True).sessions) == 2


def test_a_warm_up_is_wasted_when_evicted_or_late(tmp_path: Path) -> None:
    engine = Engine(tmp_path, {"policy": "lru"}, num_blocks=60)
    engine.serve("w1", text("anchor", 160), "a", "action-1", kind=WARMUP, max_tokens=1)
    flood(engine, 4)
    assert [(w.outcome, w.reason) for w in exchange(engine).warmups] == [("wasted", "evicted")]
    engine.serve("w2", text("anchor", 160), "a", "action-2", kind=WARMUP, max_tokens=1)
    engine.scheduler.keeper._clock = lambda: time.monotonic() + WARMUP_DEADLINE_S
    report = exchange(engine)
    assert [(w.outcome, w.reason) for w in report.warmups] == [("wasted", "deadline")]
    assert report.requests == 4


def test_resident_blocks_are_counted_and_the_counts_come_down(tmp_path: Path) -> None:
    engine = Engine(tmp_path, {"policy": "reach"}, num_blocks=60)
    play(engine, 3, 100)
    report = exchange(engine)
    blocks = engine.pool.blocks
    owner_of = engine.scheduler.keeper.owners.owner_of
    assert all(owner_of[b.block_id] is not None for b in blocks if b.block_hash is not None)
    counted: Counter[str] = Counter()
    for owner in filter(None, owner_of):
        counted.update(agent for _, agent in owner.agents)
    assert report.resident["w"] == dict(counted)
    assert all(n <= report.resident["w"][a] for a, n in report.resident_anchors["w"].items())
    hashed = sum(block.block_hash is not None for block in blocks)
    assert report.evicted_blocks > 100 and report.cached_blocks <= hashed
    engine.scheduler.reset_prefix_cache()
    later_s = COUNT_INTERVAL_S * len(blocks)
    engine.scheduler.keeper._clock = lambda: time.monotonic() + later_s
    assert exchange(engine).resident == {}
