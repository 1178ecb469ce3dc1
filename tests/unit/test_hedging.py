"""A request sent to a second replica when the first is slow, through the gateway's desk in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from benchmarks.gateway_queue import VirtualLoop, run_virtually
from runtime_actor.settings import RuntimeSettings
from serve_app.hints import HintReport
from serve_app.identity import Identity
from serve_app.policies.desk import PolicyDesk

QUICK_S, SLOW_S = 0.1, 3.0
FIELDS = {"messages": [{"role": "user", "content": "hi"}]}


@dataclass
class Answer:
    """A call whose only item comes after so long."""

    after_s: float

    async def __aiter__(self) -> AsyncIterator[str]:
        await asyncio.sleep(self.after_s)
        yield "x"

    def cancel(self) -> None:
        """Nothing runs that would have to be ended."""


async def first_items(desk: PolicyDesk, loop: VirtualLoop, requests: int, slow_every: int) -> list[float]:
    """Seconds to the first item of each request, one after the other; of so many one meets a slow replica."""
    found = []
    for number in range(requests):
        is_slow = slow_every > 0 and number % slow_every == 0
        identity = Identity("t", "t", f"s{number}", "a", "", "new", "content", True, False)
        ticket = await desk.enter(identity, FIELDS, FIELDS, 0, {}, HintReport(), "chat")
        began_s = loop.now_s
        slow_s = SLOW_S if is_slow else QUICK_S
        async for _ in ticket.call(lambda elsewhere, slow_s=slow_s: Answer(QUICK_S if elsewhere else slow_s)):
            found.append(loop.now_s - began_s)
        ticket.leave()
    return found


def play(share: float, requests: int, slow_every: int) -> tuple[list[float], dict[str, int]]:
    """After a calm time in which it is learnt what is slow."""
    loop = VirtualLoop()
    options = {"hedge_share": share, "hedge_factor": 2.0}
    entry = {"name": "speculation", "enabled": True, "options": options}
    desk = PolicyDesk(RuntimeSettings.from_dict({"policies": [entry]}).policies, 16, 16, 4096, clock=loop)

    async def main() -> list[float]:
        await first_items(desk, loop, 128, 0)
        return await first_items(desk, loop, requests, slow_every)

    delays = run_virtually(main(), loop)
    (row,) = desk.as_state(None)
    return delays, row["counters"]


def test_it_goes_on_for_as_long_as_a_replica_is_slow() -> None:
    """What was sent again says how quick the second was, not how long the first was waited for: else each round would
    wait longer than the one before, until nothing is sent again."""
    delays, counters = play(0.2, 1200, slow_every=10)
    assert max(delays) == pytest.approx(3 * QUICK_S), "twice what is usual, and then the second one's time"
    assert counters["hedged"] == counters["hedges_won"] == 120


def test_without_a_share_the_slow_ones_are_waited_for() -> None:
    delays, counters = play(0.0, 100, slow_every=10)
    assert sorted(delays)[-10:] == pytest.approx([SLOW_S] * 10)
    assert counters["watched"] == 228 and "hedged" not in counters


def test_more_than_the_share_are_not_sent_again() -> None:
    _, counters = play(0.05, 1200, slow_every=10)
    assert 0 < counters["hedged"] <= 0.05 * (128 + 1200)
    assert counters["hedges_refused"] > 0
