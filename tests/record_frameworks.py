"""Record what the framework examples send, as tests/unit/fixtures/NAME.json.

    .venv/bin/python -m tests.record_frameworks [NAME...] [--python PYTHON]

Each example runs three times against a scripted server: two tasks, whose requests are laid alternately as if
both had run at once, then the first task again with the same answers. No model is needed. PYTHON is the
interpreter that has the frameworks (default: the environment that the example is tested with).
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import Counter
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from random import Random
from subprocess import run as run_process
from typing import Any

from tests.framework_kit import EXAMPLES, FIXTURES, Example
from tests.scripted_openai import Exchange, Message, call, scripted_server, text

TASKS = {"first": "Begin with the north side.", "second": "Begin with what is cheapest."}
RUNS = {**TASKS, "again": TASKS["first"]}
DROPPED_HEADERS = {"host", "authorization", "content-length", "connection", "accept-encoding"}
MACHINE_HEADERS = ("x-stainless-os", "x-stainless-arch", "x-stainless-runtime", "x-stainless-lang")

WORDS = """the a of to with under over before after each old new quiet heavy open narrow stone water timber ledger
harvest measure carry mark count repair hold bring north south morning evening wind gravel copper lantern bridge"""

SCRIPTS: dict[tuple[str, str], list[Any]] = {
    ("langgraph_supervisor", "supervisor"): [
        ("Route", {"worker": "surveyor"}),
        ("Route", {"worker": "analyst"}),
        ("Route", {"worker": "surveyor"}),
    ],
    ("autogen_teams", "selector"): ["planner", "engineer", "inspector"],
    ("pydantic_ai_team", "scout"): [("season", {}), "Chestnuts, sloes and a late trout from the outlet of the lake."],
    ("smolagents_manager", "pilot"): [("tide_table", {"harbour": "Westhaven"}), ("tide_table", {"harbour": "Oldport"})],
    ("smolagents_manager", "harbour master"): [
        ("pilot", {"task": "When is the water high enough for eleven metres of draught at the north quay?"}),
    ],
}
"""Texts and (tool, arguments) in the order of the agent's requests; what isn't here is made up."""


class Script:
    """Answers that depend on the task, the agent and how often it has spoken: a repeated run gets the same."""

    def __init__(self, example: Example) -> None:
        self._example = example
        self._turns: Counter[tuple[str, str]] = Counter()

    def __call__(self, run: str, body: dict[str, Any]) -> Message:
        agent = self._example.agent_of(body)
        turn = self._turns[run, agent]
        self._turns[run, agent] += 1
        script = SCRIPTS.get((self._example.name, agent), [])
        if turn < len(script):
            said = script[turn]
            return text(said) if isinstance(said, str) else call(*said, self._call_id(run))
        if body.get("tools") and body.get("tool_choice", "auto") not in ("auto", "none"):
            return _forced_call(body, self._call_id(run))
        return text(_prose(f"{RUNS[run]} {agent} {turn}"))

    def _call_id(self, run: str) -> str:
        """Never the same twice, as a model server's are."""
        return f"call_{run}_{sum(count for (of, _), count in self._turns.items() if of == run)}"


def _prose(seed: str) -> str:
    """Three sentences that share no line with those of another seed, as two answers of a model wouldn't."""
    random = Random(seed)
    sentences = (" ".join(random.choices(WORDS.split(), k=random.randint(8, 14))) for _ in range(3))
    return " ".join(sentence.capitalize() + "." for sentence in sentences)


def _forced_call(body: dict[str, Any], call_id: str) -> Message:
    choice = body["tool_choice"]
    offered = {tool["function"]["name"]: tool["function"] for tool in body["tools"]}
    function = offered[choice["function"]["name"]] if isinstance(choice, dict) else next(iter(offered.values()))
    schema = function.get("parameters") or {}
    return call(function["name"], {name: _value(of) for name, of in schema.get("properties", {}).items()}, call_id)


def _value(schema: dict[str, Any]) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    return {"boolean": True, "integer": 1, "number": 1.0}.get(schema.get("type", ""), "words")


def record(example: Example, python: Path) -> dict[str, Any]:
    with scripted_server(Script(example)) as server:
        for run, task in RUNS.items():
            process = example.start(python, server.base_url(run), task)
            output, _ = process.communicate(timeout=180)
            if process.returncode:
                raise SystemExit(f"{example.name}, run {run}:\n{output}")
    by_run = {run: [exchange for exchange in server.exchanges if exchange.run == run] for run in RUNS}
    laid = [one for pair in itertools.zip_longest(by_run["first"], by_run["second"]) for one in pair if one]
    return {
        "example": example.name,
        "versions": {name: _version(python, name) for name in example.packages},
        "requests": [_entry(example, exchange) for exchange in [*laid, *by_run["again"]]],
    }


def _entry(example: Example, exchange: Exchange) -> dict[str, Any]:
    headers = {
        name.lower(): value
        for name, value in exchange.headers.items()
        if name.lower() not in DROPPED_HEADERS and not name.lower().startswith(MACHINE_HEADERS)
    }
    return {
        "run": exchange.run,
        "agent": example.agent_of(exchange.body),
        "method": exchange.method,
        "path": exchange.path,
        "headers": headers,
        "body": exchange.body,
        "answer": exchange.answer,
    }


def _version(python: Path, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    done = run_process([str(python), "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PackageNotFoundError(package)
    return done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.record_frameworks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(EXAMPLES)} (default: all)")
    parser.add_argument("--python", type=Path, help="interpreter that has the framework")
    options = parser.parse_args()
    FIXTURES.mkdir(exist_ok=True)
    for name in options.names or EXAMPLES:
        example = EXAMPLES[name]
        recorded = record(example, options.python or example.python)
        path = FIXTURES / f"{name}.json"
        path.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n")
        print(f"{path.relative_to(FIXTURES.parents[2])}: {len(recorded['requests'])} requests")


if __name__ == "__main__":
    main()
