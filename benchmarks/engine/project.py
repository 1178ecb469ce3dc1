"""What an engine of given costs would do: `python -m benchmarks.engine.project SOURCE --costs FILE`.

A projection, not a measurement: the simulated engine (`replicas/simulation`) with its real eviction order plays a
workload in virtual time, without a gateway, a router, prefetch or a second replica. With costs fitted on this machine
it can be held against what the real engine did; `h100_llama_3_1_8b.json` has figures of public sources.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import selectors
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.engine.costs import read_simulated
from benchmarks.engine.drive import Sample, closed_loop, open_loop
from benchmarks.engine.measures import best_hit_rate, summary
from benchmarks.engine.schedule import Prompt, Schedule, Shape, build_schedule, poisson_times
from benchmarks.engine.text import ModelText
from benchmarks.engine.workloads import Anchors, load_workload, teams_for
from benchmarks.trace_format import TraceError
from cluster.embedded_model import ensure_embedded_model
from replicas.cache.settings import POLICIES, ValueSettings
from replicas.simulation.cache import Prompt as SimulatedPrompt
from replicas.simulation.engine import CostModel, SimulatedCore, SimulatedRequest
from runtime_actor.messages import OwnerTag
from runtime_actor.reach import ReachSettings, compute_tables
from runtime_actor.settings import from_dict
from runtime_actor.transitions import TransitionModel

WORKLOAD = "projection"
TABLES_EVERY = 4
"""Requests between two tables, about as often as the actor sends them to a busy engine."""


class VirtualSelector(selectors.DefaultSelector):
    """Instead of waiting it moves the clock: nothing outside the process can wake this loop."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0.0:
            self.now_s += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is what its sleeps add up to."""

    def __init__(self) -> None:
        self._virtual = VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


class SimulatedSender:
    """One simulated engine, and the tables that the runtime would send it."""

    def __init__(self, cost: CostModel, policy: str, loop: VirtualLoop) -> None:
        self._loop = loop
        self._core = SimulatedCore(cost, ValueSettings(policy=policy), loop.time)
        self._model = TransitionModel()
        self._arrived = 0

    def now_s(self) -> float:
        return self._loop.time()

    async def send(self, prompt: Prompt, due_s: float) -> Sample:
        self._observe(prompt)
        first: list[float] = []
        cached: list[int] = []
        request = SimulatedRequest(
            request_id=str(prompt.position),
            prompt=SimulatedPrompt(prompt.prompt_ids),
            max_tokens=prompt.max_tokens,
            tag=OwnerTag(WORKLOAD, prompt.agent, prompt.session),
            on_prefill=cached.append,
        )
        async for token in self._core.generate(request):
            if token == 1:
                first.append(self.now_s())
        if prompt.final:
            self._model.end(prompt.session, self.now_s())
            self._core.cache.directory.end(WORKLOAD, prompt.session)
        return Sample(
            position=prompt.position,
            agent=prompt.agent,
            start_s=due_s,
            ttft_s=first[0] - due_s,
            e2e_s=self.now_s() - due_s,
            prompt_tokens=len(prompt.prompt_ids),
            cached_tokens=cached[0],
            completion_tokens=prompt.max_tokens,
        )

    def _observe(self, prompt: Prompt) -> None:
        self._model.observe(prompt.session, prompt.agent, self.now_s())
        if self._arrived % TABLES_EVERY == 0:
            self._core.cache.directory.set_tables(compute_tables(self._model, ReachSettings(), WORKLOAD))
        self._arrived += 1


def project(
    schedule: Schedule, cost: CostModel, policy: str, in_flight: int, times: Sequence[float] | None = None
) -> list[Sample]:
    """Samples as `drive` gives them, in virtual seconds. times: when each request is due; None: a closed loop."""
    loop = VirtualLoop()
    try:
        sender = SimulatedSender(cost, policy, loop)
        if times is None:
            samples = loop.run_until_complete(closed_loop(sender, schedule.prompts, in_flight))
        else:
            samples = loop.run_until_complete(open_loop(sender, schedule.prompts, times))
    finally:
        loop.close()
    return sorted(samples, key=lambda sample: sample.start_s)


def rows(
    schedule: Schedule, cost: CostModel, policies: Sequence[str], in_flight: int, load: float
) -> list[dict[str, Any]]:
    """Closed and open loop of each policy, the open one at `load` times the first policy's saturation."""
    warm_up = len(schedule.prompts) // 4
    found = []
    rate = 0.0
    for policy in policies:
        closed = project(schedule, cost, policy, in_flight)
        result = summary(closed, warm_up)
        rate = rate or load * result["requests_per_s"]
        times = poisson_times(len(schedule.prompts), rate, 1)
        bound = best_hit_rate(schedule.prompts, closed, warm_up, cost.num_blocks, cost.block_size)
        found.append({"policy": policy, "loop": "closed", "min_hit_rate": bound, **result})
        opened = summary(project(schedule, cost, policy, in_flight, times), warm_up)
        found.append({"policy": policy, "loop": "poisson", "offered_per_s": rate, "min_hit_rate": None, **opened})
    return found


def markdown(name: str, source: str, found: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        f"### Projection, not a measurement: {name}",
        "",
        f"Costs: {source}",
        "",
        "| policy | loop | hit rate | bound | TTFT mean | p99 | end to end | requests/s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        bound = "" if row["min_hit_rate"] is None else f"{row['min_hit_rate']:.1%}"
        times = " | ".join(f"{1000 * row[key]:.1f} ms" for key in ("ttft_mean_s", "ttft_p99_s", "e2e_mean_s"))
        rates = f"{row['hit_rate']:.1%} | {bound}"
        lines.append(f"| {row['policy']} | {row['loop']} | {rates} | {times} | {row['requests_per_s']:.2f} |")
    return lines


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.engine.project", description=__doc__)
    traces = os.environ.get("AGENT_RUNTIME_TRACES")
    arguments.add_argument("source", type=Path, nargs="?" if traces else None, default=traces)
    arguments.add_argument("--costs", type=Path, required=True, help="file that --costs of benchmarks.engine writes")
    arguments.add_argument("--workload", default="humaneval-dylan")
    arguments.add_argument("--policy", action="append", choices=POLICIES, help="default: lru, anchors, reach")
    arguments.add_argument("--anchor-tokens", type=int, nargs=2, default=(2000, 3000), metavar=("LOW", "HIGH"))
    arguments.add_argument("--blocks", type=int, default=1600, help="of 32 tokens (default 1600)")
    arguments.add_argument("--pressure", type=float, default=2.0)
    arguments.add_argument("--requests", type=int, default=800)
    arguments.add_argument("--sessions", type=int, default=24)
    arguments.add_argument("--in-flight", type=int, default=8)
    arguments.add_argument("--load", type=float, default=0.7)
    arguments.add_argument("--max-tokens", type=int, default=64, help="of an answer (default 64)")
    arguments.add_argument("--max-prompt-tokens", type=int, default=6144)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--json", action="store_true")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    given = parser().parse_args(argv)
    try:
        cost = replace(from_dict(CostModel, read_simulated(given.costs), "simulated"), num_blocks=given.blocks)
        text = ModelText(ensure_embedded_model())
        scripts = load_workload(Path(given.source), given.workload, text)
    except TraceError as error:
        print(f"project: {error}", file=sys.stderr)
        return 2
    anchors = Anchors((given.anchor_tokens[0], given.anchor_tokens[1]))
    agents = len(set().union(*(script.agents for script in scripts)))
    teams = teams_for(agents, anchors, given.blocks * cost.block_size, given.pressure)
    shape = Shape(given.requests, given.sessions, teams, anchors, given.max_tokens, given.max_prompt_tokens, given.seed)
    schedule = build_schedule(scripts, shape, text)
    found = rows(schedule, cost, given.policy or ["lru", "anchors", "reach"], given.in_flight, given.load)
    if given.json:
        print("\n".join(json.dumps({"projection": True, "workload": given.workload, **row}) for row in found))
    else:
        source = json.loads(given.costs.read_text(encoding="utf-8")).get("source", "not said")
        print("\n".join(markdown(given.workload, source, found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
