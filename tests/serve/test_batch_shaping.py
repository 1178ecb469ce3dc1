"""The waiting queue under a policy, in vLLM's real scheduler: what it gains, whom it may pass over, and that it
is vLLM's own where nothing orders."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.sched.request_queue import FCFSRequestQueue, PriorityRequestQueue, create_request_queue
from vllm.v1.engine.core import EngineCore
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar
from vllm.v1.structured_output.request import StructuredOutputRequest

from replicas.engine.messages import EngineReport, EngineTables, decode, encode, open_answer
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


# --- switched while it runs -----------------------------------------------------------------------------


def told(engine: Engine, *policies: dict[str, Any]) -> EngineReport:
    """What the engine answers to a hand-down with these settings, through EngineCore's own method."""
    core: Any = SimpleNamespace(scheduler=engine.scheduler)
    down = EngineTables(queue_policies=json.dumps(policies))
    answer = EngineCore.agent_runtime_exchange(core, encode(down))  # type: ignore[attr-defined]
    return open_answer(answer, EngineReport)


def switched(engine: Engine, enabled: bool, **options: Any) -> EngineReport:
    return told(engine, {**SHAPING, "enabled": enabled, "options": {"max_passed_over": 6, **options}})


def blocked(engine: Engine, name: str) -> Request:
    """A request that waits for its grammar, which vLLM keeps in `skipped_waiting`."""
    request = engine.request(name, text(name, 40), 3, arrival_time=float(len(engine.log)))
    request.structured_output_request = StructuredOutputRequest(StructuredOutputsParams(regex="a"))
    request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    engine.scheduler.add_request(request)
    return request


def compiled(request: Request) -> None:
    assert request.structured_output_request is not None
    request.structured_output_request.grammar = Mock(StructuredOutputGrammar)


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_switched_again_and_again_every_step_is_that_of_vllm(
    tmp_path: Path, policy: str, async_scheduling: bool
) -> None:
    """The mixed load without known anchors, with preemptions, aborts and requests that wait for a grammar: block for
    block the same, whatever queue they wait in."""
    logs, swaps = [], []
    for runtime in (None, {"policy": "lru"}):
        rng = random.Random(5)
        engine = Engine(tmp_path, runtime, 60, seed=3, policy=policy, max_num_seqs=4, async_scheduling=async_scheduling)

        def step(engine: Engine = engine, rng: random.Random = rng, is_stock: bool = runtime is None) -> None:
            engine.step()
            if not is_stock and rng.random() < 0.3:
                swaps.append([request.status for request in engine.scheduler.waiting])
                assert switched(engine, rng.random() < 0.5, window=rng.randrange(2, 9)).rejected == []

        held: list[Request] = []
        for number, (steps, name, prompt, _, _, max_tokens, aborts) in enumerate(workload(3, 90)):
            for _ in range(steps):
                if engine.scheduler.has_unfinished_requests():
                    step()
            engine.add(name, prompt, max_tokens=max_tokens, priority=number % 3)
            if aborts:
                engine.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            if number % 7 == 3:
                held.append(blocked(engine, f"held{number}"))
            if number % 7 == 6:
                compiled(held.pop(0))
        for request in held:
            compiled(request)
        while engine.scheduler.has_unfinished_requests():
            step()
        logs.append((engine.log, engine.cached_tokens))
    assert logs[0] == logs[1]
    assert sum(len(waiting) > 1 for waiting in swaps) > 50
    assert any(RequestStatus.PREEMPTED in waiting[:1] for waiting in swaps)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_off_in_the_middle_is_stock_and_on_again_it_gains_again(tmp_path: Path, policy: str) -> None:
    engine = Engine(tmp_path, shaped(), num_blocks=40, policy=policy, max_num_seqs=2)
    for number in range(REQUESTS):
        agent = f"a{number % ANCHORS}"
        prompt = text(agent, ANCHOR_TOKENS) + text(f"own{number}", 40)
        engine.add(f"r{number:02}", prompt, agent, f"s{number}", max_tokens=4)

    def start(until: int) -> list[str]:
        before = len(engine.cached_tokens)
        while len(engine.cached_tokens) < until:
            engine.step()
        return list(engine.cached_tokens)[before:]

    def share(names: list[str]) -> float:
        return sum(engine.cached_tokens[name] for name in names) / (len(names) * ANCHOR_TOKENS)

    start(16)
    report = switched(engine, False)
    assert type(engine.scheduler.waiting) in (FCFSRequestQueue, PriorityRequestQueue)
    (row,) = report.policies
    assert row["enabled"] is False and row["counters"]["ordered"] > 0
    waiting = [request.request_id for request in engine.scheduler.waiting]
    assert waiting == sorted(waiting, key=lambda name: int(name[1:])), "vLLM's own order: as they came"
    off = start(32)
    assert off == waiting[: len(off)]
    assert switched(engine, True).policies[0]["enabled"] is True
    on = start(REQUESTS)
    engine.drain()
    assert share(on) > share(off) + 0.3, (share(on), share(off))
    assert len(engine.cached_tokens) == REQUESTS
    report = switched(engine, True)
    assert report.policies[0]["counters"]["ordered"] > row["counters"]["ordered"]
    assert passed_over(list(engine.cached_tokens)) <= 6, "over both times together"
    assert report.passed_over > 0 and report.waiting == report.running == 0


def test_options_change_while_it_is_on(tmp_path: Path) -> None:
    engine = Engine(tmp_path, shaped(max_passed_over=20), num_blocks=40, max_num_seqs=2)
    queue = engine.scheduler.waiting
    assert isinstance(queue, ShapedQueue)
    assert switched(engine, True, max_passed_over=1).rejected == []
    assert engine.scheduler.waiting is queue
    assert passed_over(burst(engine)) == 1


def test_what_is_refused_changes_nothing(tmp_path: Path) -> None:
    engine = Engine(tmp_path, shaped(), num_blocks=40, max_num_seqs=2)
    queue = engine.scheduler.waiting
    for policies, reason in (
        ([{**SHAPING, "options": {"window": 1}}], "policies.batch_shaping.options.window: 1 is not allowed"),
        ([SHAPING, {"name": "mine", "path": "no_such:Policy"}], "policies.mine.path"),
        ([SHAPING, SHAPING], "'batch_shaping' is listed twice"),
        ([7], "policies[0]: 7"),
    ):
        report = told(engine, *policies)  # type: ignore[arg-type]
        assert len(report.rejected) == 1 and reason in report.rejected[0], report.rejected
        assert engine.scheduler.waiting is queue and report.policies[0]["enabled"]
    core: Any = SimpleNamespace(scheduler=engine.scheduler)
    down = EngineTables(queue_policies="[" * 100_000, policy="lru", weight=0.5)
    answer = EngineCore.agent_runtime_exchange(core, encode(down))  # type: ignore[attr-defined]
    report = open_answer(answer, EngineReport)
    assert "queue_policies" in report.rejected[0] and report.weight == 0.5, "the rest of the hand-down is taken"
    assert len(burst(engine)) == REQUESTS


def test_policies_of_other_seats_are_no_business_of_an_engine(tmp_path: Path) -> None:
    engine = Engine(tmp_path, {"policy": "lru"})
    report = told(engine, {"name": "fairness", "enabled": True}, {"name": "kv_cache"}, {**SHAPING, "enabled": False})
    assert report.rejected == [] and [row["name"] for row in report.policies] == ["batch_shaping"]
    assert type(engine.scheduler.waiting) is FCFSRequestQueue
