"""vLLM's real scheduler and block pool without a model: steps are answered with made-up tokens."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from replicas.engine_messages import ADDITIONAL_CONFIG_KEY
from replicas.scheduler import agent_scheduler
from runtime_actor.messages import DEMAND, OWNER_XARG, OwnerTag

BLOCK_TOKENS = 16
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def make_config(
    folder: Path, runtime: dict[str, Any] | None, async_scheduling: bool = False, policy: str = "fcfs"
) -> VllmConfig:
    (folder / "config.json").write_text(json.dumps(MODEL))
    model = ModelConfig(model=str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=4096)
    scheduling = SchedulerConfig(
        max_num_seqs=8,
        max_num_batched_tokens=256,
        max_model_len=4096,
        is_encoder_decoder=False,
        enable_chunked_prefill=True,
        async_scheduling=async_scheduling,
        policy=policy,
    )
    cache = CacheConfig(block_size=BLOCK_TOKENS, enable_prefix_caching=True)
    config = VllmConfig(
        model_config=model,
        scheduler_config=scheduling,
        cache_config=cache,
        device_config=DeviceConfig(device="cpu"),
        additional_config={} if runtime is None else {ADDITIONAL_CONFIG_KEY: runtime},
    )
    config.scheduler_config.async_scheduling = async_scheduling
    return config


class Engine:
    """A scheduler, stepped with random tokens. runtime None: vLLM's own scheduler."""

    def __init__(
        self,
        folder: Path,
        runtime: dict[str, Any] | None,
        num_blocks: int = 120,
        seed: int = 0,
        **options: Any,
    ) -> None:
        config = make_config(folder, runtime, **options)
        config.cache_config.num_gpu_blocks = num_blocks
        spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32)
        kv_config = KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], spec)])
        arguments: dict[str, Any] = {
            "vllm_config": config,
            "kv_cache_config": kv_config,
            "structured_output_manager": StructuredOutputManager(config),
            "block_size": BLOCK_TOKENS,
            "log_stats": False,
        }
        stock = config.scheduler_config.get_scheduler_cls()
        self.scheduler: Scheduler = (stock if runtime is None else agent_scheduler)(**arguments)
        hash_fn = get_hash_fn_by_name("sha256")
        init_none_hash(hash_fn)
        self.hasher = get_request_block_hasher(BLOCK_TOKENS, hash_fn)
        self.rng = random.Random(seed)
        self.log: list[tuple[Any, ...]] = []
        self.cached_tokens: dict[str, int] = {}
        self._watch_pool()

    @property
    def pool(self) -> Any:
        return self.scheduler.kv_cache_manager.block_pool

    def _watch_pool(self) -> None:
        """Log every allocation, with the hashes it evicts, and every free, in order."""
        pool = self.pool
        get_new_blocks, free_blocks = pool.get_new_blocks, pool.free_blocks

        def logged_get(count: int) -> Any:
            before = [block.block_hash for block in pool.blocks]
            blocks = get_new_blocks(count)
            self.log.append(("get", [(b.block_id, before[b.block_id]) for b in blocks]))
            return blocks

        def logged_free(ordered: Any) -> None:
            ordered = list(ordered)
            self.log.append(("free", [block.block_id for block in ordered]))
            free_blocks(ordered)

        pool.get_new_blocks = logged_get
        pool.free_blocks = logged_free

    def add(
        self,
        name: str,
        tokens: list[int],
        agent: str = "",
        session: str = "",
        max_tokens: int = 4,
        kind: str = DEMAND,
        salt: str | None = None,
        extra: Any = None,
        priority: int = 0,
    ) -> None:
        args = {OWNER_XARG: OwnerTag("w", agent, session, kind).encode()} if agent else None
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, extra_args=extra if extra is not None else args)
        params.update_from_generation_config({}, eos_token_id=2)
        request = Request(
            request_id=name,
            prompt_token_ids=tokens,
            sampling_params=params,
            pooling_params=None,
            block_hasher=self.hasher,
            cache_salt=salt,
            arrival_time=float(len(self.log)),
            priority=priority,
        )
        self.scheduler.add_request(request)

    def step(self) -> None:
        output = self.scheduler.schedule()
        for new in output.scheduled_new_reqs:
            self.cached_tokens[new.req_id] = new.num_computed_tokens
        names = list(output.num_scheduled_tokens)
        tokens = []
        for name in names:
            request = self.scheduler.requests[name]
            done = request.num_computed_tokens >= request.num_tokens
            tokens.append([self.rng.randrange(3, 4000)] if done else [])
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=tokens,
        )
        self.scheduler.update_from_output(output, result)

    def drain(self, most: int = 20_000) -> None:
        for _ in range(most):
            if not self.scheduler.has_unfinished_requests():
                return
            self.step()
        raise AssertionError("the queue did not drain")

    def serve(self, name: str, tokens: list[int], *owner: str, **options: Any) -> int:
        """Run one request to its end; its cached tokens."""
        self.add(name, tokens, *owner, **options)
        self.drain()
        return self.cached_tokens[name]


def text(seed: str, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 4000) for _ in range(count)]


def workload(seed: int, requests: int) -> Iterator[tuple[int, str, list[int], str, str, int, int]]:
    """(steps to run first, name, prompt, agent, session, max tokens, aborts) of a mixed load: four agents,
    sessions that grow, unique prompts, enough at once to preempt."""
    rng = random.Random(seed)
    history: dict[str, list[int]] = {}
    for i in range(requests):
        agent = rng.choice("abcd")
        session = f"s{rng.randrange(12)}"
        if rng.random() < 0.2:
            prompt = text(f"unique{i}", rng.randrange(20, 400))
            agent = rng.choice(["", agent])
        else:
            grown = history.setdefault(session, [])
            grown.extend(text(f"turn{i}", rng.randrange(8, 60)))
            if len(grown) > 300:
                grown.clear()
            prompt = text(f"anchor{agent}", 96) + list(grown)
        yield (
            rng.choice((0, 0, 0, 1, 5, 40)),
            f"r{i}",
            prompt,
            agent,
            session,
            rng.randrange(1, 80),
            int(rng.random() < 0.05),
        )
