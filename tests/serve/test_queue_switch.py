"""The waiting queue swapped between vLLM's own and the shaped one at any moment, against vLLM's own all along."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.request_queue import RequestQueue, SchedulingPolicy, create_request_queue
from vllm.v1.request import Request, RequestStatus

from replicas.engine import shaping
from replicas.engine.shaping import QueueSeat
from replicas.engine.waiting_queue import QueueBounds, ShapedQueue
from runtime_actor.policies.base import ENGINE, Ordered, Policy
from runtime_actor.settings import AnyPolicySettings, PluggedSettings

TOKENS = 16
OWN = {policy: type(create_request_queue(policy)) for policy in SchedulingPolicy}


class Newest(Policy):
    """Always wants the last one: the worst that a policy can ask of a queue."""

    name = "newest"
    seat = ENGINE
    in_place = True

    def __init__(self, settings: AnyPolicySettings, substrate: Any) -> None:
        super().__init__(settings, substrate)
        self.orders = 0
        if settings.weight == 0.0:
            raise OSError("no such disk")

    def order(self, items: Sequence[Ordered]) -> list[tuple[float, ...] | None]:
        self.orders += 1
        return [(float(-index),) for index in range(len(items))]

    def counters(self) -> dict[str, int]:
        return {"orders": self.orders}


class Silent(Newest):
    """On, and without an opinion."""

    name = "silent"

    def order(self, items: Sequence[Ordered]) -> list[tuple[float, ...] | None]:
        return [None] * len(items)


def newest(enabled: bool = True, **changes: Any) -> PluggedSettings:
    return PluggedSettings("newest", enabled=enabled, path=f"{__name__}:Newest", **changes)


def silent(enabled: bool = True) -> PluggedSettings:
    return PluggedSettings("silent", enabled=enabled, path=f"{__name__}:Silent")


def shaping_of(enabled: bool = True, **options: Any) -> PluggedSettings:
    return PluggedSettings("batch_shaping", enabled=enabled, options=options)


class Bench:
    """A seat and the queue that a scheduler would have with it."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.claims: dict[str, Any] = {}
        self.cached: set[bytes] = set()
        keeper: Any = SimpleNamespace(
            block_tokens=(TOKENS,), hash_block_tokens=TOKENS, directory=SimpleNamespace(claims=self.claims)
        )
        pool = SimpleNamespace(get_cached_block=lambda anchor, groups: [anchor] if anchor in self.cached else None)
        self.policy = policy
        self.seat = QueueSeat(policy, keeper, pool)
        self.queue: RequestQueue = create_request_queue(policy)

    def configure(self, *entries: AnyPolicySettings) -> list[str]:
        self.queue, rejected = self.seat.configure(entries, self.queue)
        assert (self.queue is self.seat.shaped) == isinstance(self.queue, ShapedQueue)
        return rejected

    @property
    def names(self) -> list[str]:
        return [request.request_id for request in self.queue]

    def add(self, number: int, priority: int = 0, group: bytes = b"") -> Request:
        made = request(number, priority)
        if group:
            made.block_hashes = [group]
            self.claims[made.request_id] = SimpleNamespace(anchor_tokens=TOKENS)
        self.queue.add_request(made)
        return made


def request(number: int, priority: int = 0) -> Request:
    params = SamplingParams(max_tokens=1)
    return Request(f"r{number}", [1], params, None, arrival_time=float(number), priority=priority)


class Swaps(RuleBasedStateMachine):
    """`own` is vLLM's queue, which is told of the same things and loses what was taken from ours."""

    @initialize(policy=st.sampled_from(list(SchedulingPolicy)))
    def start(self, policy: SchedulingPolicy) -> None:
        self.bench = Bench(policy)
        self.own = create_request_queue(policy)
        self.bound: int | None = None
        """How often one may have been passed over and still be passed over; None: nobody may be."""
        self.passed: dict[str, int] = {}
        self.taken: list[Request] = []
        self.number = 0
        self.gone = 0

    @rule(priority=st.integers(-1, 1), group=st.sampled_from([b"", b"a", b"b"]))
    def add(self, priority: int, group: bytes) -> None:
        self.number += 1
        self.own.add_request(self.bench.add(self.number, priority, group))

    @rule(group=st.sampled_from([b"a", b"b"]), is_cached=st.booleans())
    def cache_changes(self, group: bytes, is_cached: bool) -> None:
        (self.bench.cached.add if is_cached else self.bench.cached.discard)(group)
        if self.bench.seat.shaped is not None:
            self.bench.seat.shaped.refresh()

    @rule(
        kind=st.sampled_from([shaping_of, newest, silent]),
        window=st.integers(2, 6),
        bound=st.integers(1, 4),
        others=st.booleans(),
    )
    def switch_on(self, kind: Callable[..., Any], window: int, bound: int, others: bool) -> None:
        options = {"window": window, "max_passed_over": bound}
        entries = [] if kind is shaping_of else [kind()]
        entries += [shaping_of(kind is not silent, **options)]
        entries += [silent(False)] if others and kind is not silent else []
        assert self.bench.configure(*entries) == []
        assert isinstance(self.bench.queue, ShapedQueue)
        self.bound = QueueBounds().max_passed_over if kind is silent else bound

    @rule(is_listed=st.booleans())
    def switch_off(self, is_listed: bool) -> None:
        assert self.bench.configure(*([shaping_of(False), newest(False)] if is_listed else [])) == []
        assert type(self.bench.queue) is OWN[self.bench.policy]
        self.bound = None

    @rule(data=st.data())
    def refused(self, data: st.DataObject) -> None:
        before, names = self.bench.queue, self.bench.names
        entry = data.draw(st.sampled_from([shaping_of(window=1), newest(weight=0.0), PluggedSettings("x", path="x:Y")]))
        kept = [hosted.policy.settings for hosted in self.bench.seat._host.policies if hosted.name != entry.name]
        former = [hosted.policy.settings for hosted in self.bench.seat._host.policies if hosted.name == entry.name]
        (reason,) = self.bench.configure(*kept, entry)
        assert entry.name in reason
        assert self.bench.queue is before and self.bench.names == names
        assert sorted(h.name for h in self.bench.seat._host.policies) == sorted(s.name for s in [*kept, *former])

    @precondition(lambda self: self.own)
    @rule()
    def pop(self) -> None:
        order = list(self.own)
        shown = self.bench.queue.peek_request()
        popped = self.bench.queue.pop_request()
        assert popped is shown
        if self.bound is None or order[0].status == RequestStatus.PREEMPTED:
            assert popped is order[0]
        for before in order[: order.index(popped)]:
            assert before.status != RequestStatus.PREEMPTED
            assert self.bound is not None and self.passed.get(before.request_id, 0) < self.bound
            assert self.bench.policy == SchedulingPolicy.FCFS or before.priority == popped.priority
            self.passed[before.request_id] = self.passed.get(before.request_id, 0) + 1
        self.own.remove_request(popped)
        self.passed.pop(popped.request_id, None)
        self.taken.append(popped)
        self.gone += 1

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        back = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        back.status = RequestStatus.PREEMPTED
        self.bench.queue.prepend_request(back)
        self.own.prepend_request(back)
        self.gone -= 1

    @precondition(lambda self: self.own)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(list(self.own)), min_size=1, max_size=3, unique=True))
        for queue in (self.bench.queue, self.own):
            if len(chosen) == 1:
                queue.remove_request(chosen[0])
            else:
                queue.remove_requests(chosen)
        for one in chosen:
            self.passed.pop(one.request_id, None)
        self.gone += len(chosen)

    @invariant()
    def the_same_requests_wait_in_vllms_own_order(self) -> None:
        if hasattr(self, "own"):
            assert [id(one) for one in self.bench.queue] == [id(one) for one in self.own]
            assert len(self.bench.queue) == len(self.own) == self.number - self.gone
            assert bool(self.bench.queue) == bool(self.own)
            assert self.bench.seat.passed_over >= sum(self.passed.values())
            if self.bench.seat.shaped is not None:
                assert dict(self.bench.seat.shaped.passed) == self.passed


Swaps.TestCase.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_swapped_at_random_it_holds_what_vllms_own_holds = Swaps.TestCase


@pytest.mark.parametrize("policy", list(SchedulingPolicy))
def test_off_is_a_queue_of_vllms_own_and_stays_the_same_object(policy: SchedulingPolicy) -> None:
    bench = Bench(policy)
    first = bench.queue
    assert bench.configure(shaping_of(False)) == [] and bench.queue is first, "nothing was on: nothing is swapped"
    order = random.Random(1).sample(range(40), 40)
    for number in order:
        bench.add(number, number % 3)
    before = bench.names
    bench.configure(shaping_of())
    shaped = bench.queue
    assert type(shaped) is ShapedQueue and bench.names == before
    bench.configure(shaping_of(window=5), silent())
    assert bench.queue is shaped and bench.seat.shaped is not None and bench.seat.shaped.bounds.window == 5
    bench.configure(shaping_of(False, window=5), silent(False))
    assert type(bench.queue) is OWN[policy]
    assert [bench.queue.pop_request().request_id for _ in range(40)] == before


def test_switching_doesnt_lift_the_bound() -> None:
    """One that was passed over twice is passed over no third time, whatever was on in between."""
    bench = Bench(SchedulingPolicy.FCFS)
    on, off = ([newest(flag), shaping_of(flag, max_passed_over=2)] for flag in (True, False))
    bench.configure(*on)
    first = bench.add(0)
    for number in range(1, 8):
        bench.add(number)
    assert [bench.queue.pop_request().request_id for _ in range(2)] == ["r7", "r6"]
    for _ in range(3):
        bench.configure(*off)
        bench.configure(*on)
    assert bench.queue.pop_request() is first
    assert bench.seat.passed_over == 7 + 6, "the total goes on too"


def test_counters_go_on_while_it_is_off_and_when_options_change() -> None:
    bench = Bench(SchedulingPolicy.FCFS)
    bench.cached.add(b"a")

    def served(count: int) -> None:
        for number in range(count):
            bench.add(number, group=b"a")
            bench.add(number + 100, group=b"b")
        while bench.queue:
            bench.queue.pop_request()

    def row() -> dict[str, Any]:
        (found,) = bench.seat.policy_rows()
        return found

    bench.configure(shaping_of(False))
    assert (row()["enabled"], row()["counters"]) == (False, {})
    bench.configure(shaping_of())
    served(4)
    once = row()["counters"]["ordered"]
    assert once > 0
    bench.configure(shaping_of(False))
    served(4)
    assert (row()["enabled"], row()["counters"]) == (False, {"ordered": once})
    bench.configure(shaping_of(window=4))
    assert (row()["enabled"], row()["counters"]) == (True, {"ordered": once})
    served(4)
    twice = row()["counters"]["ordered"]
    assert twice > once
    bench.configure(shaping_of(window=6))
    assert row()["counters"] == {"ordered": twice}
    passed_over = bench.seat.passed_over
    bench.configure()
    assert bench.seat.policy_rows() == [] and bench.seat.passed_over == passed_over > 0


def test_what_failed_is_switched_off_alone_and_forgiven_when_it_is_switched_anew() -> None:
    bench = Bench(SchedulingPolicy.FCFS)
    bench.configure(shaping_of(), newest())
    hosted = bench.seat._host.get("newest")
    assert hosted is not None
    hosted.failures, hosted.switched_off = 16, True
    bench.configure(shaping_of(window=4), newest())
    rows = {row["name"]: row for row in bench.seat.policy_rows()}
    assert (rows["newest"]["failures"], rows["newest"]["enabled"]) == (16, False), "another's change is none of its"
    bench.configure(shaping_of(window=4), newest(False))
    bench.configure(shaping_of(window=4), newest())
    rows = {row["name"]: row for row in bench.seat.policy_rows()}
    assert (rows["newest"]["failures"], rows["newest"]["enabled"]) == (0, True)


class Torn(OWN[SchedulingPolicy.FCFS]):  # type: ignore[misc]
    """Raises at the third, or loses it."""

    def __init__(self, raises: bool) -> None:
        super().__init__()
        self.raises = raises

    def add_request(self, request: Request) -> None:
        if len(self) < 2:
            self.extend([request])
        elif self.raises:
            raise MemoryError("no room")


@pytest.mark.parametrize("raises", [True, False])
def test_a_fault_in_a_swap_leaves_everything_as_it_was(raises: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(SchedulingPolicy.FCFS)
    bench.configure(newest())
    for number in range(5):
        bench.add(number)
    shaped, names, rows = bench.queue, bench.names, bench.seat.policy_rows()
    monkeypatch.setattr(shaping, "create_request_queue", lambda policy: Torn(raises))
    (reason,) = bench.configure(newest(False))
    assert "stays as it was" in reason and ("no room" if raises else "5 requests waited, 2 would") in reason
    assert bench.queue is shaped and bench.names == names and bench.seat.policy_rows() == rows
    assert bench.queue.pop_request().request_id == "r4", "the policy is still the one that orders"
    monkeypatch.undo()
    assert bench.configure(newest(False)) == []
    own = bench.queue
    monkeypatch.setattr(ShapedQueue, "add_request", Torn.add_request)
    monkeypatch.setattr(ShapedQueue, "raises", raises, raising=False)
    monkeypatch.setattr(ShapedQueue, "extend", lambda queue, requests: queue._requests.extend(requests), raising=False)
    (reason,) = bench.configure(newest())
    assert "stays as it was" in reason
    assert bench.queue is own and bench.names == names[:4] and not bench.seat.policy_rows()[0]["enabled"]
