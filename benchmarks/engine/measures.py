"""Figures of a cell from its samples, and the bound that no policy can pass on the same requests."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.engine.drive import Sample
from benchmarks.engine.schedule import Prompt
from benchmarks.engine.text import block_names
from benchmarks.optimum import optimal_hits
from benchmarks.trace_format import Request

FIGURES = ("hit_rate", "ttft_mean_s", "ttft_p50_s", "ttft_p99_s", "e2e_mean_s", "requests_per_s", "tokens_per_s")


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of them don't exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def summary(samples: Sequence[Sample], warm_up: int) -> dict[str, Any]:
    """Over the requests behind the first `warm_up`, in order of sending; failed ones are counted, not timed.

    hit_rate: cached prompt tokens / prompt tokens. Rates are over the time from the first counted request's
    start to the last one's end; tokens are those of prompts and answers.
    """
    counted = [sample for sample in samples[warm_up:] if not sample.error]
    failed = [sample.error for sample in samples if sample.error]
    result: dict[str, Any] = {"requests": len(counted), "errors": len(failed), "first_error": (failed or [""])[0]}
    if not counted:
        return {**result, **dict.fromkeys(FIGURES, 0.0)}
    prompt_tokens = sum(sample.prompt_tokens for sample in counted)
    tokens = prompt_tokens + sum(sample.completion_tokens for sample in counted)
    span_s = max(s.start_s + s.e2e_s for s in counted) - min(s.start_s for s in counted)
    ttft = [sample.ttft_s for sample in counted]
    return {
        **result,
        "hit_rate": sum(sample.cached_tokens for sample in counted) / prompt_tokens,
        "ttft_mean_s": statistics.fmean(ttft),
        "ttft_p50_s": percentile(ttft, 0.5),
        "ttft_p99_s": percentile(ttft, 0.99),
        "e2e_mean_s": statistics.fmean(sample.e2e_s for sample in counted),
        "requests_per_s": len(counted) / span_s,
        "tokens_per_s": tokens / span_s,
    }


def best_hit_rate(
    prompts: Sequence[Prompt], samples: Sequence[Sample], warm_up: int, cache_blocks: int, block_tokens: int
) -> float:
    """What MIN reaches on these requests in the order in which they were sent, with all replicas' blocks in one cache.

    No policy on the replicas' separate caches can have more. Requests that run at a time are played one after
    the other, so that a prefix which two of them compute at once counts as found by the second.
    """
    in_order = [prompts[sample.position] for sample in samples]
    trace = [Request(p.session, p.agent, block_names(p.prompt_ids, block_tokens), 0, p.final, None) for p in in_order]
    hits = optimal_hits(trace, cache_blocks, warm_up)
    tokens = sum(len(prompt.prompt_ids) for prompt in in_order[warm_up:])
    return block_tokens * sum(hits[warm_up:]) / tokens if tokens else 0.0
