"""EnginePort over a simulated core."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from replicas.anchors import Anchor, anchor_from, decode_token_ids
from replicas.engine.port import WARMUP_PRIORITY, EngineState, HandDown
from replicas.prefetch import CacheProbe
from replicas.simulation.cache import Prompt, prefix_hashes
from replicas.simulation.engine import SimulatedCore, SimulatedRequest
from runtime_actor.errors import EngineBusy, EngineGone, MessageError, WarmupFailed
from runtime_actor.messages import WARMUP, OwnerTag, PrefetchAction
from runtime_actor.tables import ReachTables

T = TypeVar("T")


class SimulatedPort:
    """EnginePort over a SimulatedCore in the same process.

    Its core admits by priority, then first come, and nothing else: `queue_policies` are taken and have no effect, and
    no row of `EngineState.policies` says that one of them is on here.
    """

    def __init__(self, core: SimulatedCore, *, timeout_s: float = 10.0) -> None:
        self._core = core
        self._timeout_s = timeout_s
        self._warmups = 0
        self.block_size = core.cost.block_size
        self.max_prompt_tokens = core.cost.max_model_len - 1

    async def check_alive(self) -> None:
        if self._core.is_dead:
            raise EngineGone("the simulated engine is dead")

    async def exchange(self, down: HandDown) -> EngineState:
        await self._in_time(self._core.between_steps())
        cache, directory = self._core.cache, self._core.cache.directory
        rejected: list[str] = []
        if down.with_sessions or down.with_anchors:
            cache.finder.forget_told()
        for workload, session in down.ended:
            directory.end(workload, session)
        for data in down.tables.values():
            try:
                directory.set_tables(ReachTables.from_bytes(data))
            except MessageError as error:
                rejected.append(str(error))
        try:
            if down.policy is not None:
                self._core.set_policy(*down.policy)
        except ValueError as error:
            rejected.append(str(error))
        return EngineState(
            t_s=time.time(),
            policy=self._core.values.policy,
            block_size=self.block_size,
            total_blocks=cache.num_blocks,
            free_blocks=cache.num_free_blocks,
            running=self._core.running,
            waiting=self._core.waiting,
            resident=cache.residency(),
            sessions=directory.sessions(time.time()) if down.with_sessions else [],
            anchors=tuple(anchor_from(found) for found in cache.finder.take()),
            evicted_blocks=cache.evicted_blocks,
            rejected=tuple(rejected),
        )

    async def probe(self, anchor: Anchor) -> CacheProbe:
        await self._in_time(self._core.between_steps())
        cache = self._core.cache
        hashes = prefix_hashes(_prompt(anchor, decode_token_ids(anchor.token_ids)), self.block_size)
        resident = len(cache.resident_blocks(hashes))
        missing = len(hashes) - resident + 1
        return CacheProbe(
            resident_tokens=resident * self.block_size,
            missing_fits=missing <= cache.num_free_blocks,
            victim_value=cache.victim_value(missing),
            anchor_value=cache.directory.anchor_value(anchor.workload, anchor.agent),
        )

    async def warm(self, anchor: Anchor, token_ids: list[int], action: PrefetchAction) -> int:
        if not self._core.fits(len(token_ids), 1):
            raise WarmupFailed(f"{len(token_ids)} tokens don't fit the simulated engine")
        self._warmups += 1
        computed = 0

        def on_prefill(cached_tokens: int) -> None:
            nonlocal computed
            computed = len(token_ids) - cached_tokens

        request = SimulatedRequest(
            request_id=f"warmup-{self._warmups}",
            prompt=_prompt(anchor, token_ids),
            max_tokens=1,
            tag=OwnerTag(action.workload, action.agent, action.action_id, WARMUP),
            priority=WARMUP_PRIORITY,
            on_prefill=on_prefill,
        )
        async for _ in self._core.generate(request):
            pass
        return computed

    async def _in_time(self, call: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await call
        except TimeoutError as error:
            raise EngineBusy(f"the simulated engine gave no answer in {self._timeout_s} s") from error


def _prompt(anchor: Anchor, token_ids: list[int]) -> Prompt:
    return Prompt(tuple(token_ids), anchor.cache_salt, anchor.lora_name)
