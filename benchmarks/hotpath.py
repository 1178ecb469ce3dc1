"""Cost of the cache order per block, beside vLLM's own pool, in one process.

`python -m benchmarks.hotpath [--json]`: for each mode, get + hash + free of 16-block requests through the
pool while the cache is full, as a ratio of vLLM's BlockPool. Modes are measured in turns and each round
takes the least of its repeats, so that a busy machine disturbs all alike. `reach` also pays for each
request's arrival, start and end in the directory, and for the values that changed by it; those are
counted apart as `requests_us`. The last line is what a workload costs the actor (`benchmarks.coordinator`).
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from vllm.v1.core.block_pool import BlockPool

from benchmarks.coordinator import coordinator_cost
from replicas.cache.block_pool import PoolOwners
from replicas.cache.ownership import OwnerDirectory
from replicas.cache.settings import ValueSettings
from replicas.cache.warm_ledger import WarmLedger
from runtime_actor.messages import OwnerTag
from runtime_actor.tables import OTHER, ReachTables

REQUEST_BLOCKS = 16
ANCHOR_BLOCKS = 8
BLOCK_TOKENS = 16
AGENTS = 32


def tables(num_agents: int = AGENTS) -> ReachTables:
    """Of one workload, without contexts and waits."""
    rng = np.random.default_rng(0)
    agents = (*(f"a{i}" for i in range(num_agents)), OTHER)
    n = len(agents)
    return ReachTables(
        workload="w",
        agents=agents,
        first=(0.8 * rng.random((n + 1, n))).astype(np.float32),
        contexts=np.zeros((0, 3), np.int16),
        context_values=np.zeros((0, n), np.float32),
        arrivals_per_request=0.1,
        gap_s=np.full(n, 10.0, np.float32),
        end_probability=np.full(n, 0.1, np.float32),
    )


def digests(text: str, count: int) -> list[bytes]:
    """As many block hashes, spread as real ones are."""
    return [hashlib.sha256(f"{text}/{i}".encode()).digest() for i in range(count)]


class Bench:
    """One pool, full of cached blocks of `owners` sessions, and requests that go through it."""

    def __init__(self, mode: str, owners: int, num_blocks: int) -> None:
        self.pool: Any = BlockPool(num_blocks, True, BLOCK_TOKENS)
        self.owners = owners
        self.serial = 0
        self.directory: OwnerDirectory | None = None
        self.by_value = False
        self.spent_on_requests_s = 0.0
        if mode != "stock":
            settings = ValueSettings(policy=mode, max_sessions=max(owners, 4096))
            self.directory = OwnerDirectory(settings, BLOCK_TOKENS)
            self.directory.set_tables(tables())
            owners_of_pool = PoolOwners(self.pool, self.directory, WarmLedger())
            if mode != "lru":
                owners_of_pool.use_value_order()
            self.by_value = owners_of_pool.by_value
        for _ in range(num_blocks // REQUEST_BLOCKS + owners):
            self.request()

    def request(self) -> float:
        """Seconds that the pool took for one request."""
        self.serial += 1
        name = str(self.serial)
        which = self.serial * 7 % self.owners
        anchor = digests(f"a{which % AGENTS}", ANCHOR_BLOCKS)
        own = digests(name, REQUEST_BLOCKS)
        hashes = anchor + own[ANCHOR_BLOCKS:]
        # The pool gets other hashes for the anchor each time: a hit would leave less to measure.
        request = SimpleNamespace(request_id=name, block_hashes=own)
        started = time.thread_time()
        if self.directory is not None:
            tag = OwnerTag("w", f"a{which % AGENTS}", f"s{which}")
            self.directory.arrive(name, tag, hashes)
            self.directory.started(name)
            if self.by_value:
                self.pool.free_block_queue._apply_changes()
        arrived = time.thread_time()
        blocks = self.pool.get_new_blocks(REQUEST_BLOCKS)
        self.pool.cache_full_blocks(request, blocks, 0, REQUEST_BLOCKS, BLOCK_TOKENS, 0)
        self.pool.free_blocks(reversed(blocks))
        ended = time.thread_time()
        if self.directory is not None:
            self.directory.finished(name)
            if self.by_value:
                self.pool.free_block_queue._apply_changes()
        self.spent_on_requests_s += arrived - started + time.thread_time() - ended
        return ended - arrived


def measure(benches: dict[str, Bench], rounds: int, requests: int) -> dict[str, dict[str, float]]:
    """Medians over rounds of the time a block, and of its ratio to stock in the same round."""
    spent: dict[str, list[float]] = {name: [] for name in benches}
    for _ in range(rounds):
        for name, bench in benches.items():
            bench.spent_on_requests_s = bench.spent_on_requests_s if spent[name] else 0.0
            spent[name].append(sum(bench.request() for _ in range(requests)))
    results = {}
    for name, bench in benches.items():
        ratios = [mine / stock for mine, stock in zip(spent[name], spent["stock"], strict=True)]
        results[name] = {
            "block_us": statistics.median(spent[name]) / requests / REQUEST_BLOCKS * 1e6,
            "ratio": statistics.median(ratios),
            "requests_us": bench.spent_on_requests_s / requests / rounds * 1e6,
        }
    return results


def main(arguments: list[str] | None = None, say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--requests", type=int, default=100, help="requests a round")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    modes = {"stock": ("stock", 256), "lru": ("lru", 256)}
    modes |= {f"reach, {n} owners": ("reach", n) for n in (16, 256, 2048)}
    benches = {name: Bench(mode, owners, options.blocks) for name, (mode, owners) in modes.items()}
    coordinator = coordinator_cost()
    gc.disable()
    for name, result in measure(benches, options.rounds, options.requests).items():
        if options.json:
            say(json.dumps({"mode": name, **result}))
        else:
            say(
                "{:18s} {block_us:6.2f} us a block, {ratio:5.2f} x stock, {requests_us:6.1f} us a request apart".format(
                    name, **result
                )
            )
    if options.json:
        say(json.dumps(coordinator))
    else:
        items = coordinator.items()
        shown = (f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in items)
        say(", ".join(shown))


if __name__ == "__main__":
    main()
