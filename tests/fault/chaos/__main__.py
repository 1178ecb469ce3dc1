"""Run the matrix of faults against a server of its own and print its table.

`scripts/chaos [--engine vllm|simulated] [--rows WORD,WORD] [--callers N] [--turns N] [--hold-scale X] [--json FILE]`
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
from pathlib import Path

from tests.fault.chaos.load import Load
from tests.fault.chaos.rows import ROWS, Result, Row, run_row
from tests.fault.chaos.server import ChaosServer

MODEL = "smollm2-135m-instruct"
HEADER = (
    "| fault | requests | failed | retried | wrong | other text | unanswered | longest gap | whole again "
    "| not counted | |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def main() -> int:
    options = _parse()
    rows = [row for row in ROWS if options.engine in row.engines and _chosen(row, options.rows)]
    results: list[Result] = []
    broken = 0
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        server = ChaosServer(options.engine, Path(folder))
        try:
            load = Load(server.url, MODEL, options.callers, options.turns)
            load.calm()
            print(HEADER, flush=True)
            for row in rows:
                try:
                    result = run_row(row, server, load, options.hold_scale)
                except (RuntimeError, AssertionError):
                    broken += 1
                    print(f"| {row.name} | broken: {traceback.format_exc(limit=1).splitlines()[-1]} |", flush=True)
                    continue
                results.append(result)
                print(_line(result), flush=True)
        finally:
            server.stop()
    if options.json:
        options.json.write_text("".join(json.dumps(result.to_dict()) + "\n" for result in results))
    for result in results:
        if result.unexpected:
            print(f"{result.row}: {result.unexpected} requests failed that need not have", file=sys.stderr)
    return 1 if broken or any(r.wrong or r.unanswered or r.unexpected for r in results) else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", choices=("vllm", "simulated"), default="vllm")
    parser.add_argument("--rows", default="", help="words; rows whose name has one of them (default: all)")
    parser.add_argument("--callers", type=int, default=4)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--hold-scale", type=float, default=1.0, help="how much longer lasting faults last")
    parser.add_argument("--json", type=Path, help="also write the results there, one a line")
    return parser.parse_args()


def _chosen(row: Row, words: str) -> bool:
    return not words or any(word.strip() in row.name for word in words.split(","))


def _line(result: Result) -> str:
    whole = "never" if result.whole_s is None else f"{result.whole_s:g} s"
    cells = [
        result.row, result.requests, result.failed, result.retried, result.wrong, result.varied, result.unanswered,
        f"{result.longest_gap_s:g} s", whole, result.lost, result.notes,
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    sys.exit(main())
