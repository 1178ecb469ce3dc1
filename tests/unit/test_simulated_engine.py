"""The simulated engine: its cache against its own invariants, its order, its faults."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.cache.settings import ValueSettings
from replicas.engine.port import HandDown
from replicas.simulation.cache import Allocation, Prompt, SimulatedCache
from replicas.simulation.engine import CostModel, SimulatedCore, SimulatedRequest
from replicas.simulation.port import SimulatedPort
from runtime_actor.errors import EngineGone
from runtime_actor.messages import OwnerTag

INSTANT = CostModel(prefill_s_per_token=0.0, decode_s_per_token=0.0, num_blocks=8, block_size=4, max_num_seqs=2)


def prompt_of(text: str) -> Prompt:
    return Prompt(tuple(ord(letter) for letter in text))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["x" * 9, "x" * 8 + "y" * 5, "zz" * 7]), st.booleans()),
        max_size=30,
    )
)
def test_the_cache_keeps_its_invariants(requests: list[tuple[str, str, bool]]) -> None:
    cache = SimulatedCache(num_blocks=10, block_size=4, values=ValueSettings())
    held: list[Allocation] = []
    for number, (agent, text, release) in enumerate(requests):
        prompt = prompt_of(text)
        tag = OwnerTag("w", agent, f"s{number % 4}")
        claim, hashes = cache.arrive(str(number), tag, prompt)
        allocation = cache.allocate(claim, hashes, len(text), len(text) + 2)
        if allocation is None:
            assert held
            cache.directory.finished(str(number))
        else:
            cache.fill(allocation, len(text))
            held.append(allocation)
        cache.check_invariants()
        if release and held:
            first = held.pop(0)
            cache.free(first)
            cache.directory.finished(first.claim.request_id)
            cache.check_invariants()
    for allocation in held:
        cache.free(allocation)
    cache.check_invariants()
    assert cache.num_free_blocks == 10


async def run_request(core: SimulatedCore, number: int, text: str, **changes: object) -> int:
    """Cached tokens."""
    cached: list[int] = []
    request = SimulatedRequest(
        request_id=f"r{number}",
        prompt=prompt_of(text),
        max_tokens=1,
        tag=OwnerTag("w", "a", f"s{number}"),
        on_prefill=cached.append,
        **changes,  # type: ignore[arg-type]
    )
    async for _ in core.generate(request):
        pass
    return cached[0]


STEPPED = CostModel(
    prefill_s_per_token=0.001, decode_s_per_token=0.001, num_blocks=32, block_size=4, max_num_seqs=3, step_tokens=8
)


@pytest.mark.parametrize(
    ("priority", "room", "first"), [(-1, 32, "r2"), (0, 32, "r1"), (-1, 13, "r1")], ids=["leads", "equal", "no room"]
)
def test_a_prompt_under_way_gives_way_between_two_steps(priority: int, room: int, first: str) -> None:
    """To a request that is to lead and can begin; what waits for room that nobody gives holds up nothing."""

    async def scenario() -> None:
        core = SimulatedCore(dataclasses.replace(STEPPED, num_blocks=room))
        ended: list[str] = []

        async def one(number: int, text: str, **changes: object) -> None:
            await run_request(core, number, text, **changes)
            ended.append(f"r{number}")

        async with asyncio.timeout(20.0):
            long = asyncio.create_task(one(1, "a" * 40))
            while not core._prefilling:
                await asyncio.sleep(0)
            await asyncio.gather(long, one(2, "b" * 16, priority=priority), one(3, "c" * 16))
        assert ended[0] == first and len(ended) == 3
        assert not core._aside and core._prefilling == 0 and core.running == 0 and core.waiting == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["it is ended", "the engine dies"])
def test_a_prompt_that_gave_way_can_be_ended(how: str) -> None:
    async def scenario() -> None:
        core = SimulatedCore(STEPPED)
        long = asyncio.create_task(run_request(core, 1, "a" * 40))
        while not core._prefilling:
            await asyncio.sleep(0)
        lead = asyncio.create_task(run_request(core, 2, "b" * 30, priority=-1))
        async with asyncio.timeout(20.0):
            while not core._aside:
                await asyncio.sleep(0)
            if how == "it is ended":
                long.cancel()
                assert await lead == 0
            else:
                core.die()
            answers = await asyncio.gather(long, lead, return_exceptions=True)
        wanted = asyncio.CancelledError if how == "it is ended" else EngineGone
        assert isinstance(answers[0], wanted)
        assert not core._aside and core._prefilling == 0 and core.running == 0

    asyncio.run(scenario())


def test_a_prefix_is_found_again_but_for_the_last_block() -> None:
    async def scenario() -> None:
        core = SimulatedCore(INSTANT)
        assert await run_request(core, 1, "a" * 8) == 0
        assert await run_request(core, 2, "a" * 8) == 4
        assert await run_request(core, 3, "a" * 8 + "b") == 8
        core.cache.check_invariants()

    asyncio.run(scenario())


def test_a_prompt_that_comes_while_another_is_computed_finds_what_that_left() -> None:
    async def scenario() -> None:
        core = SimulatedCore(INSTANT)
        found = await asyncio.gather(*(run_request(core, number, "a" * 9) for number in range(3)))
        assert found == [0, 8, 8]

    asyncio.run(scenario())


def test_a_salt_keeps_caches_apart() -> None:
    async def scenario() -> None:
        core = SimulatedCore(INSTANT)
        await run_request(core, 1, "a" * 9)
        cached: list[int] = []
        request = SimulatedRequest(
            "r", Prompt(prompt_of("a" * 9).token_ids, cache_salt="other"), 1, on_prefill=cached.append
        )
        async for _ in core.generate(request):
            pass
        assert cached == [0]

    asyncio.run(scenario())


def test_requests_wait_for_blocks_and_all_end() -> None:
    async def scenario() -> None:
        core = SimulatedCore(INSTANT)
        await asyncio.gather(*(run_request(core, i, chr(65 + i) * 25) for i in range(6)))
        assert (core.running, core.waiting, core.cache.num_free_blocks) == (0, 0, 8)
        core.cache.check_invariants()
        assert core.cache.evicted_blocks > 0

    asyncio.run(scenario())


def test_priority_decides_who_is_next() -> None:
    async def scenario() -> None:
        core = SimulatedCore(INSTANT)
        order: list[str] = []

        async def run(name: str, number: int, priority: int) -> None:
            await run_request(core, number, name * 25, priority=priority)
            order.append(name)

        tasks = [run("a", 1, 0), run("b", 2, 5), run("c", 3, -5)]
        await asyncio.gather(*tasks)
        assert order == ["a", "c", "b"]

    asyncio.run(scenario())


def test_a_request_that_is_given_up_frees_its_blocks() -> None:
    async def scenario() -> None:
        core = SimulatedCore(INSTANT)
        request = SimulatedRequest("r", prompt_of("a" * 9), max_tokens=5)
        tokens = core.generate(request)
        assert await anext(tokens) == 1
        await tokens.aclose()
        assert (core.running, core.cache.num_free_blocks) == (0, 8)

    asyncio.run(scenario())


def test_what_can_never_run_is_known_before() -> None:
    core = SimulatedCore(INSTANT)
    assert core.fits(24, 8) and not core.fits(25, 8) and not core.fits(0, 1)


def test_a_dead_engine_fails_running_and_waiting_requests() -> None:
    async def scenario() -> None:
        core = SimulatedCore(INSTANT)
        core.freeze()
        tasks = [asyncio.ensure_future(run_request(core, i, chr(65 + i) * 25)) for i in range(3)]
        await asyncio.sleep(0)
        core.die()
        for task in tasks:
            with pytest.raises(EngineGone):
                await task

    asyncio.run(scenario())


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="policy must be one of"):
        SimulatedCore(INSTANT).set_policy("best", 1.0)


def test_it_says_of_no_policy_that_it_orders_its_queue() -> None:
    """It has none to be ordered; what is told for it is neither refused nor said to be in force."""
    down = HandDown(queue_policies='[{"name": "batch_shaping", "enabled": true}]')
    state = asyncio.run(SimulatedPort(SimulatedCore(INSTANT)).exchange(down))
    assert (state.policies, state.rejected, state.passed_over) == ([], (), 0)
