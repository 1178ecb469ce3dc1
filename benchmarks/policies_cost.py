"""What each policy adds to a request's path, in microseconds.

    python -m benchmarks.policies_cost [--requests 20000] [--waiting 32] [--json]

A request's path through the gateway's policies is: admit, order (among `--waiting` others), sent, served. The
engine's part of batch shaping is choosing the head of a queue of that length. Time is the calling thread's own
processor time, so that other work on the machine doesn't count; `foreign` is a policy that runs on a thread of
its own, where the time waited for it counts instead.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from runtime_actor.policies import catalogue
from runtime_actor.policies.base import (
    GATEWAY,
    Observation,
    Ordered,
    Policy,
    QueuedPrefill,
    RequestSent,
    RequestServed,
    RequestView,
    Verdict,
)
from runtime_actor.policies.host import PolicyHost
from runtime_actor.settings import PluggedSettings

TENANTS, AGENTS = 4, 8
ROUND = 500
WORDS = "The quick brown fox jumps over the lazy dog. " * 90
"""4,000 characters: what a safety rule's patterns search in every prompt."""
RULE = {
    "tools": ["read", "write"],
    "forbidden_sequences": [["read", "write"]],
    "transitions": "flag",
    "requests_per_minute": 1_000_000,
    "tokens_per_minute": 1_000_000_000,
}
PATTERNS = [{"pattern": r"sk-[a-z0-9]{20,}"}, {"pattern": r"\b\d{16}\b", "action": "redact"}]
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "fairness": ("fairness", {"max_waiting_per_tenant": 100_000}),
    "deadline": ("deadline", {}),
    "memo": ("memo", {"tools": [{"tool": "read", "invalidated_by": ["write"]}]}),
    "safety": ("safety", {"rules": [RULE]}),
    "speculation": ("speculation", {}),
    "safety with 2 patterns, 4,000 characters": ("safety", {"rules": [{**RULE, "patterns": PATTERNS}]}),
}


class Foreign(Policy):
    """Does nothing, on a thread of its own: what handing calls over costs."""

    name = "foreign"
    seat = GATEWAY

    def order(self, items: Sequence[Ordered]) -> list[tuple[float, ...] | None]:
        return [None] * len(items)


class ForeignAll(Foreign):
    """The same with every hook of a gateway's policy."""

    name = "foreign_all"

    def observe(self, event: Observation) -> None:
        return None

    def admit(self, request: RequestView) -> Verdict | None:
        return None


class Clock:
    now_s = 1000.0


def requests(count: int, fields: dict[str, Any]) -> list[RequestView]:
    return [
        RequestView(
            n, f"t{n % TENANTS}", f"t{n % TENANTS}", f"s{n // 4}", f"a{n % AGENTS}", 1000.0, 900, 64, 0, 5.0, fields
        )
        for n in range(count)
    ]


def gateway_path(host: PolicyHost, count: int, waiting: int, clock_ns: Callable[[], int]) -> list[float]:
    """Microseconds of each request."""
    fields = {"messages": [{"role": "user", "content": WORDS}], "tools": [{"function": {"name": "read"}}]}
    others = requests(waiting, fields)
    asked = requests(count + waiting, fields)[waiting:]
    # What the benchmark itself keeps is not to be looked through by the collector meanwhile.
    gc.collect()
    gc.freeze()
    for other in others:
        host.admit(other)
    spent = []
    for request in asked:
        began = clock_ns()
        host.admit(request)
        host.order([*others, request])
        host.observe(RequestSent(request, 0.1))
        host.observe(RequestServed(request, 900, 300, 60, 0.4, 0.1, 2.0, answer=WORDS[:400]))
        spent.append((clock_ns() - began) / 1000.0)
    return spent


def engine_path(host: PolicyHost, count: int, waiting: int) -> list[float]:
    items = [QueuedPrefill(f"g{n % AGENTS}", n % 3 == 0, n % 5 == 0) for n in range(waiting)]
    spent = []
    for _ in range(count):
        began = time.thread_time_ns()
        keys = host.order(items)
        min(range(waiting), key=lambda index: (keys[index], index))
        spent.append((time.thread_time_ns() - began) / 1000.0)
    return spent


def constant_loop(count: int) -> list[float]:
    """Always the same work: whatever its slowest rounds take more is the machine's doing."""
    spent = []
    for _ in range(count):
        began = time.thread_time_ns()
        total = 0
        for number in range(800):
            total += number
        spent.append((time.thread_time_ns() - began) / 1000.0)
    return spent


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure(count: int, waiting: int) -> list[dict[str, Any]]:
    """Rows of policy, p50_us, p99_us: what is added to a host without policies."""
    bare = gateway_path(PolicyHost([], 16), count, waiting, time.thread_time_ns)
    rows = [_row("(a constant loop, for the machine's own part)", constant_loop(count), 0.0), _row("none", bare, 0.0)]
    base_us = quantile(bare, 0.5)
    for name, (kind, options) in OPTIONS.items():
        host = PolicyHost([catalogue.make(PluggedSettings(kind, options=options), Clock())], 16)
        rows.append(_row(name, gateway_path(host, count, waiting, time.thread_time_ns), base_us))
    for foreign_kind in (Foreign, ForeignAll):
        foreign = PolicyHost([foreign_kind(PluggedSettings(foreign_kind.name), Clock())], 16)
        rows.append(_row(foreign_kind.name, gateway_path(foreign, count // 10, waiting, time.perf_counter_ns), base_us))
        foreign.close()
    shaping = PolicyHost([catalogue.make(PluggedSettings("batch_shaping"), Clock())], 16)
    rows.append(_row("batch_shaping (in the engine)", engine_path(shaping, count, waiting), 0.0))
    return rows


def _row(name: str, spent: list[float], base_us: float) -> dict[str, Any]:
    """`quiet_p99_us` is that of the round of ROUND requests that was disturbed least: a busy machine interrupts one
    in a hundred of them, and what that takes is counted as the thread's."""
    rounds = [spent[start : start + ROUND] for start in range(0, len(spent), ROUND)]
    quiet_us = min(quantile(values, 0.99) for values in rounds)
    values = (quantile(spent, 0.5), quantile(spent, 0.99), quiet_us)
    p50_us, p99_us, quiet_p99_us = (max(0.0, round(value - base_us, 1)) for value in values)
    return {"policy": name, "p50_us": p50_us, "p99_us": p99_us, "quiet_p99_us": quiet_p99_us}


def _line(row: dict[str, Any]) -> str:
    return f"{row['policy']:46} {row['p50_us']:8.1f} {row['p99_us']:8.1f} {row['quiet_p99_us']:8.1f}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.policies_cost", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--waiting", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    for row in measure(given.requests, given.waiting):
        print(json.dumps(row) if given.json else _line(row))


if __name__ == "__main__":
    main()
