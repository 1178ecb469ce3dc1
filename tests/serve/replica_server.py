"""A replica with doors for tests: they run inside its process, on its event loop."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import traceback
from typing import Any

from ray import serve
from ray.serve.llm.openai_api_models import CompletionRequest

from replicas.prefetch import Outcome
from replicas.server import AgentLLMServer
from runtime_actor.messages import OWNER_XARG, OwnerTag, PrefetchAction, RequestAccepted
from tests.port_contract import CHECKS, record_anchors


class DoorServer(AgentLLMServer):
    """AgentLLMServer, and what a test needs to see and to do in it."""

    async def start(self) -> None:
        await super().start()
        self.outcomes: list[Outcome] = []
        sidecar = self._beside
        sidecar.prefetch._on_outcome = self._note(sidecar.prefetch._on_outcome)
        self.port = sidecar.port
        self.told = record_anchors(self.port)

    def _note(self, on_outcome: Any) -> Any:
        def noted(outcome: Outcome) -> None:
            self.outcomes.append(outcome)
            on_outcome(outcome)

        return noted

    async def demand(self, token_ids: list[int], tag: OwnerTag, cache_salt: str | None) -> int:
        """Cached tokens, as the first item says."""
        request = CompletionRequest(
            model=self._llm_config.model_id,
            prompt=token_ids,
            max_tokens=1,
            temperature=0.0,
            cache_salt=cache_salt,
            vllm_xargs={OWNER_XARG: tag.encode()},
        )
        items = [item async for item in await self.completions(request)]
        accepted = RequestAccepted.from_wire(items[0])
        assert accepted.prompt_tokens == len(token_ids)
        assert items[1].usage.prompt_tokens_details.cached_tokens == accepted.cached_tokens
        return accepted.cached_tokens

    async def run_check(self, name: str) -> str | None:
        """None if the check of the port contract holds, else where it failed."""
        try:
            await CHECKS[name](self)
        except Exception:  # noqa: BLE001 -- told to the test, which runs in another process
            return traceback.format_exc()
        return None

    async def offer(self, wire: dict[str, Any]) -> None:
        self._beside.prefetch.offer(PrefetchAction.from_wire(wire))

    async def view(self) -> dict[str, Any]:
        """Plain values of now."""
        sidecar = self._beside
        state = sidecar.feed.state
        return {
            "pid": os.getpid(),
            "replica": serve.get_replica_context().replica_id.unique_id,
            "engine_pids": [child.pid for child in multiprocessing.active_children()],
            "in_flight": sidecar.ledger.num_in_flight,
            "outcomes": [(o.action.action_id, o.outcome, o.reason, o.tokens) for o in self.outcomes],
            "live_prefetches": len(sidecar.prefetch.book),
            "requests": sidecar.stats.requests,
            "epoch": sidecar.exchange.epoch,
            "exchanges": sidecar.stats.exchanges,
            "exchange_failures": sidecar.stats.exchange_failures,
            "last_failure": sidecar.exchange.last_failure,
            "loop_failures": sidecar.stats.loop_failures,
            "policy": state.policy if state else None,
            "waiting_events": len(sidecar.events),
            "routing_stats": await self.record_routing_stats(),
        }

    async def view_soon(self) -> dict[str, Any]:
        """A view a moment later, for a test that waits for a change."""
        await asyncio.sleep(0.05)
        return await self.view()

    async def until_warmed(self, tokens: int, seconds: float = 30.0) -> int:
        """Wait until a live warm-up has computed so many tokens; how many it has."""
        async with asyncio.timeout(seconds):
            while True:
                jobs = list(self._beside.prefetch.book._jobs.values())
                done = max((job.computed_tokens for job in jobs), default=0)
                if done >= tokens:
                    return done
                await asyncio.sleep(0.005)

    async def until_slice_runs(self, seconds: float = 30.0) -> None:
        async with asyncio.timeout(seconds):
            while self._beside.prefetch._slice is None:
                await asyncio.sleep(0.001)
