"""EnginePort over Ray's VLLMEngine: exchanges through EngineLink, warm-ups through its public methods."""

from __future__ import annotations

import asyncio
from typing import Any

from ray.serve.llm.openai_api_models import CompletionRequest
from vllm.exceptions import VLLMServerError
from vllm.v1.engine.exceptions import EngineDeadError

from replicas.anchors import Anchor, anchor_from
from replicas.engine.link import EngineLink
from replicas.engine.messages import EngineTables, ProbeRequest
from replicas.engine.observed import observe
from replicas.engine.port import WARMUP_PRIORITY, EngineState, HandDown
from replicas.prefetch import CacheProbe
from replicas.requests import RequestLedger
from runtime_actor.errors import EngineGone, WarmupFailed
from runtime_actor.messages import OWNER_XARG, WARMUP, OwnerTag, PrefetchAction


class VllmPort:
    """Needs a started engine; from its construction on the engine's outputs are counted in the ledger."""

    def __init__(self, engine: Any, ledger: RequestLedger, *, model_id: str, timeout_s: float) -> None:
        self._engine = engine
        self._model_id = model_id
        self._link = EngineLink(engine, timeout_s)
        client = self._link.client
        client.generate = observe(client.generate, ledger)
        self.block_size = client.vllm_config.cache_config.block_size
        self.max_prompt_tokens = client.model_config.max_model_len - 1

    async def check_alive(self) -> None:
        await self._link.check_alive()

    async def exchange(self, down: HandDown) -> EngineState:
        policy, weight = down.policy or (None, None)
        report = await self._link.exchange(
            EngineTables(
                tables=down.tables,
                ended=list(down.ended),
                policy=policy,
                weight=weight,
                queue_policies=down.queue_policies,
                with_sessions=down.with_sessions,
                with_anchors=down.with_anchors,
            )
        )
        return EngineState(
            t_s=report.t_s,
            policy=report.policy,
            block_size=report.block_size,
            total_blocks=report.total_blocks,
            free_blocks=report.free_blocks,
            running=report.running,
            waiting=report.waiting,
            resident=report.resident,
            sessions=[list(session) for session in report.sessions],
            anchors=tuple(anchor_from(found) for found in report.anchors),
            warmups=tuple(report.warmups),
            evicted_blocks=report.evicted_blocks,
            rejected=tuple(report.rejected),
            policies=report.policies,
            passed_over=report.passed_over,
            fallbacks=report.fallbacks,
        )

    async def probe(self, anchor: Anchor) -> CacheProbe:
        answer = await self._link.probe(
            ProbeRequest(
                workload=anchor.workload,
                agent=anchor.agent,
                token_ids=anchor.token_ids,
                cache_salt=anchor.cache_salt,
                lora_name=anchor.lora_name,
            )
        )
        return CacheProbe(
            resident_tokens=answer.resident_tokens,
            missing_fits=answer.missing_fits,
            victim_value=answer.victim_value,
            anchor_value=answer.anchor_value,
        )

    async def warm(self, anchor: Anchor, token_ids: list[int], action: PrefetchAction) -> int:
        tag = OwnerTag(action.workload, action.agent, action.action_id, WARMUP)
        request = CompletionRequest(
            model=anchor.lora_name or self._model_id,
            prompt=token_ids,
            max_tokens=1,
            temperature=0.0,
            priority=WARMUP_PRIORITY,
            cache_salt=anchor.cache_salt,
            vllm_xargs={OWNER_XARG: tag.encode()},
        )
        answer: Any = None
        try:
            async for item in self._engine.completions(request, None):
                answer = item
        except EngineDeadError as error:
            raise EngineGone("the engine process died during a warm-up") from error
        except VLLMServerError as error:
            raise WarmupFailed(str(error)) from error
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # vLLM answers a cancelled request with an error instead of passing the cancellation on.
            raise asyncio.CancelledError
        refused = getattr(answer, "error", None)
        if answer is None or refused is not None:
            raise WarmupFailed("no answer" if refused is None else refused.message)
        return _computed_tokens(answer.usage)


def _computed_tokens(usage: Any) -> int:
    """What the cache didn't have; all of it if the engine doesn't say (enable_prompt_tokens_details)."""
    details = usage.prompt_tokens_details
    return usage.prompt_tokens - (details.cached_tokens or 0 if details is not None else 0)
