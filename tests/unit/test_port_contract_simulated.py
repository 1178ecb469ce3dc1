"""The engine port's contract, with the simulated engine behind it."""

from __future__ import annotations

import asyncio

from replicas.simulation.cache import Prompt
from replicas.simulation.engine import CostModel, SimulatedCore, SimulatedRequest
from replicas.simulation.port import SimulatedPort
from runtime_actor.messages import OwnerTag
from tests.port_contract import CHECKS, record_anchors

COST = CostModel(prefill_s_per_token=0.0001, decode_s_per_token=0.0, num_blocks=200, max_model_len=2048)


class SimulatedBench:
    def __init__(self) -> None:
        self.core = SimulatedCore(COST)
        self.port = SimulatedPort(self.core)
        self.told = record_anchors(self.port)
        self.count = 0

    async def demand(self, token_ids: list[int], tag: OwnerTag, cache_salt: str | None) -> int:
        cached: list[int] = []
        self.count += 1
        request = SimulatedRequest(
            request_id=f"d{self.count}",
            prompt=Prompt(tuple(token_ids), cache_salt),
            max_tokens=1,
            tag=tag,
            on_prefill=cached.append,
        )
        async for _ in self.core.generate(request):
            pass
        return cached[0]


def test_the_simulated_port_keeps_the_contract() -> None:
    async def scenario() -> None:
        bench = SimulatedBench()
        for name, check in CHECKS.items():
            try:
                await check(bench)
            except Exception as error:
                raise AssertionError(f"{name}: {error!r}") from error
            bench.core.cache.check_invariants()

    asyncio.run(scenario())
