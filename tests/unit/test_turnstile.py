"""The gateway's queue: bounded, work conserving, in the policies' order, nothing lost when clients leave."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from runtime_actor.policies.base import RequestView
from serve_app.policies.turnstile import Turnstile
from tests.unit.policy_kit import view


def by_prompt(requests: Sequence[RequestView]) -> list[tuple[float, ...]]:
    return [(float(request.prompt_tokens),) for request in requests]


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_order_and_places() -> None:
    async def main() -> list[str]:
        gate = Turnstile(1, by_prompt)
        out: list[str] = []

        async def one(name: str, tokens: int) -> None:
            await gate.enter(view(agent=name, prompt_tokens=tokens))
            out.append(name)

        waiting = [
            asyncio.create_task(one(n, t)) for n, t in (("first", 900), ("big", 300), ("small", 10), ("mid", 50))
        ]
        await settle()
        assert out == ["first"] and gate.waiting == 3
        for _ in range(4):
            gate.leave()
            await settle()
        await asyncio.gather(*waiting)
        assert (gate.inside, gate.waiting, gate.passed, gate.waited) == (0, 0, 4, 3)
        return out

    assert asyncio.run(main()) == ["first", "small", "mid", "big"]


def test_within_a_flow_priority_then_deadline_then_first_come() -> None:
    async def main() -> list[int]:
        gate = Turnstile(1, lambda requests: [()] * len(requests))
        await gate.enter(view())
        out: list[int] = []

        async def one(number: int, **changes: object) -> None:
            await gate.enter(view(**changes))
            out.append(number)

        asked = [{"priority": 5}, {}, {"ttft_slo_s": 9.0}, {"ttft_slo_s": 1.0}, {}]
        tasks = [asyncio.create_task(one(number, **changes)) for number, changes in enumerate(asked)]
        await settle()
        for _ in tasks:
            gate.leave()
            await settle()
        return out

    assert asyncio.run(main()) == [3, 2, 1, 4, 0]


@pytest.mark.parametrize("seed", range(8))
def test_places_are_kept_busy_and_given_back(seed: int) -> None:
    """Requests that come, leave while they wait, or go through: never more inside than places, never a place
    free while somebody waits, and at the end nothing is left."""
    rng = random.Random(seed)

    async def main() -> None:
        gate = Turnstile(3, by_prompt)
        inside: set[int] = set()

        async def one(number: int) -> None:
            await gate.enter(view(agent=f"a{rng.randrange(5)}", prompt_tokens=rng.randrange(100)))
            inside.add(number)

        tasks: dict[int, asyncio.Task[None]] = {}
        for number in range(300):
            kind = rng.random()
            if kind < 0.5:
                tasks[number] = asyncio.create_task(one(number))
            elif kind < 0.65 and tasks:
                tasks.pop(rng.choice(list(tasks))).cancel()
            elif inside:
                done = rng.choice(list(inside))
                inside.discard(done)
                tasks.pop(done, None)
                gate.leave()
            if rng.random() < 0.7:
                await settle()
                assert gate.inside <= 3
                assert gate.waiting == 0 or gate.inside == 3
        for task in tasks.values():
            task.cancel()
        await settle()
        for _ in range(len(inside)):
            gate.leave()
        await settle()
        assert (gate.inside, gate.waiting) == (0, 0)

    asyncio.run(main())


def test_a_turn_given_to_one_who_just_left_goes_on() -> None:
    async def main() -> None:
        gate = Turnstile(1, by_prompt)
        await gate.enter(view())
        leaving, next_one = (asyncio.create_task(gate.enter(view(agent=name))) for name in "ab")
        await settle()
        gate.leave()
        leaving.cancel()
        await asyncio.wait_for(next_one, 5.0)
        assert gate.inside == 1 and leaving.cancelled()

    asyncio.run(main())
