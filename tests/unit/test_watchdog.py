"""The watchdog: dead at once, stuck after a time, never because of load."""

from __future__ import annotations

import asyncio

import pytest

from replicas.settings import WatchdogSettings
from replicas.watchdog import EngineWatchdog
from tests.unit.replica_fakes import FakeClock, FakePort


class Bench:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.port = FakePort()
        self.busy = True
        self.progress_s = self.clock.now_s
        self.reasons: list[str] = []
        self.dog = EngineWatchdog(
            check_alive=self.port.check_alive,
            busy=lambda: self.busy,
            progress_s=lambda: self.progress_s,
            exit_process=self.reasons.append,
            clock=self.clock,
            settings=WatchdogSettings(poll_s=0.2, stuck_after_s=10.0),
        )

    def look(self, seconds: float, *, progress: bool = False) -> str | None:
        """Poll every 0.2 s for `seconds`; the first verdict."""

        async def polls() -> str | None:
            for _ in range(round(seconds / 0.2)):
                self.clock.now_s += 0.2
                if progress:
                    self.progress_s = self.clock.now_s
                verdict = await self.dog.poll()
                if verdict:
                    return verdict
            return None

        return asyncio.run(polls())


def test_a_dead_engine_ends_the_process_once() -> None:
    bench = Bench()
    bench.port.gone = True
    asyncio.run(bench.dog.run())
    assert len(bench.reasons) == 1 and "dead" in bench.reasons[0]


def test_silence_with_work_in_flight_is_stuck() -> None:
    bench = Bench()
    assert bench.look(9.8) is None
    verdict = bench.look(0.6)
    assert verdict is not None and "stuck" in verdict


def test_it_tells_how_long_the_engine_is_silent() -> None:
    bench = Bench()
    bench.look(4.0)
    assert bench.dog.silent_s == pytest.approx(4.0)
    bench.look(0.2, progress=True)
    assert bench.dog.silent_s == 0.0


def test_that_nobody_waits_any_more_makes_no_stuck_engine_well() -> None:
    bench = Bench()
    bench.look(4.0)
    bench.busy = False
    bench.look(4.0)
    assert bench.dog.silent_s == pytest.approx(8.0)
    verdict = bench.look(2.4)
    assert verdict is not None and "stuck" in verdict


def test_an_answer_makes_it_well_and_an_idle_one_owes_nothing() -> None:
    bench = Bench()
    bench.look(4.0)
    bench.busy = False
    bench.look(0.2, progress=True)
    assert bench.dog.silent_s == 0.0
    assert bench.look(60.0) is None and bench.dog.silent_s == 0.0


def test_load_is_not_stuck() -> None:
    bench = Bench()
    assert bench.look(60.0, progress=True) is None
    assert bench.dog.silent_s < 1.0


def test_an_idle_engine_is_not_stuck_and_work_starts_the_time_anew() -> None:
    bench = Bench()
    bench.busy = False
    assert bench.look(60.0) is None
    bench.busy = True
    assert bench.look(9.8) is None


def test_time_in_which_this_process_did_not_run_is_not_counted() -> None:
    bench = Bench()
    assert bench.look(9.0) is None
    bench.clock.now_s += 300.0
    assert bench.look(9.0) is None
