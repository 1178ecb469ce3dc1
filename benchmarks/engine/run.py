"""Runs the cells of a grid that have no result yet, one after the other."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.engine.cells import CLOSED, POISSON, STOCK, Cell, Grid, Results, Row
from benchmarks.engine.drive import Sample, drive
from benchmarks.engine.measures import best_hit_rate, summary
from benchmarks.engine.schedule import Schedule, Shape, build_schedule, poisson_times, recorded_times
from benchmarks.engine.servers import RunningServer, ServerError, Servers
from benchmarks.engine.text import ModelText
from benchmarks.engine.workloads import Anchors, Script, load_workload, teams_for

ARRIVALS = "mooncake_arrivals/arrivals.jsonl"
PREFETCH_OUTCOMES = ("issued", "useful", "wasted", "refused")
RESIDENCY_PERIOD_S = 3.0
TEACHING_SEED = 0


@dataclass(frozen=True, slots=True)
class Play:
    """What all cells of a run have in common.

    warm_up: a cell's first requests, which don't count; teach: requests before the first cell of a workload, from
    which the layer learns and which aren't measured; sessions: live at a time; in_flight: requests at a time in a
    closed loop; pressure: all anchors together, as a multiple of the cache, where their size is given; cache_blocks:
    of all replicas.
    """

    source: Path
    requests: int
    warm_up: int
    teach: int
    sessions: int
    in_flight: int
    pressure: float
    max_tokens: int
    max_prompt_tokens: int
    cache_blocks: int
    block_tokens: int
    anchors: dict[str, Anchors]

    @property
    def cache_tokens(self) -> int:
        return self.cache_blocks * self.block_tokens


class Runner:
    def __init__(self, play: Play, servers: Servers, results: Results, text: ModelText) -> None:
        self._play = play
        self._servers = servers
        self._results = results
        self._text = text
        self._scripts: dict[str, list[Script]] = {}
        self._schedules: dict[tuple[str, str, int], Schedule] = {}
        self._taught: set[tuple[str, str]] = set()
        self._commit = commit()

    def run(self, grid: Grid, minutes: float | None, told: Callable[[Row], None]) -> int:
        """How many cells are left when `minutes` are over; a cell that has begun is finished."""
        left = [cell for cell in grid.cells() if cell not in self._results.rows]
        deadline_s = time.monotonic() + 60.0 * minutes if minutes is not None else float("inf")
        # A log gets a line now and then, a terminal one that is redrawn.
        often_s = 0.5 if sys.stderr.isatty() else 30.0
        total = len(left) * self._play.requests
        with tqdm(total=total, unit="request", smoothing=0.05, mininterval=often_s, maxinterval=often_s) as bar:
            for number, cell in enumerate(left):
                if time.monotonic() > deadline_s:
                    return len(left) - number
                bar.set_description(cell.name, refresh=False)
                told(self._results.add(cell, self._measure(cell, lambda: _step(bar))))
        return 0

    def _measure(self, cell: Cell, done: Callable[[], None]) -> Row:
        schedule = self._schedule(cell)
        times, rate = self._times(cell)
        self._teach(cell)
        endpoint = self._servers.prepare(cell.policy, f"{cell.workload} {cell.anchors}")
        prefetch = self._prefetch(cell)
        started = time.time()
        samples, residency = asyncio.run(self._drive(cell, endpoint, schedule, times, done))
        return {
            "commit": self._commit,
            "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime(started)),
            "seconds": round(time.time() - started, 1),
            "offered_per_s": rate,
            **self._about(schedule, cell),
            **summary(samples, self._play.warm_up),
            "min_hit_rate": self._best(schedule, samples),
            "prefetch": {name: count - prefetch[name] for name, count in self._prefetch(cell).items()},
            "samples": [compact(sample) for sample in samples],
            "residency": residency,
        }

    def _teach(self, cell: Cell) -> None:
        """Other sessions of the workload, not measured: the layer is to be compared as it is after some hours."""
        about = (cell.workload, cell.anchors)
        if about in self._taught or self._play.teach == 0 or "lru" not in self._servers.policies:
            return
        self._taught.add(about)
        lesson = replace(cell, seed=TEACHING_SEED)
        schedule = self._schedule(lesson)
        endpoint = self._servers.prepare("lru", f"{cell.workload} {cell.anchors}")
        prompts = tuple(replace(prompt, max_tokens=1) for prompt in schedule.prompts[: self._play.teach])
        asyncio.run(drive(endpoint, replace(schedule, prompts=prompts), self._play.in_flight, None, lambda: None))

    async def _drive(
        self, cell: Cell, endpoint: Any, schedule: Schedule, times: list[float] | None, done: Callable[[], None]
    ) -> tuple[list[Sample], list[list[Any]]]:
        """The samples, and [seconds, {agent: resident blocks}] of all replicas every few seconds."""
        seen: list[list[Any]] = []
        watch = asyncio.create_task(self._watch(seen)) if cell.policy != STOCK else None
        try:
            samples = await drive(endpoint, schedule, self._play.in_flight, times, done)
        finally:
            if watch is not None:
                watch.cancel()
                await asyncio.wait({watch})
        return samples, seen

    async def _watch(self, seen: list[list[Any]]) -> None:
        zero_s = time.monotonic()
        while True:
            await asyncio.sleep(RESIDENCY_PERIOD_S)
            try:
                state = await asyncio.to_thread(self._servers.state)
            except ServerError:
                continue  # a look that failed is a gap in the plot
            labels = {a["agent"]: a.get("label") or a["agent"] for a in state["agents"]}
            blocks: defaultdict[str, int] = defaultdict(int)
            for replica in state["replicas"]:
                for agent, count in replica["resident"].items():
                    if agent in labels:
                        blocks[labels[agent]] += count
            seen.append([round(time.monotonic() - zero_s, 1), dict(blocks)])

    def _schedule(self, cell: Cell) -> Schedule:
        """Kept for all policies of a seed, unless prompts need a salt of their own to miss each other's cache."""
        salted = isinstance(self._servers, RunningServer)
        key = (cell.workload, cell.anchors, cell.seed)
        known = self._schedules.get(key)
        if known is not None and not salted:
            return known
        if cell.workload not in self._scripts:
            self._scripts[cell.workload] = load_workload(self._play.source, cell.workload, self._text)
        scripts = self._scripts[cell.workload]
        anchors = self._play.anchors[cell.anchors]
        agents = set().union(*(script.agents for script in scripts))
        shape = Shape(
            requests=max(self._play.requests, self._play.teach) if cell.seed == TEACHING_SEED else self._play.requests,
            sessions=self._play.sessions,
            teams=teams_for(len(agents), anchors, self._play.cache_tokens, self._play.pressure),
            anchors=anchors,
            max_tokens=self._play.max_tokens,
            max_prompt_tokens=self._play.max_prompt_tokens,
            seed=cell.seed,
            salt=f"~{secrets.token_hex(4)}" if salted else "",
        )
        self._schedules[key] = build_schedule(scripts, shape, self._text)
        return self._schedules[key]

    def _times(self, cell: Cell) -> tuple[list[float] | None, float]:
        """When requests are due, and how many a second; a closed loop has no times."""
        if cell.loop == CLOSED:
            return None, 0.0
        saturation = self._results.saturation(cell, (STOCK, "lru"))
        if saturation is None:
            raise ServerError(f"{cell.name}: an open loop needs the closed loop of stock (or lru) first")
        rate = cell.load * saturation
        if cell.loop == POISSON:
            return poisson_times(self._play.requests, rate, cell.seed), rate
        return recorded_times(self._play.source / ARRIVALS, self._play.requests, rate, cell.seed), rate

    def _best(self, schedule: Schedule, samples: list[Sample]) -> float | None:
        """None where this tokenizer isn't the engine's: the blocks would be others."""
        if any(s.prompt_tokens not in (0, len(schedule.prompts[s.position].prompt_ids)) for s in samples):
            return None
        play = self._play
        return best_hit_rate(schedule.prompts, samples, play.warm_up, play.cache_blocks, play.block_tokens)

    def _about(self, schedule: Schedule, cell: Cell) -> dict[str, Any]:
        cache = self._play.cache_tokens
        return {
            "cache_tokens": cache,
            "mean_prompt_tokens": round(schedule.mean_prompt_tokens, 1),
            "cache_in_mean_prompts": round(cache / schedule.mean_prompt_tokens, 2),
            "agents": len({prompt.agent for prompt in schedule.prompts}),
            "anchors_in_caches": round(schedule.anchors_tokens / cache, 2),
            "clipped": schedule.clipped,
            "warm_up": self._play.warm_up,
        }

    def _prefetch(self, cell: Cell) -> dict[str, int]:
        if cell.policy == STOCK:
            return dict.fromkeys(PREFETCH_OUTCOMES, 0)
        counts = self._servers.state()["prefetch"]
        return {name: int(counts.get(name, 0)) for name in PREFETCH_OUTCOMES}


def _step(bar: tqdm) -> None:
    bar.update()


def compact(sample: Sample) -> list[Any]:
    """As kept in the file: [position, agent, start, ttft, e2e, prompt, cached, completion, replica, error]."""
    return [
        sample.position,
        sample.agent,
        sample.start_s,
        sample.ttft_s,
        sample.e2e_s,
        sample.prompt_tokens,
        sample.cached_tokens,
        sample.completion_tokens,
        sample.replica,
        sample.error,
    ]


def commit() -> str:
    """Short id of the checked-out commit; empty outside a repository."""
    here = Path(__file__).parent
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
