"""vLLM's hashing and evicting of blocks in the common case, without its detours.

All that this project knows of what is private in vLLM's block pool stands here. The two functions do
what `BlockPool.cache_full_blocks` and `get_new_blocks` do to blocks of which nothing special holds
(`is_plain`, and block by block below), and leave all others to these. Tests compare both with vLLM's own
over random pools, and fail when vLLM changes one of the methods that are stood in for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock, make_block_hash_with_group_id


def is_plain(pool: BlockPool) -> bool:
    """Whether the pool is vLLM's own, and nobody is told of single blocks."""
    told = pool.enable_kv_cache_events or pool.metrics_collector is not None
    return type(pool) is BlockPool and pool.enable_caching and not told


def blocks_by_hash(pool: BlockPool) -> dict[Any, Any]:
    """Block, or dict of blocks, by hash; another one after each reset of the prefix cache."""
    return pool.cached_block_hash_to_block._cache


def hash_blocks(
    known: dict[Any, Any],
    hashes: Sequence[BlockHash],
    blocks: Sequence[KVCacheBlock],
    first: int,
    stop: int,
    block_size: int,
    group: int,
) -> int:
    """Give the blocks first..stop their hashes, up to the first for which that isn't all: its index."""
    suffix = make_block_hash_with_group_id(BlockHash(b""), group)
    tokens = first * block_size
    for i in range(first, stop):
        block = blocks[i]
        key = hashes[i] + suffix
        if block._block_hash is not None or key in known or block.is_null:
            return i
        tokens += block_size
        block._block_hash = key
        block._block_hash_num_tokens = tokens
        known[key] = block
    return stop


def occupy_blocks(pool: BlockPool, known: dict[Any, Any], blocks: Sequence[KVCacheBlock]) -> None:
    """Blocks that just left the free queue lose their hashes and are in use."""
    further_hashes = pool.cached_block_hashes_by_block
    for block in blocks:
        key = block._block_hash
        if further_hashes or (key is not None and known.get(key) is not block):
            pool._maybe_evict_cached_block(block)
        elif key is not None:
            del known[key]
            block._block_hash = block._block_hash_num_tokens = None
        assert block.ref_cnt == 0
        block.ref_cnt = 1
