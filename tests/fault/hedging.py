"""What a second replica for slow requests does while one replica stops now and then.

    python -m tests.fault.hedging [--engine simulated|vllm] [--rounds 3] [--requests 200] [--callers 4]
        [--pause 1.0] [--runs 4.0] [--share 0.2] [--factor 2.0] [--gap 0.1]

A server of its own with two replicas. Off and on take turns. Each part begins with a calm time, in which the policy
learns what is slow; then one replica's process is paused for `--pause` seconds of every `--pause` + `--runs`. Each
caller waits `--gap` seconds between two requests, each a session of its own, so that nothing is started ahead. A JSON
line a part, and one for all parts with it off and on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from benchmarks.engine.measures import percentile
from benchmarks.engine.servers import RuntimeApi
from tests.fault import faults
from tests.fault.chaos.__main__ import MODEL
from tests.fault.chaos.server import ChaosServer

CALM_REQUESTS = 96
"""Enough for the policy to know what is slow."""

POLICY = "speculation"
COUNTERS = ("watched", "hedged", "hedges_won", "hedges_refused")
REQUEST_TIMEOUT_S = 120.0


class Callers:
    def __init__(self, url: str, callers: int, gap_s: float) -> None:
        self._url = url
        self._callers = callers
        self._gap_s = gap_s
        self._numbers = itertools.count()

    def ask(self, requests: int) -> list[float]:
        """Seconds to the first token of so many requests. Raises httpx.HTTPError."""
        return asyncio.run(self._ask(requests))

    async def _ask(self, requests: int) -> list[float]:
        numbers = itertools.islice(self._numbers, requests)
        found: list[float] = []

        async def call(client: httpx.AsyncClient) -> None:
            for number in numbers:
                found.append(await self._first_token_s(client, number))
                await asyncio.sleep(self._gap_s)

        async with httpx.AsyncClient(base_url=self._url, timeout=REQUEST_TIMEOUT_S, trust_env=False) as client:
            await asyncio.gather(*(call(client) for _ in range(self._callers)))
        return found

    async def _first_token_s(self, client: httpx.AsyncClient, number: int) -> float:
        system = f"You are agent {number % 4}. " + "Do the next step with care. " * 10
        body = {
            "model": MODEL,
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": f"Task {number}: go on."}],
            "max_tokens": 4,
            "temperature": 0,
            "stream": True,
        }
        began_s = time.perf_counter()
        first_s = None
        headers = {"x-session-id": f"hedging-{number}"}
        async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if first_s is None and line.startswith("data: {") and _has_content(json.loads(line[6:])):
                    first_s = time.perf_counter() - began_s
        if first_s is None:
            raise httpx.RemoteProtocolError(f"no token in the answer to request {number}")
        return first_s


def _has_content(chunk: dict[str, Any]) -> bool:
    return any(c.get("delta", {}).get("content") or c.get("finish_reason") for c in chunk.get("choices", ()))


def run_part(server: ChaosServer, callers: Callers, is_on: bool, given: argparse.Namespace) -> dict[str, Any]:
    api = RuntimeApi(server.url, "")
    # Off and on again forgets what was learnt before.
    api.switch(POLICY, False)
    if is_on:
        options = {"hedge_share": given.share, "hedge_factor": given.factor}
        api.call("POST", "/runtime/policy", {"name": POLICY, "options": options})
        api.switch(POLICY, True)
    callers.ask(CALM_REQUESTS)
    before = _counters(api)
    with faults.slowed(server.replicas[0], given.pause, given.runs):
        delays = callers.ask(given.requests)
    counts = {name: count - before[name] for name, count in _counters(api).items()}
    return {"hedging": is_on, "requests": len(delays), **_figures(delays), **counts, "delays": delays}


def _counters(api: RuntimeApi) -> dict[str, int]:
    row = api.policy_row(POLICY)
    found = row["counters"] if row is not None and row["enabled"] else {}
    return {name: int(found.get(name, 0)) for name in COUNTERS}


def _figures(delays: list[float]) -> dict[str, float]:
    return {
        "ttft_mean_s": round(statistics.fmean(delays), 3),
        "ttft_p50_s": round(percentile(delays, 0.5), 3),
        "ttft_p95_s": round(percentile(delays, 0.95), 3),
        "ttft_p99_s": round(percentile(delays, 0.99), 3),
    }


def main(arguments: list[str] | None = None) -> int:
    given = _parse(arguments)
    delays: dict[bool, list[float]] = {False: [], True: []}
    hedged = 0
    with _server(given.engine) as server:
        callers = Callers(server.url, given.callers, given.gap)
        for number in range(given.rounds):
            for is_on in (False, True) if number % 2 == 0 else (True, False):
                row = run_part(server, callers, is_on, given)
                delays[is_on] += row.pop("delays")
                hedged += row["hedged"]
                print(json.dumps(row), flush=True)
    for is_on, found in delays.items():
        share = {"hedged_share": round(hedged / len(found), 4)} if is_on else {}
        print(json.dumps({"all": True, "hedging": is_on, "requests": len(found), **_figures(found), **share}))
    return 0


@contextlib.contextmanager
def _server(engine: str) -> Iterator[ChaosServer]:
    with tempfile.TemporaryDirectory(prefix="hedging-") as folder:
        server = ChaosServer(engine, Path(folder))
        try:
            yield server
        finally:
            server.stop()


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.hedging", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--engine", choices=("simulated", "vllm"), default="simulated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=200, help="a part, while one replica is slow")
    parser.add_argument("--callers", type=int, default=4)
    parser.add_argument("--gap", type=float, default=0.1, help="seconds between two requests of a caller")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds for which the replica stops")
    parser.add_argument("--runs", type=float, default=4.0, help="seconds for which it runs in between")
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--factor", type=float, default=2.0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
