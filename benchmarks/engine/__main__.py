"""`python -m benchmarks.engine SOURCE`: the same requests under several policies on real vLLM, in one run.

Two applications on one local Ray, each with as many replicas: `ray.serve.llm` as shipped, and this project's.
Results go to a file, a line a cell; a second call with equal settings goes on where the first one ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.engine import costs
from benchmarks.engine.cells import CLOSED, LOOPS, MODES, POISSON, Grid, Results, Row, fingerprint
from benchmarks.engine.run import Play, Runner, commit
from benchmarks.engine.servers import Machine, RunningServer, ServerError, Servers, started
from benchmarks.engine.table import groups, markdown, policy_lines
from benchmarks.engine.text import ModelText
from benchmarks.engine.workloads import WORKLOADS, Anchors
from benchmarks.trace_format import TraceError
from cluster.embedded_model import ensure_embedded_model
from cluster.errors import LaunchError
from cluster.stop_signals import StopRequested

QUICK = {"policy": ["stock", "reach"], "loop": [CLOSED], "seeds": (1,), "requests": 40}


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
    policies = tuple(given.policy or (name for name in MODES if name != "stock" or not (given.url or given.simulated)))
    simulated = costs.read_simulated(given.simulated) if given.simulated else None
    machine = Machine(given.replicas, given.blocks, with_stock="stock" in policies, simulated=simulated)
    grid = Grid(
        workloads=tuple(given.workload or ("humaneval-dylan",)),
        anchors=tuple(anchors.name for anchors in given.anchors),
        loops=tuple(given.loop or (CLOSED, POISSON)),
        loads=given.loads,
        seeds=given.seeds or (1,),
        policies=policies,
    )
    play = _play(given, machine)
    settings = {
        **asdict(play),
        "source": "",
        "anchors": "",
        "replicas": machine.replicas,
        "url": given.url,
        "simulated": simulated,
    }
    results = Results(given.out, fingerprint(settings))
    text = ModelText(given.model_dir or ensure_embedded_model())

    def told(row: Row) -> None:
        if not given.json:
            shown = (
                f"hit {row['hit_rate']:.3f}, TTFT {row['ttft_mean_s']:.2f} s, {row['requests_per_s']:.2f} requests/s"
            )
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


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 0:
        raise argparse.ArgumentTypeError(f"expected integers with commas between, got {text!r}")
    return numbers


def _loads(text: str) -> tuple[float, ...]:
    try:
        loads = tuple(float(part) for part in text.split(","))
    except ValueError:
        loads = ()
    if not loads or not all(0.0 < load <= 4.0 for load in loads):
        raise argparse.ArgumentTypeError(f"expected shares within (0, 4] with commas between, got {text!r}")
    return loads


def _anchors(text: str) -> Anchors:
    if text == "recorded":
        return Anchors()
    low, _, high = text.partition("-")
    if low.isdecimal() and (high or low).isdecimal() and 0 < int(low) <= int(high or low):
        return Anchors((int(low), int(high or low)))
    raise argparse.ArgumentTypeError(f"expected recorded, TOKENS or LOW-HIGH, got {text!r}")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an integer from 0 up, got {text!r}")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer from 1 up, got {text!r}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    traces = os.environ.get("AGENT_RUNTIME_TRACES")
    arguments.add_argument(
        "source", type=Path, nargs="?" if traces else None, default=Path(traces) if traces else None,
        help="folder of recorded sessions (default: AGENT_RUNTIME_TRACES)",
    )  # fmt: skip
    add = arguments.add_argument
    add("--workload", action="append", help=f"{', '.join(WORKLOADS)}, or any set (default: humaneval-dylan)")
    add("--anchors", type=_anchors, nargs="+", default=[Anchors((400, 800))], metavar="recorded|LOW-HIGH")
    add("--policy", action="append", choices=list(MODES), help="default: all")
    add("--loop", action="append", choices=LOOPS, help="default: closed, then poisson")
    add("--loads", type=_loads, default=(0.7,), metavar="SHARE,...", help="of stock's saturation (default 0.7)")
    add("--seeds", type=_numbers, metavar="N,N", help="default 1")
    add("--requests", type=_positive, help="a cell (default 60)")
    add("--warm-up", type=_count, metavar="N", help="first requests of a cell that don't count (default a quarter)")
    add("--sessions", type=_positive, default=12, help="live at a time (default 12)")
    add("--in-flight", type=_positive, default=2, help="requests at a time in a closed loop (default 2)")
    add("--teach", type=_count, default=40, help="requests a workload before its first cell (default 40)")
    add("--pressure", type=float, default=2.0, help="all anchors together / caches, for given sizes (default 2)")
    add("--max-tokens", type=_positive, default=4, help="of an answer (default 4)")
    add("--max-prompt-tokens", type=_positive, default=3072, help="longer prompts are cut (default 3072)")
    add("--replicas", type=_positive, default=1, help="of each of the two applications (default 1)")
    add("--blocks", type=_positive, default=160, help="of 32 tokens, a replica's cache (default 160)")
    add("--out", type=Path, default=Path("engine-results.jsonl"), help="default engine-results.jsonl")
    add("--minutes", type=float, help="begin no cell after so many")
    add("--quick", action="store_true", help="stock and reach, a closed loop, one seed: five minutes")
    add("--json", action="store_true", help="a line a policy instead of tables")
    add("--url", help="measure a server that already runs, all but stock")
    add("--key", default="", help="API key for requests to --url")
    add("--operator-key", default="", help="API key for POST /runtime/policy at --url")
    add("--costs", type=Path, metavar="FILE", help="first fit a cost model on the engine and write it there")
    add("--simulated", type=Path, metavar="FILE", help="the cost model of such a file instead of vLLM, and no stock")
    add("--model-dir", type=Path, help="tokenizer and chat template (default: the embedded model)")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
