"""What vLLM would refuse of `engine_kwargs` only when a replica starts, or in words that don't name the key."""

from typing import Any

from runtime_actor.errors import ConfigurationError
from serve_app.configuration.engine_arguments import check_engine_kwargs
from serve_app.configuration.errors import shown

DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
CPU_BLOCK_MULTIPLE = 32
"""Of vLLM's attention on CPU; its own default there is 128."""


def check_engine(values: dict[str, Any], on_cpu: bool) -> None:
    """`on_cpu`: vLLM without a GPU. Raises ConfigurationError naming the key, its value and what is allowed."""
    check_engine_kwargs(values)
    dtype = values.get("dtype", "auto")
    if dtype not in DTYPES:
        raise ConfigurationError(f"engine_kwargs.dtype: {shown(dtype)} is not allowed; allowed: {', '.join(DTYPES)}")
    block_size = values.get("block_size")
    if on_cpu and block_size is not None and block_size % CPU_BLOCK_MULTIPLE:
        raise ConfigurationError(
            f"engine_kwargs.block_size: {block_size} is not allowed on CPU (num_gpus_per_replica is 0); "
            f"allowed: a multiple of {CPU_BLOCK_MULTIPLE}"
        )
