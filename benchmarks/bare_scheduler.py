"""vLLM's real scheduler and block pool without a model: steps are answered with made-up tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from replicas.engine.messages import ADDITIONAL_CONFIG_KEY
from replicas.scheduler import agent_scheduler

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
    folder: Path,
    runtime: dict[str, Any] | None,
    async_scheduling: bool = False,
    policy: str = "fcfs",
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 256,
) -> VllmConfig:
    (folder / "config.json").write_text(json.dumps(MODEL))
    model = ModelConfig(model=str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=4096)
    scheduling = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
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


class BareScheduler:
    """A scheduler to be stepped. runtime None: vLLM's own."""

    def __init__(
        self, folder: Path, runtime: dict[str, Any] | None, num_blocks: int, seed: int = 0, **options: Any
    ) -> None:
        config = make_config(folder, runtime, **options)
        config.cache_config.num_gpu_blocks = num_blocks
        spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32)
        arguments: dict[str, Any] = {
            "vllm_config": config,
            "kv_cache_config": KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
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

    @property
    def pool(self) -> Any:
        return self.scheduler.kv_cache_manager.block_pool

    def request(self, name: str, tokens: list[int], max_tokens: int, extra: Any = None, **options: Any) -> Request:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, extra_args=extra)
        params.update_from_generation_config({}, eos_token_id=2)
        return Request(
            request_id=name,
            prompt_token_ids=tokens,
            sampling_params=params,
            pooling_params=None,
            block_hasher=self.hasher,
            **options,
        )

    def answer(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """What a model would have said: a random token for each request whose prompt is done."""
        names = list(output.num_scheduled_tokens)
        tokens = []
        for name in names:
            request = self.scheduler.requests[name]
            done = request.num_computed_tokens >= request.num_tokens
            tokens.append([self.rng.randrange(3, 4000)] if done else [])
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=tokens,
        )
