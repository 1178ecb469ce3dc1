"""`python -m benchmarks.engine SOURCE`: the same requests under several policies on real vLLM, in one run.

Two applications on one local Ray, each with as many replicas: `ray.serve.llm` as shipped, and this project's.
Results go to a file, a line a cell; a second call with equal settings goes on where the first one ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.engine import costs
from benchmarks.engine.cells import CLOSED, MODES, POISSON, STOCK, Grid, Results, Row, fingerprint
from benchmarks.engine.options import QUICK, parser
from benchmarks.engine.run import Play, Runner, commit
from benchmarks.engine.servers import Machine, RunningServer, ServerError, Servers, started
from benchmarks.engine.table import groups, markdown, policy_lines
from benchmarks.engine.text import ModelText
from benchmarks.trace_format import TraceError
from cluster.embedded_model import ensure_embedded_model
from cluster.errors import LaunchError
from cluster.stop_signals import StopRequested


def main(argv: Sequence[str] | None = None) -> int:
    given = parser().parse_args(argv)
    if given.quick:
        for name, value in QUICK.items():
            if getattr(given, name) is None:
                setattr(given, name, value)
    try:
        return _run(given)
    except (TraceError, ServerError, LaunchError) as error:
        print(f"engine: {error}", file=sys.stderr)
        return 2
    except StopRequested:
        print("engine: stopped; the same command goes on", file=sys.stderr)
        return 130


def _run(given: argparse.Namespace) -> int:
    simulated = costs.read_simulated(given.simulated) if given.simulated else None
    grid = _grid(given)
    machine = _machine(given, grid.policies, simulated)
    play = _play(given, machine)
    settings = {
        **asdict(play),
        "source": "",
        "anchors": "",
        "replicas": machine.replicas,
        "threads": machine.threads,
        "url": given.url,
        "simulated": simulated,
    }
    results = Results(given.out, fingerprint(settings))
    text = ModelText(given.model_dir or ensure_embedded_model())

    def told(row: Row) -> None:
        if not given.json:
            rate = row["requests_per_s"]
            shown = f"hit {row['hit_rate']:.3f}, TTFT {row['ttft_mean_s']:.2f} s, {rate:.2f} requests/s"
            print(f"{row['workload']} {row['anchors']} {row['loop']} {row['policy']}: {shown}", file=sys.stderr)

    left = len([cell for cell in grid.cells() if cell not in results.rows])
    if left or given.costs:
        with _servers(given, machine) as servers:
            if given.costs:
                _measure_costs(given, servers, text)
            left = Runner(play, servers, results, text).run(grid, given.minutes, told)
    wanted = set(grid.cells())
    _show([row for cell, row in results.rows.items() if cell in wanted], given.json)
    if left:
        print(f"engine: {left} cells left; the same command goes on", file=sys.stderr)
    return 0


def _measure_costs(given: argparse.Namespace, servers: Servers, text: ModelText) -> None:
    """Of stock where it is served, else of the layer in stock's order."""
    endpoint = servers.prepare("stock" if "stock" in servers.policies else "lru", "costs")
    samples = costs.measure(endpoint, text, secrets.token_hex(4))
    try:
        found = costs.fit(samples, f"measured on this machine, {endpoint.model}, commit {commit()}")
    except ValueError as error:
        raise ServerError(f"costs: {error}") from error
    costs.write(found, given.costs)
    print(f"engine: {found}", file=sys.stderr)


def _play(given: argparse.Namespace, machine: Machine) -> Play:
    requests = given.requests or 60
    return Play(
        source=given.source,
        requests=requests,
        warm_up=requests // 4 if given.warm_up is None else min(given.warm_up, requests - 1),
        teach=given.teach,
        sessions=given.sessions,
        in_flight=given.in_flight,
        pressure=given.pressure,
        max_tokens=given.max_tokens,
        max_prompt_tokens=given.max_prompt_tokens,
        cache_blocks=machine.cache_blocks,
        block_tokens=machine.block_tokens,
        anchors={anchors.name: anchors for anchors in given.anchors},
    )


def _grid(given: argparse.Namespace) -> Grid:
    only_layer = bool(given.url or given.simulated)
    return Grid(
        workloads=tuple(given.workload or ("humaneval-dylan",)),
        anchors=tuple(anchors.name for anchors in given.anchors),
        loops=tuple(given.loop or (CLOSED, POISSON)),
        loads=given.loads,
        seeds=given.seeds or (1,),
        policies=tuple(given.policy or (name for name in MODES if name != STOCK or not only_layer)),
    )


def _machine(given: argparse.Namespace, policies: tuple[str, ...], simulated: dict[str, Any] | None) -> Machine:
    return Machine(
        given.replicas,
        given.blocks,
        threads=given.threads,
        with_stock=STOCK in policies,
        with_layer=policies != (STOCK,),
        simulated=simulated,
    )


@contextlib.contextmanager
def _servers(given: argparse.Namespace, machine: Machine) -> Iterator[Servers]:
    if given.url:
        with RunningServer(given.url, given.key, given.operator_key or given.key).kept() as running:
            yield running
    else:
        print("engine: starting the servers (one to four minutes)", file=sys.stderr)
        with started(machine) as own:
            yield own


def _show(rows: Sequence[Row], as_json: bool) -> None:
    if not as_json:
        print("\n".join(markdown(rows)))
        return
    for key, found in groups(rows).items():
        for line in policy_lines(found):
            named = dict(zip(("workload", "anchors", "loop", "load"), key, strict=True))
            print(json.dumps({**line, **named}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
