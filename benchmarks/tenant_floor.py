"""What `gateway.cache_floor` gives a quiet tenant and costs one that floods, replayed.

    python -m benchmarks.tenant_floor QUIET.jsonl LOUD.jsonl --blocks N [--each N] [--floor X ...]

Two traces on one cache, `--each` requests of the second for each of the first, as long as both last. One JSON line a
floor: the share of prompt blocks found in the cache, of each tenant and of both, but for the first tenth.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.cache import Block, FreeQueue, PrefixCache
from benchmarks.policies.reach import ReachPolicy
from benchmarks.trace_format import Request, read_trace
from replicas.cache.floors import TenantFloors
from replicas.cache.settings import ValueSettings

QUIET, LOUD = "quiet", "loud"


class TenantsPolicy(ReachPolicy):
    """Reach with a workload for each tenant, which is what a session's id begins with, and floors."""

    def __init__(self, floor: float) -> None:
        super().__init__(values=ValueSettings(tenant_floor=floor))
        self._floors: TenantFloors

    def start(self, blocks: Sequence[Block]) -> FreeQueue:
        queue = super().start(blocks)
        self._floors = TenantFloors(self._directory.valuation, self._owner_of, lambda: self._now_s)
        return queue

    def workload_of(self, request: Request) -> str:
        return tenant_of(request)

    def arrive(self, request: Request, index: int, now_s: float) -> None:
        self._now_s = now_s
        self._floors.look()
        super().arrive(request, index, now_s)


def tenant_of(request: Request) -> str:
    return request.session.split("/", 1)[0]


def mixed(quiet: Sequence[Request], loud: Sequence[Request], loud_each: int) -> Iterator[Request]:
    """In turns, a second apart, until one of the two is over. Nothing is common to them."""
    for number in range(min(len(quiet), len(loud) // loud_each)):
        turn = [(QUIET, quiet[number])]
        turn += [(LOUD, request) for request in loud[number * loud_each : (number + 1) * loud_each]]
        for position, (tenant, request) in enumerate(turn):
            yield replace(
                request,
                session=f"{tenant}/{request.session}",
                blocks=tuple(f"{tenant}/{block}" for block in request.blocks),
                t_s=float(number * len(turn) + position),
            )


def hit_rates(requests: Sequence[Request], blocks: int, floor: float) -> dict[str, float]:
    cache = PrefixCache(blocks, TenantsPolicy(floor))
    asked: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for index, request in enumerate(requests):
        hits = cache.play(request, index, float(request.t_s or 0.0))
        if index >= len(requests) // 10:
            for name in (tenant_of(request), "both"):
                asked[name] += len(request.blocks)
                found[name] += hits
    return {name: round(found[name] / asked[name], 4) for name in (QUIET, LOUD, "both")}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tenant_floor", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("quiet", type=Path)
    parser.add_argument("loud", type=Path)
    parser.add_argument("--blocks", type=int, required=True, help="cache size")
    parser.add_argument("--each", type=int, default=8, help="requests of the loud tenant for one of the quiet")
    parser.add_argument("--floor", type=float, action="append", required=True)
    given = parser.parse_args()
    requests = list(mixed(read_trace(given.quiet), read_trace(given.loud), given.each))
    for floor in given.floor:
        print(json.dumps({"floor": floor, "requests": len(requests), **hit_rates(requests, given.blocks, floor)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
