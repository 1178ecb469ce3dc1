"""Throughput without the runtime actor, beside stock `ray.serve.llm`, in one run on one local Ray.

    python -m benchmarks.actor_gone [--pairs N] [--requests N] [--callers N] [--token-s S]

Both applications have the same simulated engines and take turns: a round of requests each, the one that goes first
changing from pair to pair. One JSON line a state of the actor: `here`; `ended` (whoever is made is ended for good
at once, so that nobody but our own processes makes another); `killed` (its process again and again, and Ray starts it
again each time). `ratio` is ours / stock over the pairs, `error` its standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import ray
from ray import serve
from ray.serve.llm import LLMConfig, build_openai_app
from ray.serve.llm.deployment import LLMServer

from benchmarks.engine.servers import OURS, STOCK_ROUTE, Machine, deployed, serve_config
from replicas.cache.settings import ValueSettings
from replicas.simulation.engine import CostModel
from replicas.simulation.openai import SimulatedEngine
from runtime_actor.actor import find
from runtime_actor.settings import from_dict

STOCK = "stock"
MODEL = "smollm2-135m-instruct"
MAX_TOKENS = 32
KILL_PERIOD_S = 0.05
SETTLE_S = 15.0
"""Until views are too old to route by, and first attempts to make another actor are over."""

REQUEST_TIMEOUT_S = 60.0


class StockSimulated(LLMServer):
    """Ray's own server with a simulated engine instead of vLLM, without anything of this project beside it."""

    async def __init__(self, llm_config: LLMConfig, **kwargs: Any) -> None:  # type: ignore[misc]
        cost = from_dict(CostModel, llm_config.experimental_configs["simulated"], "simulated")
        engine = partial(SimulatedEngine, cost=cost, values=ValueSettings(policy="lru"))
        await super().__init__(llm_config, engine_cls=engine, **kwargs)


def stock_app(args: dict) -> serve.Application:
    """What `ray.serve.llm:build_openai_app` makes of `args`, with its servers' engines simulated."""
    config = LLMConfig(**args["llm"], server_cls="benchmarks.actor_gone:StockSimulated")
    ingress = {"num_replicas": 1, "ray_actor_options": {"num_cpus": 0}}
    return build_openai_app({"llm_configs": [config], "ingress_deployment_config": ingress})


@dataclass(frozen=True, slots=True)
class Line:
    """Rates in requests a second, medians of the rounds; `failed` of both. `actors`: how many were made meanwhile."""

    actor: str
    ours: float
    stock: float
    ratio: float
    error: float
    pairs: int
    failed: int
    actors: int


class Rounds:
    """Sends rounds of requests, no prompt twice, half of them streams."""

    def __init__(self, url: str, callers: int, requests: int) -> None:
        self._url = url
        self._callers = callers
        self._requests = requests
        self._number = 0
        self.failed = 0

    def rate(self, route: str) -> float:
        """Requests a second of one round."""
        return asyncio.run(self._round(route))

    async def _round(self, route: str) -> float:
        first, self._number = self._number, self._number + self._requests
        numbers = iter(range(first, self._number))
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=REQUEST_TIMEOUT_S, limits=limits, trust_env=False) as client:
            began_s = time.monotonic()
            await asyncio.gather(*(self._call(client, self._url + route, numbers) for _ in range(self._callers)))
            return self._requests / (time.monotonic() - began_s)

    async def _call(self, client: httpx.AsyncClient, url: str, numbers: Iterator[int]) -> None:
        for number in numbers:
            answer = await client.post(url + "/v1/chat/completions", json=_body(number))
            self.failed += answer.status_code != 200 or "error" in answer.text


def _body(number: int) -> dict[str, Any]:
    system = f"You are agent {number % 8} of this house. " + "Answer in a few plain words and add nothing. " * 10
    return {
        "model": MODEL,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": f"Task {number}: go on."}],
        "max_tokens": MAX_TOKENS,
        "ignore_eos": True,
        "temperature": 0,
        "stream": number % 2 == 1,
    }


@contextlib.contextmanager
def actor_here() -> Iterator[set[str]]:
    yield set()


@contextlib.contextmanager
def actor_lost(for_good: bool) -> Iterator[set[str]]:
    """Kill the actor as often as there is one; yields what is filled with the names of all that were met.

    Of a process that Ray starts again the name is its process id.
    """
    over = threading.Event()
    met: set[str] = set()

    def kill() -> None:
        while not over.wait(KILL_PERIOD_S):
            with contextlib.suppress(ValueError, ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
                actor = find()
                if for_good:
                    met.add(actor._actor_id.hex())
                else:
                    met.add(str(ray.get(actor.ping.remote(), timeout=10.0)["pid"]))
                ray.kill(actor, no_restart=for_good)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        time.sleep(SETTLE_S)
        yield met
    finally:
        over.set()
        killer.join()


ACTORS: dict[str, Callable[[], contextlib.AbstractContextManager[set[str]]]] = {
    "here": actor_here,
    "ended": partial(actor_lost, True),
    "killed": partial(actor_lost, False),
}


def compare(rounds: Rounds, actor: str, pairs: int) -> Line:
    rates: dict[str, list[float]] = {OURS: [], STOCK: []}
    routes = {OURS: "", STOCK: STOCK_ROUTE}
    failed = rounds.failed
    with ACTORS[actor]() as met:
        for route in routes.values():
            rounds.rate(route)
        already = len(met)
        for pair in range(pairs):
            for name in (OURS, STOCK) if pair % 2 == 0 else (STOCK, OURS):
                rates[name].append(rounds.rate(routes[name]))
        made = len(met) - already
    ratios = [ours / stock for ours, stock in zip(rates[OURS], rates[STOCK], strict=True)]
    return Line(
        actor=actor,
        ours=round(statistics.median(rates[OURS]), 2),
        stock=round(statistics.median(rates[STOCK]), 2),
        ratio=round(statistics.mean(ratios), 4),
        error=round(statistics.stdev(ratios) / len(ratios) ** 0.5, 4),
        pairs=pairs,
        failed=rounds.failed - failed,
        actors=made,
    )


@contextlib.contextmanager
def both(cost: dict[str, Any]) -> Iterator[str]:
    """Both applications; yields their URL. Raises LaunchError, StopRequested."""
    with tempfile.TemporaryDirectory(prefix="actor-gone-") as folder:
        machine = Machine(replicas=2, blocks=1024, with_stock=False, simulated=cost)
        config = serve_config(machine, Path(folder), [], "")
        ours = config["applications"][0]
        # Without keys: one tenant, as stock has.
        ours["args"]["gateway"]["api_keys"] = []
        config["applications"].append(_stock(ours))
        with deployed(config, machine.replicas) as url:
            yield url


def _stock(ours: dict[str, Any]) -> dict[str, Any]:
    deployment = ours["args"]["deployment"]
    llm = {
        "model_loading_config": {"model_id": MODEL, "model_source": MODEL},
        "deployment_config": {
            "num_replicas": deployment["num_replicas"],
            "max_ongoing_requests": deployment["max_ongoing_requests"],
            "ray_actor_options": {"num_cpus": 0},
        },
        "accelerator_config": {"kind": "cpu"},
        "placement_group_config": {"bundles": [{"CPU": deployment["num_cpus_per_replica"]}]},
        # As ours: a stream's items aren't held back.
        "experimental_configs": {"stream_batching_interval_ms": 0, "simulated": ours["args"]["simulated"]},
    }
    return {
        "name": STOCK,
        "route_prefix": STOCK_ROUTE,
        "import_path": "benchmarks.actor_gone:stock_app",
        "runtime_env": ours["runtime_env"],
        "args": {"llm": llm},
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.actor_gone", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--requests", type=int, default=96, help="a round")
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--token-s", type=float, default=0.015, help="what a step of the engines takes")
    parser.add_argument("--actor", choices=tuple(ACTORS), action="append", help="default: all")
    given = parser.parse_args()
    if given.pairs < 2:
        parser.error("--pairs: an error can't be told from fewer than 2")
    cost = {"prefill_s_per_token": given.token_s / 75, "decode_s_per_token": given.token_s, "max_num_seqs": 8}
    with both(cost) as url:
        rounds = Rounds(url, given.callers, given.requests)
        for actor in given.actor or ACTORS:
            print(json.dumps(asdict(compare(rounds, actor, given.pairs))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
