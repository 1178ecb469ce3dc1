"""A prefix cache without tensors: the engine's owner free queue and directory over bare blocks."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from replicas.cache.anchor_finder import AnchorFinder
from replicas.cache.block_owner import BlockOwner
from replicas.cache.claim import Claim
from replicas.cache.floors import TenantFloors
from replicas.cache.ownership import OwnerDirectory
from replicas.cache.recency_guard import RecencyGuard
from replicas.cache.residency import Residency, count_residency
from replicas.cache.settings import ValueSettings
from replicas.free_queue import OwnerFreeQueue
from runtime_actor.messages import WARMUP, OwnerTag

_HASH_BYTES = 16


class SimulatedBlock:
    """A block as the free queue knows it; `content` is the hash of the prefix that ends with it."""

    __slots__ = ("block_id", "content", "next_free_block", "prev_free_block", "ref_cnt")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.content: bytes | None = None
        self.ref_cnt = 0
        self.prev_free_block: SimulatedBlock | None = None
        self.next_free_block: SimulatedBlock | None = None


@dataclass(slots=True)
class Allocation:
    """The blocks of one request; the first `cached_tokens` of its prompt were there already."""

    claim: Claim
    hashes: list[bytes]
    blocks: list[SimulatedBlock]
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids with what keeps one tenant's or adapter's cache apart from another's."""

    token_ids: tuple[int, ...]
    cache_salt: str | None = None
    lora_name: str | None = None


def prefix_hashes(prompt: Prompt, block_size: int) -> list[bytes]:
    """One hash for each full block, each over its whole prefix, the salt and the adapter."""
    parent = repr((prompt.cache_salt, prompt.lora_name)).encode()
    ids = np.asarray(prompt.token_ids, dtype="<i4").tobytes()
    hashes = []
    for start in range(0, len(prompt.token_ids) - block_size + 1, block_size):
        block = ids[4 * start : 4 * (start + block_size)]
        parent = hashlib.blake2b(parent + block, digest_size=_HASH_BYTES).digest()
        hashes.append(parent)
    return hashes


class SimulatedCache:
    """Allocates, fills and frees blocks in the order of the owner free queue."""

    def __init__(
        self, *, num_blocks: int, block_size: int, values: ValueSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.directory = OwnerDirectory(
            values, block_size, clock, cache_blocks=num_blocks, guard=RecencyGuard(num_blocks)
        )
        self.evicted_blocks = 0
        self._blocks = [SimulatedBlock(i) for i in range(num_blocks)]
        self._owner_of: list[BlockOwner | None] = [None] * num_blocks
        self._queue = OwnerFreeQueue(self._blocks, self._owner_of, self.directory.changed)
        self._resident: dict[bytes, SimulatedBlock] = {}
        self.finder = AnchorFinder()
        self._floors = TenantFloors(self.directory.valuation, self._owner_of, clock)

    @property
    def num_free_blocks(self) -> int:
        return self._queue.num_free_blocks

    def residency(self) -> Residency:
        return count_residency(self._owner_of)[0]

    def resident_blocks(self, hashes: list[bytes]) -> list[SimulatedBlock]:
        """The leading blocks that are in the cache."""
        found = []
        for block_hash in hashes:
            block = self._resident.get(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def arrive(
        self, request_id: str, tag: OwnerTag | None, prompt: Prompt, priority: int = 0
    ) -> tuple[Claim, list[bytes]]:
        """A request joined the queue; its anchor, if it has one that is new, can be taken."""
        self._floors.look()
        hashes = prefix_hashes(prompt, self.block_size)
        claim = self.directory.arrive(request_id, tag, hashes, priority)
        if tag is not None and tag.request_kind != WARMUP and claim.anchor_tokens:
            tokens = claim.anchor_tokens
            boundary = hashes[tokens // self.block_size - 1]
            self.finder.note(
                (tag.workload, tag.agent), boundary, prompt.token_ids, tokens, prompt.cache_salt, prompt.lora_name
            )
        return claim, hashes

    def allocate(self, claim: Claim, hashes: list[bytes], prompt_tokens: int, total_tokens: int) -> Allocation | None:
        """Blocks for `total_tokens`, cached ones first; None if too few are free.

        At least the prompt's last token is always computed, so its block never counts as cached.
        """
        cached = self.resident_blocks(hashes[: (prompt_tokens - 1) // self.block_size])
        needed = -(-total_tokens // self.block_size) - len(cached)
        free = self._queue.num_free_blocks - sum(block.ref_cnt == 0 for block in cached)
        if needed > free:
            return None
        for block in cached:
            if block.ref_cnt == 0:
                self._queue.remove(block)
            block.ref_cnt += 1
        fresh = self._queue.popleft_n(needed)
        for block in fresh:
            self._forget(block)
            block.ref_cnt = 1
        self.directory.started(claim.request_id)
        if not claim.is_warmup:
            self.directory.counted(claim.request_id, len(cached), max(prompt_tokens - 1, 0) // self.block_size)
        return Allocation(claim, hashes, [*cached, *fresh], len(cached) * self.block_size)

    def fill(self, allocation: Allocation, computed_tokens: int) -> None:
        """The first `computed_tokens` of the prompt are in the cache now."""
        full = min(computed_tokens // self.block_size, len(allocation.hashes))
        for start, stop, owner in allocation.claim.spans(0, full, self.block_size):
            for i in range(start, stop):
                self._keep(allocation.blocks[i], allocation.hashes[i], owner)

    def free(self, allocation: Allocation) -> None:
        """The request is over; its tail leaves the cache before its head."""
        ended = []
        for block in reversed(allocation.blocks):
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                ended.append(block)
        self._queue.prepend_n([block for block in ended if block.content is None])
        self._queue.append_n([block for block in ended if block.content is not None])

    def victim_value(self, num_blocks: int) -> float | None:
        """The highest worth among the owners that would lose blocks to an allocation of this size."""
        victims = self._queue.get_all_free_blocks()[:num_blocks]
        owners = [self._owner_of[block.block_id] for block in victims if block.content is not None]
        return max((owner.forecast for owner in owners if owner is not None and owner.value > 0.0), default=None)

    def check_invariants(self) -> None:
        """Raises AssertionError unless blocks, hashes and owners agree."""
        free = self._queue.get_all_free_blocks()
        assert len(free) == self._queue.num_free_blocks == sum(b.ref_cnt == 0 for b in self._blocks)
        assert {b.block_id for b in free} == {b.block_id for b in self._blocks if b.ref_cnt == 0}
        assert all(self._resident[b.content] is b for b in self._blocks if b.content is not None)
        assert len(self._resident) == sum(b.content is not None for b in self._blocks)
        for block in self._blocks:
            assert (self._owner_of[block.block_id] is None) == (block.content is None)

    def _keep(self, block: SimulatedBlock, content: bytes, owner: BlockOwner) -> None:
        if content in self._resident:
            block = self._resident[content]
            self._set_owner(block, owner)
        elif block.content is None:
            block.content = content
            self._resident[content] = block
            self._set_owner(block, owner)

    def _forget(self, block: SimulatedBlock) -> None:
        if block.content is None:
            return
        self.evicted_blocks += 1
        del self._resident[block.content]
        block.content = None
        self._set_owner(block, None)

    def _set_owner(self, block: SimulatedBlock, owner: BlockOwner | None) -> None:
        before = self._owner_of[block.block_id]
        if before is owner:
            return
        self._owner_of[block.block_id] = owner
        if owner is not None and block.ref_cnt == 0:
            self._queue.reassigned(block)
