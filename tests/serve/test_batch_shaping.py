"""The waiting queue under a policy, in vLLM's real scheduler: what it gains, whom it may pass over, and that it
is vLLM's own where nothing orders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.core.sched.request_queue import FCFSRequestQueue, PriorityRequestQueue, create_request_queue
from vllm.v1.request import RequestStatus

from replicas.engine.messages import EngineReport, EngineTables, decode, encode
from replicas.engine.waiting_queue import QueueBounds, ShapedQueue
from runtime_actor.policies.base import Policy, QueuedPrefill, RequestView
from runtime_actor.policies.catalogue import NoClock
from runtime_actor.policies.host import PolicyHost
from runtime_actor.settings import PluggedSettings
from tests.serve.scheduler_harness import BLOCK_TOKENS, Engine, text, workload

SHAPING = {"name": "batch_shaping", "enabled": True, "options": {"max_passed_over": 6}}
ANCHORS, REQUESTS, ANCHOR_TOKENS = 8, 64, 384


def shaped(**options: Any) -> dict[str, Any]:
    return {"policy": "lru", "policies": [{**SHAPING, "options": {"max_passed_over": 6, **options}}]}


def burst(engine: Engine, priority_of: Any = lambda number: 0) -> list[str]:
    """Sessions of eight agents, one after the other round and round; the order in which they are started."""
    for number in range(REQUESTS):
        agent = f"a{number % ANCHORS}"
        prompt = text(agent, ANCHOR_TOKENS) + text(f"own{number}", 40)
        engine.add(f"r{number}", prompt, agent, f"s{number}", max_tokens=4, priority=priority_of(number))
    engine.drain()
    return list(engine.cached_tokens)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_burst_finds_its_anchors_cached(tmp_path: Path, policy: str) -> None:
    share = {}
    for name, runtime in (("stock", None), ("lru", {"policy": "lru"}), ("shaped", shaped())):
        engine = Engine(tmp_path, runtime, num_blocks=40, policy=policy, max_num_seqs=2)
        order = burst(engine)
        assert len(order) == REQUESTS
        share[name] = sum(engine.cached_tokens.values()) / (REQUESTS * ANCHOR_TOKENS)
    assert share["stock"] == share["lru"]
    assert share["shaped"] > share["stock"] + 0.35, share


def passed_over(order: list[str]) -> int:
    """How often the request that was passed over most often was."""
    numbers = [int(name[1:]) for name in order]
    return max(sum(later > number for later in numbers[:place]) for place, number in enumerate(numbers))


def test_its_counters_are_in_the_engines_report(tmp_path: Path) -> None:
    engine = Engine(tmp_path, shaped(), num_blocks=40, max_num_seqs=2)
    burst(engine)
    report = engine.scheduler.keeper.exchange(EngineTables(), 0, 0)
    (row,) = report.policies
    assert (row["name"], row["seat"], row["enabled"], row["failures"]) == ("batch_shaping", "engine", True, 0)
    assert row["counters"]["ordered"] > 0 and report.passed_over > 0
    assert decode(encode(report), EngineReport) == report


@pytest.mark.parametrize("bound", [1, 3, 6, 20])
def test_nobody_is_passed_over_more_often_than_the_bound(tmp_path: Path, bound: int) -> None:
    engine = Engine(tmp_path, shaped(max_passed_over=bound), num_blocks=40, max_num_seqs=2)
    assert 0 < passed_over(burst(engine)) <= bound


class Newest(Policy):
    """Always wants the last one: the worst that a policy can ask of the bound."""

    name = "newest"
    in_place = True

    def order(self, items: Sequence[RequestView | QueuedPrefill]) -> list[tuple[float, ...] | None]:
        return [(float(-index),) for index in range(len(items))]


@pytest.mark.parametrize("bound", [1, 4, 9])
def test_the_bound_holds_against_a_hostile_policy(tmp_path: Path, bound: int) -> None:
    """Every request is passed over at most `bound` times while others keep coming; all are served."""
    engine = Engine(tmp_path, {"policy": "lru"}, num_blocks=200, max_num_seqs=2)
    host = PolicyHost([Newest(PluggedSettings("newest"), NoClock())], 16)
    scheduler = engine.scheduler
    queue = ShapedQueue(scheduler.policy, host, QueueBounds(64, bound), lambda _: ("", None), lambda _: False)
    scheduler.waiting = queue
    for number in range(120):
        engine.add(f"r{number}", text(f"r{number}", 64), "a", f"s{number}", max_tokens=2)
        if number % 3 == 2:
            engine.step()
    engine.drain()
    order = list(engine.cached_tokens)
    assert len(order) == 120
    assert passed_over(order) == bound, "it is used in full, and never exceeded"
    assert not queue._passed and not queue._groups, "nothing is kept of those that are gone"


def test_a_priority_comes_before_any_policy(tmp_path: Path) -> None:
    engine = Engine(tmp_path, shaped(), num_blocks=40, policy="priority", max_num_seqs=2)
    order = burst(engine, priority_of=lambda number: -(number // 16))
    ranks = [int(name[1:]) // 16 for name in order]
    assert ranks == sorted(ranks, reverse=True)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("runtime", [{"policy": "lru"}, {"policy": "lru", "policies": [{**SHAPING, "enabled": False}]}])
def test_off_is_the_queue_of_vllm(tmp_path: Path, policy: str, runtime: dict[str, Any]) -> None:
    engine = Engine(tmp_path, runtime, policy=policy)
    assert type(engine.scheduler.waiting) in (FCFSRequestQueue, PriorityRequestQueue)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_without_known_anchors_every_step_is_that_of_vllm(tmp_path: Path, policy: str) -> None:
    """A mixed load with preemptions and aborts, nobody's requests: block for block the same."""
    logs = []
    for runtime in (None, shaped()):
        engine = Engine(tmp_path, runtime, num_blocks=60, seed=3, policy=policy, max_num_seqs=4)
        for steps, name, prompt, _, _, max_tokens, aborts in workload(3, 60):
            for _ in range(steps):
                if engine.scheduler.has_unfinished_requests():
                    engine.step()
            engine.add(name, prompt, max_tokens=max_tokens)
            if aborts:
                engine.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        engine.drain()
        logs.append(engine.log)
    assert logs[0] == logs[1]


def test_the_queue_is_vllms_but_for_its_order(tmp_path: Path) -> None:
    """Each method against vLLM's queue, with a policy that has no opinion."""
    engine = Engine(tmp_path, {"policy": "lru"}, policy="priority")
    silent = PolicyHost([], 16)
    ours = ShapedQueue(engine.scheduler.policy, silent, QueueBounds(), lambda _: ("", None), lambda _: False)
    theirs = create_request_queue(engine.scheduler.policy)
    requests = [
        engine.request(f"q{n}", text("q", BLOCK_TOKENS), 2, priority=n % 3, arrival_time=float(n)) for n in range(12)
    ]
    for queue in (ours, theirs):
        for request in requests[:8]:
            queue.add_request(request)
        queue.prepend_request(requests[8])
        queue.remove_request(requests[3])
        queue.remove_requests([requests[0], requests[5]])
    assert [r.request_id for r in ours] == [r.request_id for r in theirs]
    assert (len(ours), bool(ours)) == (len(theirs), bool(theirs)) == (6, True)
    while theirs:
        assert ours.peek_request() is theirs.peek_request()
        assert ours.pop_request() is theirs.pop_request()
    for queue in (ours, theirs):
        with pytest.raises(IndexError):
            queue.peek_request()
