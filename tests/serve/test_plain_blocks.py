"""Pools with our shortcuts beside vLLM's own pool: after any calls both hold the same, block for block."""

from __future__ import annotations

import ast
import hashlib
import inspect
import random
import textwrap
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.core.block_pool import BlockHashToBlockMap, BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock, make_block_hash_with_group_id

from replicas.cache.block_pool import PoolOwners
from replicas.cache.ownership import OwnerDirectory
from replicas.cache.plain_blocks import blocks_by_hash
from replicas.cache.warm_ledger import WarmLedger

BLOCKS = 40
TOKENS = 4


class Pair:
    """The same calls on vLLM's pool and on one with owners around it."""

    def __init__(self, seed: int, **options: Any) -> None:
        self.rng = random.Random(seed)
        self.pools: list[Any] = [BlockPool(BLOCKS, True, TOKENS, **options) for _ in range(2)]
        self.owners = PoolOwners(self.pools[1], OwnerDirectory(hash_block_tokens=TOKENS), WarmLedger())
        self.held: list[tuple[list[int], int, Any, int]] = []

    def both(self, method: str, *arguments: Any) -> list[Any]:
        """Blocks are given by id."""

        def of(pool: Any, value: Any) -> Any:
            return [pool.blocks[i] for i in value] if isinstance(value, list) else value

        return [getattr(pool, method)(*(of(pool, value) for value in arguments)) for pool in self.pools]

    def start(self) -> None:
        """Few different texts, so that blocks of one content are often resident twice."""
        count = self.rng.randrange(1, 6)
        if count > self.pools[0].get_num_free_blocks():
            return
        got = self.both("get_new_blocks", count)
        ids = [[block.block_id for block in blocks] for blocks in got]
        assert ids[0] == ids[1]
        text = self.rng.randrange(12)
        hashes = [hashlib.sha256(f"{text}/{i}".encode()).digest() for i in range(count)]
        request = SimpleNamespace(
            request_id="r", block_hashes=hashes, all_token_ids=[0] * 64, lora_request=None, mm_features=[],
            cache_salt=None, prompt_embeds=None,
        )  # fmt: skip
        with_null = [0, *ids[0][1:]] if self.rng.random() < 0.2 else ids[0]
        self.held.append((ids[0], 0, (request, with_null), self.rng.randrange(2)))

    def fill(self) -> None:
        if not self.held:
            return
        at = self.rng.randrange(len(self.held))
        ids, done, (request, blocks), group = self.held[at]
        stop = self.rng.randint(done, len(ids))
        mask = [self.rng.random() < 0.5 for _ in range(stop - done)] if self.rng.random() < 0.2 else None
        for pool in self.pools:
            chosen = [pool.blocks[i] for i in blocks]
            pool.cache_full_blocks(request, chosen, done, stop, TOKENS, group, mask)
        self.held[at] = (ids, stop, (request, blocks), group)

    def free(self) -> None:
        if self.held:
            ids, *_ = self.held.pop(self.rng.randrange(len(self.held)))
            self.both("free_blocks", ids[::-1])

    def evict(self) -> None:
        self.both("evict_blocks", {self.rng.randrange(1, BLOCKS) for _ in range(3)})

    def hit(self) -> None:
        cached = [block.block_id for block in self.pools[0].blocks if block.block_hash is not None]
        if cached:
            ids = [self.rng.choice(cached)]
            self.both("touch", ids)
            request = SimpleNamespace(request_id="r", block_hashes=[])
            self.held.append((ids, 1, (request, ids), 0))

    def reset(self) -> None:
        if self.rng.random() < 0.1:
            assert len(set(self.both("reset_prefix_cache"))) == 1

    def agree(self) -> None:
        states = [
            (
                [(b.block_hash, b.block_hash_num_tokens, b.ref_cnt) for b in pool.blocks],
                [block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
                {key: list(held) if isinstance(held, dict) else held.block_id
                 for key, held in pool.cached_block_hash_to_block._cache.items()},
                pool.cached_block_hashes_by_block,
                len(pool.kv_event_queue),
            )
            for pool in self.pools
        ]  # fmt: skip
        assert states[0] == states[1]
        assert not self.owners.failed


@pytest.mark.parametrize("by_value", [False, True])
@pytest.mark.parametrize("options", [{}, {"enable_kv_cache_events": True}], ids=["plain", "events"])
@pytest.mark.parametrize("seed", range(4))
def test_pools_agree_whatever_is_called(seed: int, options: dict[str, Any], by_value: bool) -> None:
    pair = Pair(seed, **options)
    if by_value:
        pair.owners.use_value_order()
    steps = [pair.start] * 4 + [pair.fill] * 4 + [pair.free] * 3 + [pair.hit, pair.evict, pair.reset]
    for _ in range(400):
        pair.rng.choice(steps)()
        pair.agree()


def test_a_second_hash_of_a_block_goes_with_it() -> None:
    pair = Pair(0)
    for pool in pair.pools:
        (block,) = pool.get_new_blocks(1)
        for number in (1, 2):
            pool._insert_block_hash(make_block_hash_with_group_id(bytes([number]) * 32, 0), block, num_tokens=TOKENS)
        assert len(pool.cached_block_hashes_by_block) == 1
        pool.free_blocks([block])
        pool.get_new_blocks(BLOCKS - 1)
        assert len(pool.cached_block_hash_to_block) == len(blocks_by_hash(pool)) == 0
    pair.agree()


def test_a_pool_that_is_too_small_says_so_as_vllms_does() -> None:
    for pool in Pair(0).pools:
        with pytest.raises(ValueError, match=f"Cannot get {BLOCKS} free blocks"):
            pool.get_new_blocks(BLOCKS)


STOOD_IN_FOR = {
    BlockPool.cache_full_blocks: "d57e464beb120a40",
    BlockPool.get_new_blocks: "b251f4ae8053b352",
    BlockPool._insert_block_hash: "29610decbb687a0d",
    BlockPool._maybe_evict_cached_block: "38134b1632e83780",
    BlockPool._remove_cached_block_hashes: "2c1eb6c998f16c1c",
    BlockHashToBlockMap: "1f387d6f9da5025f",
    KVCacheBlock: "2953fb43fa553866",
    make_block_hash_with_group_id: "34c74217e5a4f82e",
}
"""What replicas/cache/plain_blocks.py does in other words, with the digest of the code it was compared with."""


def digest(code: Any) -> str:
    """Of what the code does: comments and docstrings are left out."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
            del node.body[0]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


@pytest.mark.parametrize("code", STOOD_IN_FOR, ids=lambda code: code.__qualname__)
def test_what_the_shortcuts_stand_in_for_is_unchanged(code: Any) -> None:
    found = digest(code)
    assert found == STOOD_IN_FOR[code], (
        f"vLLM's {code.__qualname__} changed: compare replicas/cache/plain_blocks.py with it, then note {found!r} here"
    )
