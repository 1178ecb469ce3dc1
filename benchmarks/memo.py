"""What sharing tool results, and running predicted calls ahead, does to recorded tool calls.

    python -m benchmarks.memo SOURCE [--sessions 50] [--min-confidence 0.4] [--max-waste 0.5] [--json]

SOURCE is the folder of recorded sessions (or AGENT_RUNTIME_TRACES): of it tau-bench's airline tasks, which record
arguments and results of their tool calls. They are played one session after the other through the policy and the
store that serve. Between two calls a model thinks, so what was told to run ahead is there by the next call, within
`at_once`. A predicted call that the recording doesn't have anywhere has no result here: it is a run and a waste.
Each recorded session began with its own copy of the airline's data, which is taken as one here.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runtime_actor.memo_store import Hit, Limits, MemoStore, Run
from runtime_actor.next_calls import ToolCall
from runtime_actor.policies.memo import MemoPolicy
from runtime_actor.settings import PluggedSettings

TENANT = "airline"
CALL_S = 5.0
WRITES = [
    "book_reservation",
    "cancel_reservation",
    "send_certificate",
    "update_reservation_baggages",
    "update_reservation_flights",
    "update_reservation_passengers",
]
CHANGED_BY_WRITES = ["get_reservation_details", "get_user_details", "search_direct_flight", "search_onestop_flight"]
UNCHANGED = ["calculate", "list_all_airports"]


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    session: str
    tool: str
    arguments: dict[str, Any]
    result: str


class Clock:
    now_s = 1000.0


def recorded_calls(source: Path, sessions: int) -> list[Recorded]:
    """Raises SystemExit without the recording."""
    found = sorted((source / "taubench_airline").glob("messages*.jsonl"))
    if not found:
        raise SystemExit(f"{source}: no recorded tool calls; needed: taubench_airline/messages*.jsonl in it")
    lines = found[0].read_text(encoding="utf-8").splitlines()[:sessions]
    return [call for line in lines for call in _calls_of(json.loads(line))]


def _calls_of(session: dict[str, Any]) -> Iterator[Recorded]:
    results = {m["tool_call_id"]: m["content"] for m in session["messages"] if m["role"] == "tool"}
    for message in session["messages"]:
        for call in message.get("tool_calls") or ():
            function = call["function"]
            result = results.get(call["id"], "Error: not recorded")
            yield Recorded(session["session"], function["name"], json.loads(function["arguments"]), result)


def make_policy(run_ahead: bool, invalidates: bool, **options: Any) -> MemoPolicy:
    tools = [
        {
            "tool": tool,
            "ttl_s": 86_400.0,
            "invalidated_by": WRITES if invalidates and tool in CHANGED_BY_WRITES else [],
            "read_only": True,
            "run_ahead": run_ahead,
        }
        for tool in (*CHANGED_BY_WRITES, *UNCHANGED)
    ]
    return MemoPolicy(PluggedSettings("memo", options={"tools": tools, "run_ahead": options}), Clock())


class Playback:
    """The recorded calls through policy and store."""

    def __init__(self, policy: MemoPolicy, calls: list[Recorded]) -> None:
        self._policy = policy
        self._store = MemoStore(64 << 20, 64 << 20)
        self._calls = calls
        self._known = {self._named(call.tool, call.arguments): call.result for call in calls}
        self._now_s = 0.0
        self.counts: Counter[str] = Counter()

    @staticmethod
    def _named(tool: str, arguments: Any) -> str:
        return json.dumps([tool, arguments], sort_keys=True)

    def play(self) -> dict[str, Any]:
        for call in self._calls:
            self._now_s += CALL_S
            self.counts["calls"] += 1
            self._call(call)
            self._store.check_invariants()
        counts = self.counts
        ahead = self._store.ahead_counts
        issued, used = ahead["ahead_issued"], ahead["ahead_used"]
        asked = max(1, counts["asked"])
        return {
            "calls": counts["calls"],
            "may be kept": counts["asked"],
            "answered": counts["hits"],
            "share": round(counts["hits"] / asked, 3),
            "run ahead": issued,
            "used": used,
            "wasted": issued - used,
        }

    def _call(self, call: Recorded) -> None:
        key = self._policy.key(TENANT, call.tool, None, call.arguments)
        if key is None:
            self._write(call)
            return
        self.counts["asked"] += 1
        ahead = self._policy.called(call.session, key, None, call.arguments)
        found = self._store.look((TENANT, key.digest), call.tool, _limits(key.allowed), self._now_s)
        value = json.dumps(call.result).encode()
        if isinstance(found, Hit):
            self.counts["hits"] += 1
            value = found.value
        elif isinstance(found, Run) and found.ticket is not None:
            if call.result.startswith("Error"):
                self._store.release(TENANT, found.ticket)
            else:
                self._store.store(TENANT, found.ticket, value, self._now_s)
        ahead += self._policy.returned(TENANT, call.session, key.digest, value)
        for foretold in ahead:
            self._run_ahead(foretold)

    def _write(self, call: Recorded) -> None:
        self._policy.happened(TENANT, call.tool)
        for suggestion in self._policy.act():
            self._store.invalidate(suggestion.tenant, suggestion.tool)

    def _run_ahead(self, call: ToolCall) -> None:
        key = self._policy.key(TENANT, call.tool, call.version, call.arguments)
        if key is None:
            return
        bounds = self._policy.ahead_bounds
        place = (TENANT, key.digest)
        found = self._store.look_ahead(place, call.tool, _limits(key.allowed), bounds, self._now_s)
        if isinstance(found, Run) and found.ticket is not None:
            result = self._known.get(self._named(call.tool, dict(call.arguments)), "")
            self._store.store(TENANT, found.ticket, json.dumps(result).encode(), self._now_s)


def _limits(allowed: Any) -> Limits:
    return Limits(allowed.ttl_s, allowed.lease_s, allowed.sample, allowed.max_value_bytes)


def measure(source: Path, sessions: int, invalidates: bool, **options: Any) -> list[dict[str, Any]]:
    """Rows of what became of the calls: results shared alone, and with predicted calls run ahead."""
    calls = recorded_calls(source, sessions)
    rows = []
    for name, run_ahead in (("shared results", False), ("and run ahead", True)):
        row = Playback(make_policy(run_ahead, invalidates, **options), calls).play()
        rows.append({"policy": name, **row})
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memo", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("source", nargs="?", default=os.environ.get("AGENT_RUNTIME_TRACES"), type=Path)
    parser.add_argument("--sessions", type=int, default=50, help="the first 50 are tasks that differ")
    parser.add_argument("--min-confidence", type=float, default=0.4)
    parser.add_argument("--min-support", type=int, default=2)
    parser.add_argument("--max-waste", type=float, default=0.5)
    parser.add_argument("--nothing-changes", action="store_true", help="writes make no result void")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    if given.source is None:
        parser.error("SOURCE, or AGENT_RUNTIME_TRACES")
    options = {name: getattr(given, name) for name in ("min_confidence", "min_support", "max_waste")}
    for row in measure(given.source, given.sessions, not given.nothing_changes, **options):
        print(json.dumps(row) if given.json else "  ".join(f"{name}: {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
