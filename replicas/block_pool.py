"""vLLM's block pool, knowing whose each cached block is.

`adopt` changes the class of the pool that vLLM made, so that everyone who holds it keeps it. A block gets
its owner when it gets its hash and loses it with the hash. With `use_stock_order` the free queue is
vLLM's own; owners are still kept, for the statistics and for a later `use_value_order`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    FreeKVCacheBlockQueue,
    KVCacheBlock,
    make_block_hash_with_group_id,
)
from vllm.v1.request import Request

from replicas.claim import Claim
from replicas.free_queue import OwnerFreeQueue
from replicas.owner_values import KINDS, BlockOwner
from replicas.ownership import OwnerDirectory
from replicas.warm_ledger import WarmLedger

logger = logging.getLogger(__name__)

_cache_full_blocks = BlockPool.cache_full_blocks
_get_new_blocks = BlockPool.get_new_blocks


class AgentBlockPool(BlockPool):
    """Made by `adopt`, never constructed. Its own bookkeeping never raises into the engine: a fault is
    logged, counted, and `failed` asks the scheduler to go back to stock order between two steps."""

    owner_of: list[BlockOwner | None]
    directory: OwnerDirectory
    warm: WarmLedger
    duplicates: set[int]
    """Blocks whose hash another block serves."""
    twins: dict[int, Any]
    """Blocks whose hash more than one block has, or had, with that hash."""
    evicted: list[int]
    by_value: bool
    failed: bool

    @classmethod
    def adopt(cls, pool: BlockPool, directory: OwnerDirectory, warm: WarmLedger) -> AgentBlockPool:
        pool.owner_of = [None] * len(pool.blocks)
        pool.directory = directory
        pool.warm = warm
        pool.duplicates = set()
        pool.twins = {}
        pool._nobodys = Claim("", None, directory.nobody)
        pool.evicted = [0] * len(KINDS)
        pool.by_value = False
        pool.failed = False
        pool.__class__ = cls
        return pool

    # --- order --------------------------------------------------------------------------------------

    def use_value_order(self) -> None:
        """From now on victims are chosen by owner value; free blocks keep their age."""
        if not self.by_value:
            free = self.free_block_queue.get_all_free_blocks()
            self.free_block_queue = OwnerFreeQueue(free, self.owner_of, self._changed)
            self.by_value = True
            self.directory_changed()

    def use_stock_order(self) -> None:
        """From now on the queue is vLLM's own; what is free stays in the order it had."""
        if self.by_value:
            self.free_block_queue = FreeKVCacheBlockQueue(self.free_block_queue.drain())
            self.by_value = False

    def directory_changed(self) -> None:
        """Tables or settings are new: duplicates are put first only where values order at all."""
        if self.by_value:
            active = self.directory.is_active
            self.free_block_queue.duplicates = self.duplicates if active else set()

    def _changed(self) -> Iterable[BlockOwner]:
        try:
            return self.directory.changed()
        except Exception:
            self._fail("values")
            return ()

    def _fail(self, what: str) -> None:
        if not self.failed:
            logger.exception("Cache policy: %s failed; going back to stock order", what)
        self.failed = True

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
        known = len(self.cached_block_hash_to_block)
        _cache_full_blocks(
            self, request, blocks, num_cached_blocks, num_full_blocks, block_size,
            kv_cache_group_id, block_mask,
        )  # fmt: skip
        if self.failed:
            return
        try:
            claim = self.directory.claim(request.request_id) or self._nobodys
            # As many new keys as blocks: none was null, masked, promoted or a duplicate.
            added = len(self.cached_block_hash_to_block) - known
            plain = added == num_full_blocks - num_cached_blocks
            for start, stop, owner in claim.spans(num_cached_blocks, num_full_blocks, block_size):
                self._tag(blocks[start:stop], owner, plain)
            if claim.is_warmup:
                self._mark_warm(claim, blocks[num_cached_blocks:num_full_blocks])
        except Exception:
            self._fail("tagging")

    def cache_partial_block(self, request: Request, block: KVCacheBlock, *args: Any, **kwargs: Any) -> Any:
        key = super().cache_partial_block(request, block, *args, **kwargs)
        if key is not None and not self.failed:
            try:
                claim = self.directory.claim(request.request_id) or self._nobodys
                self._tag([block], claim.rest, plain=False)
            except Exception:
                self._fail("tagging")
        return key

    def move_block_hashes(self, src_block: KVCacheBlock, dst_block: KVCacheBlock) -> None:
        owner = self.owner_of[src_block.block_id]
        super().move_block_hashes(src_block, dst_block)
        if owner is not None:
            self._forget([src_block])
            self._tag([dst_block], owner, plain=False)

    def _tag(self, blocks: Sequence[KVCacheBlock], owner: BlockOwner, plain: bool) -> None:
        owner_of = self.owner_of
        if plain:
            for block in blocks:
                owner_of[block.block_id] = owner
            owner.tally.blocks += len(blocks)
            return
        for block in blocks:
            block_hash = block.block_hash
            if block_hash is None or block.is_null:
                continue
            former = owner_of[block.block_id]
            if former is not None:
                former.tally.blocks -= 1
            owner_of[block.block_id] = owner
            owner.tally.blocks += 1
            served = self.cached_block_hash_to_block.get_one_block(block_hash)
            if served is not block:
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
        owner_of = self.owner_of
        for start, stop, owner in claim.spans(0, len(block_ids), block_size):
            for block_id in block_ids[start:stop]:
                former = owner_of[block_id]
                if former is not owner and former is not None:
                    former.tally.blocks -= 1
                    owner.tally.blocks += 1
                    owner_of[block_id] = owner

    def claim_moved(self, claim: Claim, hashes: Iterable[tuple[int, bytes]], group: int, block_size: int) -> None:
        """Blocks just found to be shared go to the shared owner, in the queue too, at their own age.

        hashes: (block index, block hash) of blocks that may be resident in this KV group.
        """
        for index, block_hash in hashes:
            key = make_block_hash_with_group_id(BlockHash(block_hash), group)
            block = self.cached_block_hash_to_block.get_one_block(key)
            former = self.owner_of[block.block_id] if block is not None else None
            if block is None or former is None:
                continue
            owner = next(owner for _, _, owner in claim.spans(index, index + 1, block_size))
            if owner is not former:
                former.tally.blocks -= 1
                owner.tally.blocks += 1
                self.owner_of[block.block_id] = owner
                self._resort(block)

    def _resort(self, block: KVCacheBlock) -> None:
        if self.by_value and block.next_free_block is not None:
            self.free_block_queue.reassigned(block)

    # --- a block loses its hash ---------------------------------------------------------------------

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        blocks = _get_new_blocks(self, num_blocks)
        self._forget(blocks, self.evicted)
        return blocks

    def evict_blocks(self, block_ids: set[int]) -> None:
        super().evict_blocks(block_ids)
        blocks = [self.blocks[block_id] for block_id in block_ids]
        if self.by_value:
            for block in blocks:
                if block.next_free_block is not None:
                    self.free_block_queue.emptied(block)
        self._forget(blocks, self.evicted)

    def _forget(self, blocks: Sequence[KVCacheBlock], evicted: list[int] | None = None) -> None:
        """These blocks have no hash now. Counted an owner's run at a time."""
        owner_of = self.owner_of
        run: BlockOwner | None = None
        length = 0
        for block in blocks:
            block_id = block.block_id
            owner = owner_of[block_id]
            if owner is not run:
                if run is not None:
                    run.tally.blocks -= length
                    if evicted is not None:
                        evicted[run.reason] += length
                run = owner
                length = 0
            length += 1
            owner_of[block_id] = None
        if run is not None:
            run.tally.blocks -= length
            if evicted is not None:
                evicted[run.reason] += length
        if self.twins or self.warm.block_actions:
            self._forget_marks(blocks)

    def _forget_marks(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Warmed blocks are lost; where the served copy of a hash is gone, the next copy serves and is
        its owner's again."""
        for block in blocks:
            if self.warm.block_actions:
                self.warm.lose(block.block_id)
            key = self.twins.pop(block.block_id, None)
            if key is None:
                continue
            self.duplicates.discard(block.block_id)
            served = self.cached_block_hash_to_block.get_one_block(key)
            if served is not None and served.block_id in self.duplicates:
                self.duplicates.discard(served.block_id)
                self._resort(served)

    def reset_prefix_cache(self) -> bool:
        done = super().reset_prefix_cache()
        if done:
            self.owner_of[:] = [None] * len(self.owner_of)
            self.directory.clear_residency()
            self.duplicates.clear()
            self.twins.clear()
            for block_id in list(self.warm.block_actions):
                self.warm.lose(block_id)
            if self.by_value:
                free = self.free_block_queue.drain()
                self.free_block_queue = OwnerFreeQueue(free, self.owner_of, self._changed)
                self.directory_changed()
        return done
