"""Observe what a vLLM engine generates, per request of a client, through its public `generate`."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams

from replicas.requests import CURRENT_REQUEST, RequestLedger, RequestRecord

Generate = Callable[..., AsyncGenerator[RequestOutput, None]]


def observe(generate: Generate, ledger: RequestLedger) -> Generate:
    """`AsyncLLM.generate` with each output counted in the request on whose behalf it runs.

    A response that isn't streamed asks the engine for one output at the end (FINAL_ONLY), and nobody
    would know before that the request was taken or what was cached. Such requests are run as DELTA and
    their outputs joined again, with the same result; several sequences or prompt logprobs can't be
    joined: such requests are left alone and known at their end.
    """

    async def observed(
        prompt: Any, sampling_params: SamplingParams, request_id: str, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        record = CURRENT_REQUEST.get()
        join = record is not None and _can_join(sampling_params)
        if join:
            sampling_params = copy.copy(sampling_params)
            sampling_params.output_kind = RequestOutputKind.DELTA
        joined: RequestOutput | None = None
        counts = _Counts(ledger, record)
        async with aclosing(generate(prompt, sampling_params, request_id, *args, **kwargs)) as outputs:
            async for output in outputs:
                counts.add(output)
                if not join:
                    yield output
                    continue
                joined = _joined(joined, output)
                if joined.finished:
                    yield joined

    return observed


class _Counts:
    """One prompt's share of a request; None as record (a warm-up) counts nothing."""

    def __init__(self, ledger: RequestLedger, record: RequestRecord | None) -> None:
        self._ledger = ledger
        self._record = record
        self._prompt_seen = False

    def add(self, output: RequestOutput) -> None:
        if self._record is None:
            return
        if not self._prompt_seen:
            self._prompt_seen = True
            self._ledger.prompt_seen(
                self._record,
                prompt_tokens=len(output.prompt_token_ids or ()),
                cached_tokens=output.num_cached_tokens or 0,
            )
        reasons = [part.finish_reason for part in output.outputs if part.finish_reason]
        self._ledger.tokens_seen(
            self._record,
            new_tokens=sum(len(part.token_ids or ()) for part in output.outputs),
            finish_reason=reasons[-1] if reasons else None,
        )


def _can_join(params: SamplingParams) -> bool:
    return (
        params.output_kind == RequestOutputKind.FINAL_ONLY and (params.n or 1) == 1 and params.prompt_logprobs is None
    )


def _joined(joined: RequestOutput | None, output: RequestOutput) -> RequestOutput:
    if joined is None:
        return output
    joined.add(output, aggregate=True)
    joined.metrics = output.metrics
    for whole, part in zip(joined.outputs, output.outputs, strict=True):
        # The last part carries these whole.
        whole.spec_decode_metrics = part.spec_decode_metrics
        whole.routed_experts = part.routed_experts
        whole.sampling_mask = part.sampling_mask
    return joined
