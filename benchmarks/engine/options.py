"""The command line of `python -m benchmarks.engine`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.arguments import numbers
from benchmarks.engine.cells import CLOSED, LOOPS, MODES
from benchmarks.engine.workloads import WORKLOADS, Anchors

OUT = Path("benchmarks/results/tmp/engine.jsonl")
QUICK = {"policy": ["stock", "reach"], "loop": [CLOSED], "seeds": (1,), "requests": 40}
"""What `--quick` sets where nothing else is said."""

DESCRIPTION = """The same requests under several policies on real vLLM, in one run. Two applications on one local Ray,
each with as many replicas: `ray.serve.llm` as shipped, and this project's. Results go to a file, a line a cell; a
second call with equal settings goes on where the first one ended."""


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
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=DESCRIPTION)
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
    add("--seeds", type=numbers, metavar="N,N", help="default 1")
    add("--requests", type=_positive, help="a cell (default 60)")
    add("--warm-up", type=_count, metavar="N", help="first requests of a cell that don't count (default a quarter)")
    add("--sessions", type=_positive, default=12, help="live at a time (default 12)")
    add("--in-flight", type=_positive, default=2, help="requests at a time in a closed loop (default 2)")
    add("--teach", type=_count, default=40, help="requests a workload before its first cell (default 40)")
    add("--pressure", type=float, default=2.0, help="all anchors together / caches, for given sizes (default 2)")
    add("--max-tokens", type=_positive, default=4, help="of an answer (default 4)")
    add("--max-prompt-tokens", type=_positive, default=3072, help="longer prompts are cut (default 3072)")
    add("--replicas", type=_positive, default=1, help="of each of the two applications (default 1)")
    add("--threads", type=_positive, default=1, help="of each engine on a CPU (default 1)")
    add("--blocks", type=_positive, default=160, help="of 32 tokens, a replica's cache (default 160)")
    add("--out", type=Path, default=OUT, help=f"default {OUT}")
    add("--minutes", type=float, help="begin no cell after so many")
    add("--quick", action="store_true", help="stock and reach, a closed loop, one seed: five minutes")
    add("--json", action="store_true", help="a line a policy instead of tables")
    add("--url", help="measure a server that already runs, all but stock; say its --replicas and --blocks")
    add("--key", default="", help="API key for requests to --url")
    add("--operator-key", default="", help="API key for POST /runtime/policy at --url")
    add("--costs", type=Path, metavar="FILE", help="first fit a cost model on the engine and write it there")
    add("--simulated", type=Path, metavar="FILE", help="the cost model of such a file instead of vLLM, and no stock")
    add("--model-dir", type=Path, help="tokenizer and chat template (default: the embedded model)")
    return arguments
