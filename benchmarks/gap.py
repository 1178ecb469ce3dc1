"""How much of the way from LRU to MIN a policy goes: `python -m benchmarks.gap SOURCE_DIR --policy reach`.

For every set, variant, cache size (in mean prompts), concurrency and seed: share = (policy - LRU) / (MIN -
LRU), over cases whose gap is above 0.3 percentage points. One line a set and variant, then a summary.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.arguments import numbers
from benchmarks.policies.known import ABLATIONS, ONLINE
from benchmarks.replay import replay, smallest_cache
from benchmarks.trace_format import Request, TraceError
from benchmarks.trace_source import known_sets, load_set
from benchmarks.traces import CLOCKS, TraceSettings, build_trace

LEAST_GAP = 0.003

VARIANTS = {
    "history": ("history", None),
    "fresh": ("fresh", None),
    "history+anchors": ("history", (2000, 3000)),
    "fresh+anchors": ("fresh", (2000, 3000)),
}
"""Name -> (variant, anchor tokens)."""


@dataclass(frozen=True, slots=True)
class Case:
    """`caches` is the cache size in mean prompts; hit rates by policy, `lru` and `min` among them."""

    set: str
    variant: str
    concurrency: int
    caches: float
    seed: int
    blocks: int
    hit_rates: dict[str, float]

    def share(self, policy: str) -> float | None:
        """None where there is no gap to close."""
        lru, best = self.hit_rates["lru"], self.hit_rates["min"]
        return None if best - lru < LEAST_GAP else (self.hit_rates[policy] - lru) / (best - lru)

    def points(self, policy: str) -> float:
        """Percentage points above LRU."""
        return 100.0 * (self.hit_rates[policy] - self.hit_rates["lru"])


@dataclass(frozen=True, slots=True)
class Grid:
    sets: tuple[str, ...]
    variants: tuple[str, ...]
    concurrencies: tuple[int, ...]
    caches: tuple[float, ...]
    seeds: tuple[int, ...]
    clock: str
    requests: int | None
    policies: tuple[str, ...]


def run(source: Path, grid: Grid) -> Iterator[Case]:
    for name in grid.sets:
        recordings = load_set(source, name)
        for variant in grid.variants:
            kind, anchor_tokens = VARIANTS[variant]
            for concurrency in grid.concurrencies:
                for seed in grid.seeds:
                    settings = TraceSettings(
                        concurrency=concurrency,
                        seed=seed,
                        variant=kind,
                        clock=grid.clock,
                        anchor_tokens=anchor_tokens,
                        requests=grid.requests,
                    )
                    trace = build_trace(recordings, settings)
                    for caches in grid.caches:
                        blocks, rates = _rates(trace, caches, grid.policies)
                        yield Case(name, variant, concurrency, caches, seed, blocks, rates)


def _rates(trace: Sequence[Request], caches: float, policies: Sequence[str]) -> tuple[int, dict[str, float]]:
    """Without a gap to close the policies are run all the same: they must not fall below LRU."""
    mean_blocks = sum(len(request.blocks) for request in trace) / len(trace)
    blocks = max(round(caches * mean_blocks), smallest_cache(trace))
    return blocks, {name: replay(trace, blocks, name).hit_rate for name in ("lru", "min", *policies)}


def table(cases: Sequence[Case], policy: str) -> list[str]:
    """Lines for people: per set and variant, then per variant, then all."""
    lines = [f"{policy}: share of the LRU -> MIN gap", _HEAD]
    keys = sorted({(case.set, case.variant) for case in cases})
    lines += [_line(f"{s} {v}", [c for c in cases if (c.set, c.variant) == (s, v)], policy) for s, v in keys]
    lines += [_line(f"all {v}", [c for c in cases if c.variant == v], policy) for v in VARIANTS]
    lines.append(_line("all", cases, policy))
    return [line for line in lines if line]


_HEAD = f"{'set':52s} {'cases':>5s} {'gaps':>4s} {'median':>7s} {'mean':>7s} {'worst':>7s} {'worst pp':>8s}"


def _line(name: str, cases: Sequence[Case], policy: str) -> str:
    if not cases:
        return ""
    shares = [share for case in cases if (share := case.share(policy)) is not None]
    points = min(case.points(policy) for case in cases)
    figures = (
        (f"{x:7.3f}" for x in (statistics.median(shares), statistics.fmean(shares), min(shares)))
        if shares
        else ("      -",) * 3
    )
    return f"{name:52s} {len(cases):5d} {len(shares):4d} {' '.join(figures)} {points:8.2f}"


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.gap", description=__doc__)
    arguments.add_argument("source", type=Path)
    arguments.add_argument("--policy", action="append", choices=[*ONLINE, *ABLATIONS], help="default: reach")
    arguments.add_argument("--set", action="append", help="default: all sets of the source")
    arguments.add_argument("--variant", action="append", choices=list(VARIANTS), help="default: all")
    arguments.add_argument("--concurrency", type=numbers, default=(1, 8, 32), metavar="N,N")
    arguments.add_argument("--caches", type=numbers, default=(3, 6, 12), metavar="N,N")
    arguments.add_argument("--seeds", type=numbers, default=(1,), metavar="N,N")
    arguments.add_argument("--clock", choices=CLOCKS, default="paced")
    arguments.add_argument("--requests", type=int, default=1500, help="0: one pass over the set")
    arguments.add_argument("--json", action="store_true", help="one line a case instead of the table")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    given = parser().parse_args(argv)
    policies = tuple(given.policy or ("reach",))
    cases = []
    try:
        grid = Grid(
            sets=tuple(given.set or known_sets(given.source)),
            variants=tuple(given.variant or VARIANTS),
            concurrencies=given.concurrency,
            caches=given.caches,
            seeds=given.seeds,
            clock=given.clock,
            requests=given.requests or None,
            policies=policies,
        )
        for case in run(given.source, grid):
            cases.append(case)
            if given.json:
                print(json.dumps(asdict(case)), flush=True)
    except TraceError as error:
        print(f"gap: {error}", file=sys.stderr)
        return 2
    if not given.json:
        print("\n\n".join("\n".join(table(cases, policy)) for policy in policies))
    return 0


if __name__ == "__main__":
    sys.exit(main())
