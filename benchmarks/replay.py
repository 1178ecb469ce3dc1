"""Replay a trace under eviction policies: `python -m benchmarks.replay TRACE.jsonl --blocks N --policy P`.

One JSON line a policy: {policy, blocks, requests, hit_rate, anchor_hit_rate, prompt_blocks, hit_blocks}.
Counted are all requests but the first tenth. hit_rate = hit_blocks / prompt_blocks; a request's last block
is never a hit. anchor_hit_rate: the same over anchor blocks alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.cache import PrefixCache
from benchmarks.optimum import optimal_hits
from benchmarks.policies.known import ABLATIONS, MIN, NAMES, make
from benchmarks.trace_format import Request, TraceError, read_trace


@dataclass(frozen=True, slots=True)
class ReplayResult:
    policy: str
    blocks: int
    requests: int
    hit_rate: float
    anchor_hit_rate: float
    prompt_blocks: int
    hit_blocks: int


def smallest_cache(requests: Sequence[Request]) -> int:
    """Blocks that the longest request needs."""
    return max(len(request.blocks) for request in requests)


def replay(requests: Sequence[Request], blocks: int, policy: str) -> ReplayResult:
    """Raises ValueError for an unknown policy, or a cache that the longest request doesn't fit."""
    if policy not in NAMES and policy not in ABLATIONS:
        raise ValueError(f"unknown policy {policy!r}; known: {', '.join(NAMES)}")
    smallest = smallest_cache(requests)
    if blocks < smallest:
        raise ValueError(f"{blocks} blocks can't hold the longest request; the smallest possible cache is {smallest}")
    count_from = len(requests) // 10
    if policy == MIN:
        hits = optimal_hits(requests, blocks, count_from)
    else:
        cache = PrefixCache(blocks, make(policy))
        hits = [
            cache.play(request, index, float(index) if request.t_s is None else request.t_s)
            for index, request in enumerate(requests)
        ]
    return _summary(requests, blocks, policy, hits, count_from)


def _summary(
    requests: Sequence[Request], blocks: int, policy: str, hits: Sequence[int], count_from: int
) -> ReplayResult:
    counted = list(zip(requests, hits, strict=True))[count_from:]
    prompt_blocks = sum(len(request.blocks) for request, _ in counted)
    hit_blocks = sum(hit for _, hit in counted)
    anchor_blocks = sum(request.anchor_blocks for request, _ in counted)
    anchor_hits = sum(min(request.anchor_blocks, hit) for request, hit in counted)
    return ReplayResult(
        policy=policy,
        blocks=blocks,
        requests=len(counted),
        hit_rate=hit_blocks / prompt_blocks,
        anchor_hit_rate=anchor_hits / anchor_blocks if anchor_blocks else 0.0,
        prompt_blocks=prompt_blocks,
        hit_blocks=hit_blocks,
    )


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    arguments.add_argument("trace", type=Path)
    arguments.add_argument("--blocks", type=int, required=True, help="cache size")
    arguments.add_argument("--policy", action="append", required=True, help=", ".join(NAMES))
    arguments.add_argument("--json", action="store_true", help="the default; kept for scripts")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    given = parser().parse_args(argv)
    unknown = [policy for policy in given.policy if policy not in NAMES]
    if unknown:
        print(f"replay: unknown policy {unknown[0]!r}; known: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    try:
        requests = read_trace(given.trace)
        for policy in given.policy:
            print(json.dumps(asdict(replay(requests, given.blocks, policy))), flush=True)
    except (TraceError, ValueError) as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
