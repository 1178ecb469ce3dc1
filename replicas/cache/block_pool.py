"""Whose each cached block of vLLM's pool is.

`PoolOwners` puts itself around the methods of the pool by which blocks get and lose their hashes. It sets
them on the one pool object and leaves its class alone: others hold the pool already, and an object whose
class was exchanged is slower in each of its attributes (measured: 12 % of a block's way through the pool).

A block gets its owner when it gets its hash, and keeps it until it is hashed anew, cached or not: who
asks for the owner of a block looks at its hash first, the counts are too high by the few blocks that
running requests are filling, and taking blocks costs nothing.
With `use_stock_order` the free queue is vLLM's own; owners are still kept, for the statistics and for a
later `use_value_order`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    FreeKVCacheBlockQueue,
    KVCacheBlock,
    make_block_hash_with_group_id,
)
from vllm.v1.request import Request

from replicas.cache.block_owner import KINDS, BlockOwner
from replicas.cache.claim import Claim
from replicas.cache.ownership import OwnerDirectory
from replicas.cache.plain_blocks import blocks_by_hash, hash_blocks, is_plain, occupy_blocks
from replicas.cache.warm_ledger import WarmLedger
from replicas.free_queue import OwnerFreeQueue

logger = logging.getLogger(__name__)

WRAPPED = (
    "cache_full_blocks",
    "cache_partial_block",
    "evict_blocks",
    "get_new_blocks",
    "move_block_hashes",
    "reset_prefix_cache",
)
"""The methods of the pool through which every hash comes and goes; a test holds that there are no more."""


OLDEST = len(KINDS)
"""Index in `PoolOwners.evicted` of what stock order evicted, whoever's it was."""

EVICTED_KINDS = (*KINDS, "oldest")


class PoolOwners:
    """The owners of one pool's blocks. Its bookkeeping never raises into the engine: a fault is logged,
    and `failed` asks the scheduler to go back to stock order between two steps."""

    def __init__(self, pool: BlockPool, directory: OwnerDirectory, warm: WarmLedger) -> None:
        self.pool = pool
        self.directory = directory
        self.warm = warm
        self.owner_of: list[BlockOwner | None] = [None] * len(pool.blocks)
        self.duplicates: set[int] = set()
        """Blocks whose hash another block serves."""
        self.twins: dict[int, Any] = {}
        """Blocks whose hash more than one block has, or had, with that hash."""
        self.evicted = [0] * len(EVICTED_KINDS)
        self.by_value = False
        self.failed = False
        self._is_plain = is_plain(pool)
        self._known = pool.cached_block_hash_to_block
        self._blocks_by_hash = blocks_by_hash(pool)
        self._nobodys = Claim("", None, directory.nobody)
        self._stock = {name: getattr(pool, name) for name in WRAPPED}
        self._stock_cache_full_blocks = pool.cache_full_blocks
        self._stock_get_new_blocks = pool.get_new_blocks
        for name in WRAPPED:
            setattr(pool, name, getattr(self, name))

    # --- order --------------------------------------------------------------------------------------

    def use_value_order(self) -> None:
        """From now on victims are chosen by owner value; free blocks keep their age."""
        if not self.by_value:
            for block in self.pool.blocks:
                if block.block_hash is None:
                    self.owner_of[block.block_id] = None
            self._set_value_queue(self.pool.free_block_queue.get_all_free_blocks())
            self.by_value = True
            self.directory_changed()

    def _set_value_queue(self, free: Sequence[KVCacheBlock]) -> None:
        queue = OwnerFreeQueue(free, self.owner_of, self.changed, self.evicted)
        queue.duplicates = self.duplicates if self.directory.is_active else set()
        self.pool.free_block_queue = queue

    def use_stock_order(self) -> None:
        """From now on the queue is vLLM's own; what is free stays in the order it had."""
        if self.by_value:
            self.pool.free_block_queue = FreeKVCacheBlockQueue(self.pool.free_block_queue.drain())
            self.by_value = False

    def directory_changed(self) -> None:
        """Tables or settings are new: duplicates are put first only where values order at all."""
        if self.by_value:
            active = self.directory.is_active
            self.pool.free_block_queue.duplicates = self.duplicates if active else set()

    def changed(self) -> Iterable[BlockOwner]:
        """As the directory's; none, and a fault, where that fails."""
        try:
            return self.directory.changed()
        except Exception:  # noqa: BLE001 - logged by _fail; nothing may rise into the engine's loop
            self._fail("values")
            return ()

    def _fail(self, what: str) -> None:
        if not self.failed:
            logger.exception("Cache policy: %s failed; going back to stock order", what)
        self.failed = True

    def _note(self, what: str, note: Callable[..., None], *args: Any) -> None:
        """The pool has done its part; what is noted of it may fail, and the engine goes on."""
        if self.failed:
            return
        try:
            note(*args)
        except Exception:  # noqa: BLE001 - logged by _fail; nothing may rise into the engine's loop
            self._fail(what)

    # --- a block gets its hash ----------------------------------------------------------------------

    def cache_full_blocks(
        self,
        request: Request,
        blocks: list[KVCacheBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
        block_mask: list[bool] | None = None,
    ) -> None:
        if num_cached_blocks >= num_full_blocks:
            return
        known = len(self._blocks_by_hash)
        done = num_cached_blocks
        if self._is_plain and block_mask is None and block_size == self.pool.hash_block_size:
            done = hash_blocks(
                self._blocks_by_hash, request.block_hashes, blocks, num_cached_blocks, num_full_blocks,
                block_size, kv_cache_group_id,
            )  # fmt: skip
        if done < num_full_blocks:
            self._stock_cache_full_blocks(
                request, blocks, done, num_full_blocks, block_size, kv_cache_group_id, block_mask
            )
        if self.failed:
            return
        try:
            claim = self.directory.claims.get(request.request_id) or self._nobodys
            # As many new keys as blocks: none was null, masked or a duplicate. A block that was a duplicate by the hash
            # of its part, and isn't by that of the whole, can only have gone the long way.
            new = len(self._blocks_by_hash) - known
            if new != num_full_blocks - num_cached_blocks or (done < num_full_blocks and self.twins):
                self._note_duplicates(blocks[num_cached_blocks:num_full_blocks])
            self._tag(claim, blocks, num_cached_blocks, num_full_blocks, block_size)
            if claim.is_warmup:
                self._mark_warm(claim, blocks[num_cached_blocks:num_full_blocks])
        except Exception:  # noqa: BLE001 - logged by _fail; nothing may rise into the engine's loop
            self._fail("tagging")

    def _tag(self, claim: Claim, blocks: list[KVCacheBlock], start: int, stop: int, block_size: int) -> None:
        owner_of = self.owner_of
        if start * block_size < claim.anchor_tokens:
            for first, end, owner in claim.spans(start, stop, block_size):
                for block in blocks[first:end]:
                    owner_of[block.block_id] = owner
        else:
            owner = claim.rest
            for block in blocks[start:stop]:
                owner_of[block.block_id] = owner

    def cache_partial_block(self, request: Request, block: KVCacheBlock, *args: Any, **kwargs: Any) -> Any:
        key = self._stock["cache_partial_block"](request, block, *args, **kwargs)
        if key is not None:
            self._note("tagging a part", self._cached_partly, request, block)
        return key

    def _cached_partly(self, request: Request, block: KVCacheBlock) -> None:
        claim = self.directory.claims.get(request.request_id) or self._nobodys
        self.owner_of[block.block_id] = claim.rest
        self._note_duplicates([block])

    def move_block_hashes(self, src_block: KVCacheBlock, dst_block: KVCacheBlock) -> None:
        self._stock["move_block_hashes"](src_block, dst_block)
        self._note("moving", self._moved, src_block, dst_block)

    def _moved(self, source: KVCacheBlock, target: KVCacheBlock) -> None:
        self.owner_of[target.block_id] = self.owner_of[source.block_id]
        self.owner_of[source.block_id] = None
        self.warm.move(source.block_id, target.block_id)
        # The hash was taken out and put in again: if other blocks have it too, one of them serves it now.
        self._forget_twin(source)
        self._note_duplicates([target])

    def _note_duplicates(self, blocks: Sequence[KVCacheBlock]) -> None:
        for block in blocks:
            block_hash = block.block_hash
            if block_hash is None or block.is_null:
                continue
            if self.twins.get(block.block_id, block_hash) != block_hash:
                self._forget_twin(block)
            served = self._known.get_one_block(block_hash)
            if served is not None and served is not block:
                self.duplicates.add(block.block_id)
                self.twins[block.block_id] = self.twins[served.block_id] = block_hash

    def _mark_warm(self, claim: Claim, blocks: Sequence[KVCacheBlock]) -> None:
        assert claim.tag is not None
        for block in blocks:
            if block.block_hash is not None and block.block_id not in self.duplicates:
                self.warm.fill(claim.tag.session, block.block_id)

    # --- a block changes hands ----------------------------------------------------------------------

    def claim_hits(self, claim: Claim, block_ids: Sequence[int], block_size: int) -> None:
        """A request found these leading blocks and holds them: they are its owners' from now on."""
        for start, stop, owner in claim.spans(0, len(block_ids), block_size):
            for block_id in block_ids[start:stop]:
                self.owner_of[block_id] = owner

    def claim_moved(self, claim: Claim, hashes: Iterable[tuple[int, bytes]], group: int, block_size: int) -> None:
        """Blocks just found to be shared go to the shared owner, in the queue too, at their own age.

        hashes: (block index, block hash) of blocks that may be resident in this KV group.
        """
        for index, block_hash in hashes:
            key = make_block_hash_with_group_id(BlockHash(block_hash), group)
            block = self._known.get_one_block(key)
            if block is not None:
                spans = claim.spans(index, index + 1, block_size)
                self.owner_of[block.block_id] = spans[0][2]
                self._resort(block)

    def _resort(self, block: KVCacheBlock) -> None:
        if self.by_value and block.next_free_block is not None:
            self.pool.free_block_queue.reassigned(block)

    # --- a block loses its hash ---------------------------------------------------------------------

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        known = len(self._blocks_by_hash)
        queue = self.pool.free_block_queue
        if self._is_plain and num_blocks <= queue.num_free_blocks:
            blocks = queue.popleft_n(num_blocks)
            occupy_blocks(self.pool, self._blocks_by_hash, blocks)
        else:
            blocks = self._stock_get_new_blocks(num_blocks)
        if not self.by_value:
            self.evicted[OLDEST] += known - len(self._blocks_by_hash)
        if self.twins or self.warm.block_actions:
            self._note("taking", self._forget_marks, blocks)
        return blocks

    def evict_blocks(self, block_ids: set[int]) -> None:
        self._stock["evict_blocks"](block_ids)
        self._note("evicting", self._evicted, [self.pool.blocks[block_id] for block_id in block_ids])

    def _evicted(self, blocks: Sequence[KVCacheBlock]) -> None:
        for block in blocks:
            self.owner_of[block.block_id] = None
            if self.by_value and block.next_free_block is not None:
                self.pool.free_block_queue.emptied(block)
        self._forget_marks(blocks)

    def _forget_marks(self, blocks: Sequence[KVCacheBlock]) -> None:
        for block in blocks:
            if self.warm.block_actions:
                self.warm.lose(block.block_id)
            self._forget_twin(block)

    def _forget_twin(self, block: KVCacheBlock) -> None:
        """It lost a hash that others may have: where it was the served copy, the next one serves and is its owner's
        again."""
        key = self.twins.pop(block.block_id, None)
        if key is None:
            return
        self.duplicates.discard(block.block_id)
        served = self._known.get_one_block(key)
        if served is not None and served.block_id in self.duplicates:
            self.duplicates.discard(served.block_id)
            self._resort(served)

    def reset_prefix_cache(self) -> bool:
        done = self._stock["reset_prefix_cache"]()
        if done:
            self._known = self.pool.cached_block_hash_to_block
            self._blocks_by_hash = blocks_by_hash(self.pool)
            self._note("a reset", self._emptied)
        return done

    def _emptied(self) -> None:
        if self.directory.valuation.guard is not None:
            self.directory.valuation.guard.emptied()
        self.owner_of[:] = [None] * len(self.owner_of)
        self.duplicates.clear()
        self.twins.clear()
        for block_id in list(self.warm.block_actions):
            self.warm.lose(block_id)
        if self.by_value:
            self._set_value_queue(self.pool.free_block_queue.drain())
