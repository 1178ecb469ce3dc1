"""A replica without a model: the runtime layer of a real one beside a simulated engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from functools import partial
from typing import Any, TypeVar

from ray.serve.llm import LLMConfig

from replicas.anchors import Anchor, decode_token_ids
from replicas.engine_port import WARMUP_PRIORITY, EnginePort, EngineState, HandDown
from replicas.owner_values import ValueSettings
from replicas.prefetch import CacheProbe
from replicas.requests import RequestLedger
from replicas.server import AgentLLMServer
from replicas.simulated_cache import Prompt, prefix_hashes
from replicas.simulated_engine import CostModel, SimulatedCore, SimulatedRequest
from replicas.simulated_openai import SimulatedEngine
from runtime_actor.errors import EngineBusy, EngineGone, WarmupFailed
from runtime_actor.messages import WARMUP, OwnerTag, PrefetchAction
from runtime_actor.settings import from_dict
from runtime_actor.tables import ReachTables

T = TypeVar("T")


class SimulatedPort:
    """EnginePort over a SimulatedCore in the same process."""

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
        for data in down.tables.values():
            directory.set_tables(ReachTables.from_bytes(data))
        for workload, session in down.ended:
            directory.end(workload, session)
        if down.policy is not None:
            self._core.set_policy(*down.policy)
        return EngineState(
            t_s=time.time(),
            policy=self._core.values.policy,
            block_size=self.block_size,
            total_blocks=cache.num_blocks,
            free_blocks=cache.num_free_blocks,
            running=self._core.running,
            waiting=self._core.waiting,
            resident=directory.resident_blocks(),
            sessions=directory.sessions() if down.with_sessions else [],
            anchors=cache.take_anchors(),
            evicted_blocks=cache.evicted_blocks,
        )

    async def probe(self, anchor: Anchor) -> CacheProbe:
        await self._in_time(self._core.between_steps())
        cache = self._core.cache
        hashes = prefix_hashes(_prompt(anchor, decode_token_ids(anchor.token_ids)), self.block_size)
        resident = len(cache.resident_blocks(hashes))
        return CacheProbe(
            resident_tokens=resident * self.block_size,
            victim_value=cache.victim_value(len(hashes) - resident + 1),
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
            tag=OwnerTag(action.workload, action.agent, action.session, WARMUP),
            priority=WARMUP_PRIORITY,
            on_prefill=on_prefill,
        )
        async for _ in self._core.generate(request):
            pass
        return computed

    async def _in_time(self, call: Awaitable[T]) -> T:
        try:
            return await asyncio.wait_for(call, self._timeout_s)
        except TimeoutError as error:
            raise EngineBusy(f"the simulated engine gave no answer in {self._timeout_s} s") from error


class SimulatedLLMServer(AgentLLMServer):
    """AgentLLMServer with a cost model instead of vLLM.

    Args:
        simulated: values of CostModel.
        values: values of ValueSettings, as the engine's `additional_config` has them for vLLM.
    """

    async def __init__(
        self,
        llm_config: LLMConfig,
        *,
        simulated: dict[str, Any] | None = None,
        values: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        cost = from_dict(CostModel, simulated or {}, "simulated")
        engine_cls = partial(SimulatedEngine, cost=cost, values=ValueSettings(**(values or {})))
        await super().__init__(llm_config, engine_cls=engine_cls, **kwargs)

    def _port(self, ledger: RequestLedger) -> EnginePort:
        engine = self.engine
        engine.ledger = ledger
        return SimulatedPort(engine.core, timeout_s=self._settings.exchange.engine_timeout_s)

    async def simulate_fault(self, fault: str) -> None:
        """For fault tests: `die`, `freeze` or `thaw` the engine."""
        faults = {
            "die": self.engine.core.die,
            "freeze": self.engine.core.freeze,
            "thaw": self.engine.core.thaw,
        }
        if fault not in faults:
            raise ValueError(f"fault must be one of {', '.join(faults)}, got {fault!r}")
        faults[fault]()


def _prompt(anchor: Anchor, token_ids: list[int]) -> Prompt:
    return Prompt(tuple(token_ids), anchor.cache_salt, anchor.lora_name)
