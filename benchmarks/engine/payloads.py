"""A workload's requests for another load generator: `python -m benchmarks.engine.payloads SOURCE --out FILE`.

One request body a line, in the order in which they are sent; aiperf reads it as `--custom-dataset-type raw-payload`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.engine.drive import payload
from benchmarks.engine.schedule import Shape, build_schedule
from benchmarks.engine.text import ModelText
from benchmarks.engine.workloads import Anchors, load_workload
from benchmarks.trace_format import TraceError
from cluster.embedded_model import ensure_embedded_model


def main(argv: Sequence[str] | None = None) -> int:
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.engine.payloads", description=__doc__)
    arguments.add_argument("source", type=Path)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--workload", default="gsm8k-agentverse")
    arguments.add_argument("--model", default="smollm2-135m-instruct", help="its name at the endpoint")
    arguments.add_argument("--requests", type=int, default=60)
    arguments.add_argument("--sessions", type=int, default=12)
    arguments.add_argument("--max-tokens", type=int, default=4)
    arguments.add_argument("--max-prompt-tokens", type=int, default=3072)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--salt", default="", help="before every prompt: what has another one shares no cache")
    given = arguments.parse_args(argv)
    try:
        text = ModelText(ensure_embedded_model())
        scripts = load_workload(given.source, given.workload, text)
        sizes = (given.max_tokens, given.max_prompt_tokens)
        shape = Shape(given.requests, given.sessions, 1, Anchors(), *sizes, given.seed, given.salt)
        prompts = build_schedule(scripts, shape, text).prompts
        given.out.write_text("".join(json.dumps(payload(p, given.model)) + "\n" for p in prompts), encoding="utf-8")
    except (TraceError, OSError) as error:
        print(f"payloads: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
