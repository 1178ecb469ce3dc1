"""The gateway's queue: bounded, work conserving, in the policies' order, nothing lost when clients leave."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from runtime_actor.policies.base import RequestView
from serve_app.policies.turnstile import Pass, Turnstile
from tests.unit.policy_kit import view

MANY = 1 << 40


def by_prompt(requests: Sequence[RequestView]) -> list[tuple[float, ...]]:
    return [(float(request.prompt_tokens),) for request in requests]


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


class Crowd:
    """Requests that enter, and their passes in the order of entering."""

    def __init__(self, gate: Turnstile) -> None:
        self.gate = gate
        self.inside: dict[str, Pass] = {}
        self.entered: list[str] = []

    async def enter(self, name: str, **request: object) -> None:
        asked = view(**request)
        self.inside[name] = await self.gate.enter(asked, asked.prompt_tokens)
        self.entered.append(name)

    async def leave(self, name: str) -> None:
        self.inside.pop(name).leave()
        await settle()


def test_order_and_places() -> None:
    async def main() -> None:
        gate = Turnstile(1, MANY, by_prompt)
        crowd = Crowd(gate)
        asked = (("first", 900), ("big", 300), ("small", 10), ("mid", 50))
        tasks = [asyncio.create_task(crowd.enter(n, agent=n, prompt_tokens=t)) for n, t in asked]
        await settle()
        assert crowd.entered == ["first"] and gate.waiting == 3
        for name in ("first", "small", "mid", "big"):
            await crowd.leave(name)
        await asyncio.gather(*tasks)
        assert (gate.inside, gate.waiting, gate.passed, gate.waited, gate.prefilling) == (0, 0, 4, 3, 0)

    asyncio.run(main())


def test_prompts_not_yet_computed_are_bounded_too() -> None:
    async def main() -> None:
        gate = Turnstile(8, 100, by_prompt)
        crowd = Crowd(gate)
        asked = (("a", 60), ("b", 40), ("c", 45), ("huge", 500))
        tasks = [asyncio.create_task(crowd.enter(n, agent=n, prompt_tokens=t)) for n, t in asked]
        await settle()
        assert crowd.entered == ["a", "b"] and gate.prefilling == 100
        crowd.inside["a"].has_output()
        crowd.inside["a"].has_output()
        await settle()
        assert crowd.entered == ["a", "b", "c"], "room is given back once, and c fits"
        await crowd.leave("b")
        assert "huge" not in crowd.entered
        crowd.inside["c"].has_output()
        await settle()
        assert crowd.entered[-1] == "huge", "longer than the bound: alone"
        for name in ("a", "c", "huge"):
            await crowd.leave(name)
        await asyncio.gather(*tasks)
        assert (gate.inside, gate.prefilling) == (0, 0)

    asyncio.run(main())


def test_a_tenants_only_request_leads_and_one_prompt_at_a_time_goes_beyond_the_bound() -> None:
    async def main() -> None:
        gate = Turnstile(8, 100, lambda requests: [()] * len(requests), lambda: True)
        crowd = Crowd(gate)
        asked = (
            ("heavy", "h1", 90),
            ("heavy", "h2", 90),
            ("light", "l1", 50),
            ("light", "l2", 50),
            ("other", "o1", 50),
        )
        tasks = [
            asyncio.create_task(crowd.enter(name, tenant=tenant, agent=name, prompt_tokens=tokens))
            for tenant, name, tokens in asked
        ]
        await settle()
        assert crowd.entered == ["h1"], "h2 was first: order is the policies' business"
        tasks[1].cancel()
        await settle()
        gate.grant()
        assert not crowd.inside["h1"].leads, "whoever is alone leads nobody"
        await settle()
        assert crowd.entered == ["h1", "l1"] and crowd.inside["l1"].leads and gate.prefilling == 140
        crowd.inside["l1"].has_output()
        await settle()
        assert crowd.entered == ["h1", "l1"], "its tenant's second one keeps to the bound"
        tasks[3].cancel()
        await settle()
        gate.grant()
        await settle()
        assert crowd.entered[-1] == "o1" and crowd.inside["o1"].leads and gate.led == 2
        for name in ("h1", "l1", "o1"):
            await crowd.leave(name)
        assert (gate.inside, gate.prefilling, gate._leading, dict(gate._inside_of)) == (0, 0, 0, {})

    asyncio.run(main())


def test_within_a_flow_priority_then_deadline_then_first_come() -> None:
    async def main() -> None:
        gate = Turnstile(1, MANY, lambda requests: [()] * len(requests))
        crowd = Crowd(gate)
        await crowd.enter("first")
        asked: list[dict[str, object]] = [{"priority": 5}, {}, {"ttft_slo_s": 9.0}, {"ttft_slo_s": 1.0}, {}]
        tasks = [asyncio.create_task(crowd.enter(str(n), **changes)) for n, changes in enumerate(asked)]
        await settle()
        for name in ("first", "3", "2", "1", "4", "0"):
            await crowd.leave(name)
        await asyncio.gather(*tasks)

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(8))
def test_places_are_kept_busy_and_given_back(seed: int) -> None:
    """Requests that come, leave while they wait, or go through: never more inside than places, never a place
    free while somebody waits, and at the end nothing is left."""
    rng = random.Random(seed)

    async def main() -> None:
        gate = Turnstile(3, MANY, by_prompt)
        crowd = Crowd(gate)
        tasks: dict[str, asyncio.Task[None]] = {}
        for number in range(300):
            kind = rng.random()
            if kind < 0.5:
                request = {"agent": f"a{rng.randrange(5)}", "prompt_tokens": rng.randrange(100)}
                tasks[str(number)] = asyncio.create_task(crowd.enter(str(number), **request))
            elif kind < 0.65 and tasks:
                tasks.pop(rng.choice(list(tasks))).cancel()
            elif crowd.inside:
                crowd.inside.pop(rng.choice(list(crowd.inside))).leave()
            if rng.random() < 0.7:
                await settle()
                assert gate.inside == len(crowd.inside) <= 3
                assert gate.waiting == 0 or gate.inside == 3
        for task in tasks.values():
            task.cancel()
        await settle()
        for one in crowd.inside.values():
            one.leave()
        await settle()
        assert (gate.inside, gate.waiting, gate.prefilling) == (0, 0, 0)
        assert gate.waited > 20

    asyncio.run(main())


def test_a_turn_given_to_one_who_just_left_goes_on() -> None:
    async def main() -> None:
        gate = Turnstile(1, MANY, by_prompt)
        first = await gate.enter(view(), 100)
        leaving, next_one = (asyncio.create_task(gate.enter(view(agent=name), 100)) for name in "ab")
        await settle()
        first.leave()
        leaving.cancel()
        await asyncio.wait_for(next_one, 5.0)
        assert gate.inside == 1 and leaving.cancelled()

    asyncio.run(main())
