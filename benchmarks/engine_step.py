"""Cost of the cache order in a step of a real engine, beside stock vLLM in the same process.

`python -m benchmarks.engine_step [--json]`: vLLM on CPU with the embedded model and one thread, once with its
own scheduler and once in each order. All serve the same batch of agents' requests in turns; counted is the
processor time of that thread in each batch, prefill, decoding and scheduling together, so that what else
runs on the machine disturbs little. The ratio is the median over the batches.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from cluster.embedded_model import ensure_embedded_model
from replicas.engine.messages import ADDITIONAL_CONFIG_KEY
from runtime_actor.messages import OWNER_XARG, OwnerTag

MODES: dict[str, dict[str, Any] | None] = {"stock": None, "lru": {"policy": "lru"}, "reach": {"policy": "reach"}}
AGENTS = 8
ANCHOR_TOKENS = 256
OWN_TOKENS = 64
CACHE_BLOCKS = 160
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


class Engine:
    """One in-process engine. `runtime` None: vLLM's own scheduler."""

    def __init__(self, model: str, runtime: dict[str, Any] | None) -> None:
        from vllm import LLM  # noqa: PLC0415 - reads the environment that main() sets

        ours: dict[str, Any] = {}
        if runtime is not None:
            ours["scheduler_cls"] = "replicas.scheduler.agent_scheduler"
            ours["additional_config"] = {ADDITIONAL_CONFIG_KEY: runtime}
        self.llm = LLM(
            model=model,
            dtype="bfloat16",
            enforce_eager=True,
            block_size=32,
            max_model_len=2048,
            max_num_seqs=8,
            max_num_batched_tokens=512,
            num_gpu_blocks_override=CACHE_BLOCKS,
            enable_prefix_caching=True,
            **ours,
        )
        self.steps = 0

    def serve(self, prompts: list[tuple[list[int], list[str]]], reply_tokens: int) -> float:
        """Seconds of processor time for a batch."""
        from vllm import SamplingParams  # noqa: PLC0415 - as above

        params = [
            SamplingParams(max_tokens=reply_tokens, ignore_eos=True, temperature=0.0, extra_args={OWNER_XARG: tag})
            for _, tag in prompts
        ]
        started = time.thread_time()
        self.llm.generate([{"prompt_token_ids": ids} for ids, _ in prompts], params, use_tqdm=False)
        return time.thread_time() - started


def batches(seed: int, size: int) -> Callable[[], list[tuple[list[int], list[str]]]]:
    """Sessions of eight agents, each with an anchor; never the same request twice."""
    rng = random.Random(seed)
    anchors = [[rng.randrange(1000, 40_000) for _ in range(ANCHOR_TOKENS)] for _ in range(AGENTS)]
    serial = 0

    def batch() -> list[tuple[list[int], list[str]]]:
        nonlocal serial
        requests = []
        for _ in range(size):
            serial += 1
            agent = serial % AGENTS
            own = [rng.randrange(1000, 40_000) for _ in range(OWN_TOKENS)]
            requests.append((anchors[agent] + own, OwnerTag("w", f"a{agent}", f"s{serial // AGENTS}").encode()))
        return requests

    return batch


def measure(engines: dict[str, Engine], rounds: int, size: int, reply_tokens: int) -> list[dict[str, Any]]:
    next_batch = batches(1, size)
    spent: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(rounds + 1):
        prompts = next_batch()
        order = list(engines)
        for name in order[turn % len(order) :] + order[: turn % len(order)]:
            seconds = engines[name].serve(prompts, reply_tokens)
            if turn:
                spent[name].append(seconds)
    return [
        {
            "mode": name,
            "batch_ms": statistics.median(times) * 1e3,
            "ratio": statistics.median(mine / stock for mine, stock in zip(times, spent["stock"], strict=True)),
            "quartiles": statistics.quantiles(
                (mine / stock for mine, stock in zip(times, spent["stock"], strict=True)), n=4
            ),
        }
        for name, times in spent.items()
    ]


def main(arguments: list[str] | None = None, say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="batches an engine, after one to warm up")
    parser.add_argument("--size", type=int, default=8, help="requests a batch")
    parser.add_argument("--reply-tokens", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    os.environ.update(ENVIRONMENT)
    model = str(ensure_embedded_model())
    engines = {mode: Engine(model, runtime) for mode, runtime in MODES.items()}
    gc.collect()
    for result in measure(engines, options.rounds, options.size, options.reply_tokens):
        if options.json:
            say(json.dumps(result))
        else:
            low, _, high = result["quartiles"]
            say(
                "{mode:6s} {batch_ms:8.1f} ms a batch, {ratio:.4f} x stock".format(**result)
                + f" ({low:.4f}-{high:.4f})"
            )


if __name__ == "__main__":
    main()
