"""What every engine port must do, whatever engine is behind it. Run against the simulation and vLLM.

A check gets a bench and raises AssertionError. Token ids are below 30,000, which every vocabulary has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import numpy as np

from replicas.anchors import Anchor
from replicas.engine.port import EnginePort, EngineState, HandDown
from runtime_actor.errors import WarmupFailed
from runtime_actor.messages import OwnerTag, PrefetchAction
from runtime_actor.reach import compute_tables
from runtime_actor.transitions import TransitionModel


class PortBench(Protocol):
    """An engine with its port; `demand` runs a client's request of one output token.

    `told` has the anchors of every answer of the port, whoever asked (see `record_anchors`).
    """

    port: EnginePort
    told: list[Anchor]

    async def demand(self, token_ids: list[int], tag: OwnerTag, cache_salt: str | None) -> int:
        """Cached tokens."""
        ...


def record_anchors(port: Any) -> list[Anchor]:
    """The list that from now on gets the anchors of each answer: an anchor is told to one asker only."""
    told: list[Anchor] = []
    exchange = port.exchange

    async def recorded(down: HandDown) -> EngineState:
        state = await exchange(down)
        told.extend(state.anchors)
        return state

    port.exchange = recorded
    return told


def token_ids(seed: int, blocks: int, block_size: int) -> list[int]:
    """Whole blocks of ids that no other seed has."""
    return np.random.default_rng(seed).integers(100, 30_000, blocks * block_size).tolist()


def anchor_of(ids: list[int], agent: str, cache_salt: str | None = None) -> Anchor:
    data = np.asarray(ids, dtype="<i4").tobytes()
    return Anchor("w", agent, f"digest-{agent}", data, cache_salt, None)


def action_of(anchor: Anchor) -> PrefetchAction:
    return PrefetchAction(
        action_id=f"warm-{anchor.agent}",
        workload=anchor.workload,
        agent=anchor.agent,
        session="s-warm",
        digest=anchor.digest,
        deadline_s=60.0,
        value=1.0,
        token_ids=anchor.token_ids,
        cache_salt=anchor.cache_salt,
        lora_name=anchor.lora_name,
    )


async def state_is_complete(bench: PortBench) -> None:
    await bench.port.check_alive()
    state = await bench.port.exchange(HandDown())
    assert state.block_size == bench.port.block_size
    assert 0 < state.free_blocks <= state.total_blocks
    assert (state.running, state.waiting) == (0, 0)
    assert state.policy


async def demand_is_resident_under_its_owner(bench: PortBench) -> None:
    ids = token_ids(1, 3, bench.port.block_size)
    tag = OwnerTag("w", "a-resident", "s-1")
    assert await bench.demand(ids, tag, None) == 0
    assert await bench.demand(ids, tag, None) == len(ids) - bench.port.block_size
    state = await bench.port.exchange(HandDown(with_sessions=True))
    assert state.resident["w"]["a-resident"] >= 2
    session = next(entry for entry in state.sessions if entry[1] == "s-1")
    assert session[0] == "w" and session[3] == "a-resident"


async def a_warm_up_makes_the_next_prompt_hit(bench: PortBench) -> None:
    size = bench.port.block_size
    ids = token_ids(2, 6, size)
    anchor = anchor_of(ids, "a-warm")
    assert (await bench.port.probe(anchor)).resident_tokens == 0
    assert await bench.port.warm(anchor, ids[: 2 * size], action_of(anchor)) == 2 * size
    assert await bench.port.warm(anchor, ids, action_of(anchor)) <= 5 * size
    assert (await bench.port.probe(anchor)).resident_tokens >= len(ids) - size
    cached = await bench.demand([*ids, *token_ids(3, 1, size)], OwnerTag("w", "a-warm", "s-2"), None)
    assert cached == len(ids)


async def a_warm_up_is_no_session(bench: PortBench) -> None:
    state = await bench.port.exchange(HandDown(with_sessions=True))
    assert all(entry[1] != "s-warm" for entry in state.sessions)


async def salts_are_kept_apart(bench: PortBench) -> None:
    size = bench.port.block_size
    ids = token_ids(4, 4, size)
    salted = anchor_of(ids, "a-salt", "salt-of-one-tenant")
    await bench.port.warm(salted, ids, action_of(salted))
    assert (await bench.port.probe(anchor_of(ids, "a-salt"))).resident_tokens == 0
    assert await bench.demand(ids, OwnerTag("w", "a-salt", "s-3"), None) == 0
    assert await bench.demand(ids, OwnerTag("w", "a-salt", "s-3"), "salt-of-one-tenant") == 3 * size


async def an_anchor_is_told_once_with_its_token_ids(bench: PortBench) -> None:
    size = bench.port.block_size
    shared = token_ids(5, 4, size)
    for number in range(6):
        prompt = [*shared, *token_ids(50 + number, 2, size)]
        await bench.demand(prompt, OwnerTag("w", "a-anchor", f"s-anchor-{number}"), "salt")
        await bench.port.exchange(HandDown())
    told = [anchor for anchor in bench.told if anchor.agent == "a-anchor"]
    assert len(told) == 1, told
    assert told[0].token_ids == np.asarray(shared, dtype="<i4").tobytes()
    assert (told[0].workload, told[0].cache_salt, told[0].lora_name) == ("w", "salt", None)
    assert told[0].digest


async def a_cancelled_warm_up_leaves_the_engine(bench: PortBench) -> None:
    ids = token_ids(6, 24, bench.port.block_size)
    anchor = anchor_of(ids, "a-cancelled")
    task = asyncio.get_running_loop().create_task(bench.port.warm(anchor, ids, action_of(anchor)))
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    for _ in range(200):
        state = await bench.port.exchange(HandDown())
        if state.running + state.waiting == 0:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{state.running} running, {state.waiting} waiting after the cancel")


async def an_impossible_warm_up_fails(bench: PortBench) -> None:
    ids = token_ids(7, 1, bench.port.max_prompt_tokens + 2)
    anchor = anchor_of(ids, "a-long")
    try:
        await bench.port.warm(anchor, ids, action_of(anchor))
    except WarmupFailed:
        await bench.port.check_alive()
        return
    raise AssertionError("a prompt beyond the model's limit was warmed")


async def tables_ends_and_policies_are_taken(bench: PortBench) -> None:
    model = TransitionModel()
    for number in range(4):
        for t_s, agent in enumerate(("a-resident", "a-warm")):
            model.observe(f"s-{number}", agent, float(t_s))
        model.end(f"s-{number}", 3.0)
    tables = {"w": compute_tables(model, workload="w").to_bytes()}
    state = await bench.port.exchange(HandDown(tables=tables, policy=("lru", 1.0)))
    assert state.policy == "lru"
    state = await bench.port.exchange(HandDown(policy=("reach", 1.0), ended=(("w", "s-1"), ("w", "none"))))
    assert state.policy == "reach"
    state = await bench.port.exchange(HandDown(with_sessions=True))
    assert all(entry[1] != "s-1" for entry in state.sessions)


async def nonsense_from_above_is_survived(bench: PortBench) -> None:
    await bench.port.exchange(HandDown(tables={"w": b"nonsense"}, policy=("no such policy", 1.0)))
    state = await bench.port.exchange(HandDown())
    assert state.policy == "reach"
    state = await bench.port.exchange(HandDown(tables={"w": b"nonsense"}, policy=("lru", 1.0)))
    assert state.policy == "lru" and len(state.rejected) == 1, "what is bad costs only itself"
    await bench.port.exchange(HandDown(policy=("reach", 1.0)))


CHECKS: dict[str, Callable[[PortBench], Awaitable[None]]] = {
    check.__name__: check
    for check in (
        state_is_complete,
        demand_is_resident_under_its_owner,
        a_warm_up_makes_the_next_prompt_hit,
        a_warm_up_is_no_session,
        salts_are_kept_apart,
        an_anchor_is_told_once_with_its_token_ids,
        a_cancelled_warm_up_leaves_the_engine,
        an_impossible_warm_up_fails,
        tables_ends_and_policies_are_taken,
        nonsense_from_above_is_survived,
    )
}
"""In this order on one engine: later checks may rely on what earlier ones left."""
