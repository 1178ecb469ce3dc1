"""What benchmarks over recorded sets are asked for, and how they answer."""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.trace_format import TraceError
from benchmarks.trace_source import Recording, known_sets, load_set


def numbers(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 0:
        raise argparse.ArgumentTypeError(f"expected integers with commas between, got {text!r}")
    return found


def set_parser(module: str, doc: str) -> argparse.ArgumentParser:
    """With the source, the sets, the seeds and `--json`."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{module}", description=doc.split("\n")[0])
    parser.add_argument("source", nargs="?", default=os.environ.get("AGENT_RUNTIME_TRACES"), type=Path)
    parser.add_argument("--set", action="append", help="default: all of the source, without those made of others")
    parser.add_argument("--seeds", type=numbers, default=(1, 2, 3), metavar="N,N")
    parser.add_argument("--json", action="store_true", help="a line a row instead of a table")
    return parser


def given_sets(given: argparse.Namespace, least_sessions: int) -> dict[str, list[Recording]]:
    """Name -> sessions, of sets with so many. Raises SystemExit without a source, or naming what is wrong with it."""
    if given.source is None:
        raise SystemExit("SOURCE, or AGENT_RUNTIME_TRACES")
    try:
        known = known_sets(given.source)
        names = given.set or [name for name in known if not any(other.startswith(f"{name}/") for other in known)]
        sets = {name: load_set(given.source, name) for name in names}
    except TraceError as error:
        raise SystemExit(str(error)) from error
    return {name: found for name, found in sets.items() if len(found) >= least_sessions}


def agents_of(recordings: Iterable[Recording]) -> list[str]:
    return sorted({step.agent for recording in recordings for step in recording.steps})


def shuffled(recordings: Sequence[Recording], seed: int) -> list[Recording]:
    order = list(recordings)
    random.Random(seed).shuffle(order)
    return order


def show(rows: Iterable[Mapping[str, Any]], as_json: bool) -> None:
    """Each row as it comes: a line of JSON, or of a table whose columns are the first row's keys."""
    for number, row in enumerate(rows):
        if as_json:
            print(json.dumps(row), flush=True)
            continue
        if number == 0:
            print(f"| {' | '.join(row)} |\n|{' --- |' * len(row)}")
        cells = (f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values())
        print(f"| {' | '.join(cells)} |", flush=True)
