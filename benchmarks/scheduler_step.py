"""Cost of the cache order in a whole scheduler step, beside vLLM's own scheduler.

`python -m benchmarks.scheduler_step [--json]`: one load of agents' requests goes through vLLM's scheduler
and through ours in `lru` and in `reach` order, step by step in turns, with a cache that is full; a step is
schedule + update_from_output, with the requests that arrive before it. The ratio is that of the
time of all steps of a round, its median over the rounds. Afterwards: what an exchange with the runtime
takes, and how large the tables are that it carried (no contexts, no waits: a full one's are larger).
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bare_scheduler import BLOCK_TOKENS, BareScheduler
from benchmarks.hotpath import tables
from replicas.engine.messages import EngineTables, decode, encode
from runtime_actor.messages import OWNER_XARG, OwnerTag

AGENTS = 64
ANCHOR_BLOCKS = 32
OWN_BLOCKS = 32
REPLY_TOKENS = 48
MODES: dict[str, dict[str, Any] | None] = {"stock": None, "lru": {"policy": "lru"}, "reach": {"policy": "reach"}}


class Bench(BareScheduler):
    """A scheduler with a steady load: `running` requests at once, each one's end lets the next one in."""

    def __init__(self, folder: Path, mode: str, blocks: int, owners: int, running: int) -> None:
        options = {"max_num_seqs": running, "max_num_batched_tokens": 2048}
        super().__init__(folder, MODES[mode], blocks, **options)
        self.owners = owners
        self.running = running
        self.serial = 0
        rng = random.Random(1)
        self.anchors = [[rng.randrange(3, 4000) for _ in range(ANCHOR_BLOCKS * BLOCK_TOKENS)] for _ in range(AGENTS)]
        self.prompts = random.Random(2)
        if mode == "reach":
            self.exchange(EngineTables(tables={"w": tables(AGENTS).to_bytes()}))

    def exchange(self, down: EngineTables) -> bytes:
        keeper: Any = self.scheduler
        return encode(keeper.keeper.exchange(decode(encode(down), EngineTables), 0, 0))

    def next_request(self) -> Any:
        self.serial += 1
        which = self.serial * 7 % self.owners
        own = [self.prompts.randrange(3, 4000) for _ in range(OWN_BLOCKS * BLOCK_TOKENS)]
        tag = OwnerTag("w", f"a{which % AGENTS}", f"s{which}").encode()
        tokens = self.anchors[which % AGENTS] + own
        return self.request(str(self.serial), tokens, REPLY_TOKENS, {OWNER_XARG: tag})

    def step(self) -> float:
        """Seconds in the scheduler; making requests and answers isn't counted."""
        scheduler = self.scheduler
        requests = [self.next_request() for _ in range(self.running - scheduler.get_num_unfinished_requests())]
        started = time.thread_time()
        for request in requests:
            scheduler.add_request(request)
        output = scheduler.schedule()
        scheduled = time.thread_time()
        answer = self.answer(output)
        resumed = time.thread_time()
        scheduler.update_from_output(output, answer)
        return scheduled - started + time.thread_time() - resumed

    def fill(self) -> None:
        """Step until every block has been used and the order of evictions has settled."""
        own = OWN_BLOCKS + REPLY_TOKENS // BLOCK_TOKENS
        while self.serial * own < 1.2 * self.pool.num_gpu_blocks + AGENTS * ANCHOR_BLOCKS:
            self.step()


def measure(benches: dict[str, Bench], rounds: int, steps: int) -> list[dict[str, Any]]:
    spent: dict[str, list[float]] = {name: [] for name in benches}
    for _ in range(rounds):
        for name, bench in benches.items():
            spent[name].append(sum(bench.step() for _ in range(steps)) / steps)
    return [
        {
            "mode": name,
            "step_us": statistics.median(times) * 1e6,
            "ratio": statistics.median(mine / stock for mine, stock in zip(times, spent["stock"], strict=True)),
        }
        for name, times in spent.items()
    ]


def exchange_cost(bench: Bench, repeats: int) -> dict[str, Any]:
    """Milliseconds of one exchange: nothing new; new tables; and that with the sessions listed."""
    payload = tables(AGENTS).to_bytes()
    downs = {
        "report_ms": EngineTables(),
        "tables_ms": EngineTables(tables={"w": payload}),
        "sessions_ms": EngineTables(tables={"w": payload}, with_sessions=True),
    }
    result: dict[str, Any] = {"mode": "exchange", "tables_bytes": len(payload)}
    for name, down in downs.items():
        times = []
        for _ in range(repeats):
            started = time.thread_time()
            bench.exchange(down)
            times.append(time.thread_time() - started)
        result[name] = statistics.median(times) * 1e3
    return result


def main(arguments: list[str] | None = None, say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--owners", type=int, default=256)
    parser.add_argument("--running", type=int, default=16, help="requests in the scheduler at once")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=50, help="steps a round")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        benches = {mode: Bench(Path(folder), mode, options.blocks, options.owners, options.running) for mode in MODES}
    for bench in benches.values():
        bench.fill()
    gc.collect()
    gc.disable()
    results = [*measure(benches, options.rounds, options.steps), exchange_cost(benches["reach"], options.rounds)]
    for result in results:
        if options.json:
            say(json.dumps(result))
        else:
            say(", ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in result.items()))


if __name__ == "__main__":
    main()
