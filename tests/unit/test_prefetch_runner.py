"""Warm-ups on a fake engine: slices, idle checks, demand first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from replicas.anchors import AnchorStore
from replicas.prefetch import CacheProbe, Load, Outcome
from replicas.prefetch_runner import PrefetchRunner
from replicas.settings import PrefetchSettings
from tests.unit.replica_fakes import FakeClock, FakePort, make_action


class Bench:
    def __init__(self, **settings: object) -> None:
        self.port = FakePort()
        self.clock = FakeClock()
        self.in_flight = 0
        self.outcomes: list[Outcome] = []
        self.runner = PrefetchRunner(
            port=self.port,
            anchors=AnchorStore(cap_bytes=1 << 20, max_anchors=8),
            load=lambda: Load(in_flight=self.in_flight, waiting=0),
            on_outcome=self.outcomes.append,
            clock=self.clock,
            settings=PrefetchSettings(**settings),  # type: ignore[arg-type]
        )

    @property
    def ends(self) -> list[tuple[str, str]]:
        return [(outcome.outcome, outcome.reason) for outcome in self.outcomes]


def run(scenario: Callable[[Bench], Awaitable[None]], **settings: object) -> Bench:
    async def main() -> Bench:
        bench = Bench(**settings)
        await scenario(bench)
        return bench

    return asyncio.run(main())


def test_an_anchor_is_warmed_in_slices_and_used() -> None:
    async def scenario(bench: Bench) -> None:
        bench.runner.offer(make_action())
        await bench.runner.step()
        assert [length for length, _ in bench.port.warmed] == [256, 512, 600]
        bench.runner.demand_accepted("w", "a", 576)

    bench = run(scenario)
    assert bench.ends == [("useful", "hit")] and bench.outcomes[0].tokens == 600


def test_slices_go_on_from_what_is_cached() -> None:
    async def scenario(bench: Bench) -> None:
        bench.port.probe_answer = CacheProbe(resident_tokens=448, victim_value=0.1)
        bench.runner.offer(make_action())
        await bench.runner.step()
        assert [length for length, _ in bench.port.warmed] == [600]

    run(scenario)


def test_a_busy_replica_warms_nothing_until_it_is_idle() -> None:
    async def scenario(bench: Bench) -> None:
        bench.in_flight = 1
        bench.runner.offer(make_action())
        await bench.runner.step()
        assert bench.port.warmed == []
        bench.in_flight = 0
        await bench.runner.step()
        assert len(bench.port.warmed) == 3

    run(scenario)


def test_demand_ends_a_slice_and_the_warm_up_goes_on_later() -> None:
    async def scenario(bench: Bench) -> None:
        bench.port.gate = asyncio.Event()
        bench.runner.offer(make_action())
        step = asyncio.ensure_future(bench.runner.step())
        for _ in range(5):
            await asyncio.sleep(0)
        bench.in_flight = 1
        bench.runner.demand_began()
        await step
        assert bench.port.warmed == [] and bench.outcomes == []
        bench.in_flight = 0
        bench.port.gate.set()
        bench.port.probe_answer = CacheProbe(resident_tokens=128)
        await bench.runner.step()
        assert [length for length, _ in bench.port.warmed] == [384, 600]
        bench.runner.demand_accepted("w", "a", 576)

    assert run(scenario).outcomes[0].tokens == 600


def test_demand_between_two_slices_stops_the_next() -> None:
    async def scenario(bench: Bench) -> None:
        def demand_comes() -> None:
            bench.in_flight = 1

        bench.port.on_warm = demand_comes
        bench.runner.offer(make_action())
        await bench.runner.step()
        assert [length for length, _ in bench.port.warmed] == [256]
        bench.runner.demand_accepted("w", "a", 256)

    assert run(scenario).ends == [("useful", "hit")]


def test_the_agents_own_request_overtakes_its_warm_up() -> None:
    async def scenario(bench: Bench) -> None:
        bench.in_flight = 1
        bench.runner.offer(make_action())
        bench.runner.demand_accepted("w", "a", 0)

    assert run(scenario).ends == [("refused", "overtaken")]


REFUSALS: dict[str, tuple[dict, dict]] = {
    "resident": ({"probe_answer": CacheProbe(resident_tokens=576)}, {}),
    "outbid": ({"probe_answer": CacheProbe(resident_tokens=0, victim_value=2.0)}, {}),
    "crowded": ({"probe_answer": CacheProbe(resident_tokens=0, missing_fits=False)}, {}),
    "unknown": ({}, {"token_ids": b""}),
    "malformed": ({}, {"token_ids": b"abc"}),
    "short": ({}, {"token_ids": bytes(8)}),
    "late": ({}, {"deadline_s": 0.0}),
    "busy": ({"busy": True}, {}),
    "failed": ({"warm_error": True}, {}),
}
"""reason -> (what the engine does, what the action says)."""


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals(reason: str) -> None:
    engine, changes = REFUSALS[reason]

    async def scenario(bench: Bench) -> None:
        for name, value in engine.items():
            setattr(bench.port, name, value)
        bench.runner.offer(make_action(**changes))
        await bench.runner.step()

    assert run(scenario).ends == [("refused", reason)]


def test_nothing_is_warmed_while_it_is_switched_off() -> None:
    async def scenario(bench: Bench) -> None:
        bench.runner.switch(False)
        bench.runner.offer(make_action())

    assert run(scenario).ends == [("refused", "disabled")]


def test_one_anchor_is_warmed_once_at_a_time() -> None:
    async def scenario(bench: Bench) -> None:
        bench.in_flight = 1
        bench.runner.offer(make_action("p1", digest="same"))
        bench.runner.offer(make_action("p2", digest="same"))

    assert run(scenario).ends == [("refused", "duplicate")]


def test_a_slice_past_the_deadline_is_not_started() -> None:
    async def scenario(bench: Bench) -> None:
        def time_passes() -> None:
            bench.clock.now_s += 6.0

        bench.port.on_warm = time_passes
        bench.runner.offer(make_action(deadline_s=10.0))
        await bench.runner.step()
        assert [length for length, _ in bench.port.warmed] == [256, 512]
        assert bench.outcomes == []

    run(scenario)


def test_the_end_of_the_replica_ends_every_warm_up() -> None:
    async def scenario(bench: Bench) -> None:
        bench.port.gate = asyncio.Event()
        bench.runner.offer(make_action("p1"))
        bench.runner.offer(make_action("p2"))
        task = asyncio.ensure_future(bench.runner.run())
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})

    assert run(scenario).ends == [("refused", "shutdown")] * 2
