"""Eviction order of free KV-cache blocks, by owner.

`OwnerFreeQueue` has the methods of vLLM's `FreeKVCacheBlockQueue` and works on any block objects with
`block_id`, `prev_free_block` and `next_free_block`. Blocks leave in this order:

1. blocks that hold nothing (`prepend_n`), last freed first;
2. duplicates: blocks whose content another resident block already serves;
3. owners' blocks, lowest `Owner.value` first; equal values by time of freeing, so that with all values
   equal the order is that of the stock queue, block for block. A request's tail comes before its head
   because the caller frees it in that order.

Each owner has a linked list of its own, so freeing and taking are bulk operations, and values are
looked up when a victim is needed, not when a block is freed.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from replicas.owner import ListEnd, Owner, nothing_changed, untold

MAX_LISTS = 2048
"""Owners with a list of their own; beyond it the least valued ones share the common list."""


class OwnerFreeQueue:
    """Free blocks in eviction order.

    Args:
        blocks: the free blocks, in the order they are to leave if all values are equal.
        owner_of: owner by block id (None: nobody's); read when a block is freed, kept by the caller.
        changed: returns the owners whose `value` changed since its last call; called when a victim has
            to be chosen among owners.
        taken: told of each run of blocks of one owner that leaves by `popleft_n`.
        max_lists: cap on owners with a list of their own.
    """

    def __init__(
        self,
        blocks: Sequence[Any],
        owner_of: Sequence[Owner | None],
        changed: Callable[[], Iterable[Owner]] = nothing_changed,
        taken: Callable[[Owner, int], None] = untold,
        max_lists: int = MAX_LISTS,
    ) -> None:
        if max_lists < 1:
            raise ValueError(f"max_lists must be at least 1, got {max_lists}")
        self.num_free_blocks = 0
        self.duplicates: set[int] = set()
        """Ids of blocks to be freed as duplicates; kept by the caller."""
        self.num_folds = 0
        self._owner_of = owner_of
        self._changed = changed
        self._taken = taken
        self._max_lists = max_lists
        self._empty = Owner()
        self._doubles = Owner()
        self._common = Owner()
        self._heap: list[tuple[float, int, int, Owner]] = []
        self._serial = 0
        self._lists = 0
        self._stamp = 0
        self._stamps = array("q", [0]) * len(owner_of)
        self._walked = array("q", [-1]) * len(owner_of)
        self._adopt(blocks)

    def _adopt(self, blocks: Sequence[Any]) -> None:
        """Take over a queue: what nobody owns at its front holds nothing."""
        unowned = 0
        while unowned < len(blocks) and self._owner_of[blocks[unowned].block_id] is None:
            unowned += 1
        self.prepend_n(blocks[:unowned])
        self.append_n(blocks[unowned:])

    # --- freeing ------------------------------------------------------------------------------------

    def append(self, block: Any) -> None:
        self.append_n((block,))

    def append_n(self, blocks: Sequence[Any]) -> None:
        """Free cached blocks; the first is the least recently used of them."""
        stamp = self._stamp
        stamps = self._stamps
        owner_of = self._owner_of
        duplicates = self.duplicates
        common = self._common
        given: Owner | None = common
        current: Owner | None = None
        last: Any = None
        for block in blocks:
            block_id = block.block_id
            owner = owner_of[block_id]
            if owner is not given or current is None or duplicates:
                given = owner
                if owner is None or not owner.listed:
                    owner = common
                if duplicates and block_id in duplicates:
                    owner = self._doubles
                if owner is not current:
                    if current is not None:
                        self._close(current, last)
                    current = owner
                    last = owner.tail.prev_free_block
                    if not owner.entry and owner is not self._doubles:
                        self._enter(owner, stamp)
            block.prev_free_block = last
            last.next_free_block = block
            last = block
            stamps[block_id] = stamp
            stamp += 1
        if current is not None:
            self._close(current, last)
        self._stamp = stamp
        self.num_free_blocks += len(blocks)
        if self._lists > self._max_lists:
            self._fold()

    @staticmethod
    def _close(owner: Owner, last: Any) -> None:
        last.next_free_block = owner.tail
        owner.tail.prev_free_block = last

    def prepend_n(self, blocks: Sequence[Any]) -> None:
        """Free blocks that hold nothing; they leave before all others, the first one first."""
        if not blocks:
            return
        following = self._empty.head.next_free_block
        last: Any = self._empty.head
        stamps = self._stamps
        for block in blocks:
            block.prev_free_block = last
            last.next_free_block = block
            last = block
            self._walked[block.block_id] = stamps[block.block_id]
        last.next_free_block = following
        following.prev_free_block = last
        self.num_free_blocks += len(blocks)

    # --- taking -------------------------------------------------------------------------------------

    def popleft(self) -> Any:
        """Raises ValueError if there is no free block."""
        if self.num_free_blocks == 0:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[Any]:
        """Take the n blocks that are worth least. Raises ValueError if there are fewer."""
        if n > self.num_free_blocks:
            raise ValueError(f"{n} blocks asked for, {self.num_free_blocks} are free")
        taken: list[Any] = []
        if n <= 0:
            return taken
        self.num_free_blocks -= n
        for worthless in (self._empty, self._doubles):
            if worthless.head.next_free_block is not worthless.tail:
                worthless.take(n, taken)
        if len(taken) < n:
            self._take_from_owners(n, taken)
        return taken

    def _take_from_owners(self, n: int, taken: list[Any]) -> None:
        """Take from the lowest-valued lists; lists of equal value are merged by time of freeing."""
        self._apply_changes()
        heap = self._heap
        while len(taken) < n:
            value, stamp, serial, owner = heap[0]
            if owner.entry != serial:
                heapq.heappop(heap)
                continue
            first = owner.head.next_free_block
            if first is owner.tail:
                heapq.heappop(heap)
                self._leave(owner)
                continue
            oldest = self._stamps[first.block_id]
            if oldest != stamp or owner.value != value:
                owner.entered_value = owner.value
                heapq.heapreplace(heap, (owner.value, oldest, serial, owner))
                continue
            heapq.heappop(heap)
            before = len(taken)
            if heap and heap[0][0] == value:
                owner.take_older(n, taken, self._stamps, heap[0][1])
            else:
                owner.take(n, taken)
            self._taken(owner, len(taken) - before)
            first = owner.head.next_free_block
            if first is owner.tail:
                self._leave(owner)
            else:
                heapq.heappush(heap, (value, self._stamps[first.block_id], serial, owner))

    def remove(self, block: Any) -> None:
        """Take a given free block, as on a cache hit. Raises RuntimeError if it isn't in the queue."""
        before = block.prev_free_block
        after = block.next_free_block
        if before is None or after is None:
            raise RuntimeError(f"remove() called on a block that isn't free: {block}")
        before.next_free_block = after
        after.prev_free_block = before
        block.prev_free_block = block.next_free_block = None
        self.num_free_blocks -= 1

    def drain(self) -> list[Any]:
        """All free blocks in eviction order; the queue is empty then and its owners may join another."""
        blocks = self.get_all_free_blocks()
        for owner in self._entered():
            owner.entry = 0
            owner.clear()
        self._heap.clear()
        self._lists = 0
        self._empty.clear()
        self._doubles.clear()
        self.num_free_blocks = 0
        return blocks

    # --- corrections while a block is free ----------------------------------------------------------

    def emptied(self, block: Any) -> None:
        """A free block lost its content: out of a valued list, to the blocks that hold nothing.

        In a list of value 0 it stays where it is, as in the stock queue.
        """
        if self._list_of(block).value > 0.0:
            self.remove(block)
            self.prepend_n((block,))

    def reassigned(self, block: Any) -> None:
        """A free block's owner or its being a duplicate changed: into its new list, at its own age."""
        owner = self._owner_of[block.block_id]
        if owner is None or not owner.listed:
            owner = self._common
        if block.block_id in self.duplicates:
            owner = self._doubles
        if self._list_of(block) is owner:
            return
        stamp = self._stamps[block.block_id]
        self.remove(block)
        after: Any = owner.tail
        while after.prev_free_block is not owner.head and (self._stamps[after.prev_free_block.block_id] > stamp):
            after = after.prev_free_block
        before = after.prev_free_block
        block.prev_free_block, block.next_free_block = before, after
        before.next_free_block = after.prev_free_block = block
        self.num_free_blocks += 1
        if owner is not self._doubles:
            self._reenter(owner)
            if self._lists > self._max_lists:
                self._fold()

    def _list_of(self, block: Any) -> Owner:
        while not isinstance(block, ListEnd):
            block = block.next_free_block
        return block.owner

    # --- order of owners ----------------------------------------------------------------------------

    def _enter(self, owner: Owner, stamp: int) -> None:
        """Put an owner in the order; an older entry of it becomes void."""
        self._lists += not owner.entry
        self._serial += 1
        owner.entry = self._serial
        owner.entered_value = owner.value
        heapq.heappush(self._heap, (owner.value, stamp, self._serial, owner))
        if len(self._heap) > 4 * self._lists + 64:
            self._heap = [entry for entry in self._heap if entry[3].entry == entry[2]]
            heapq.heapify(self._heap)

    def _reenter(self, owner: Owner) -> None:
        """As `_enter`, by the list's present head; an empty list leaves the order."""
        first = owner.head.next_free_block
        if first is not owner.tail:
            self._enter(owner, self._stamps[first.block_id])
        elif owner.entry:
            self._leave(owner)

    def _leave(self, owner: Owner) -> None:
        owner.entry = 0
        self._lists -= 1

    def _apply_changes(self) -> None:
        """An owner that fell needs an entry further up; one that rose is put right when it surfaces."""
        for owner in self._changed():
            if owner.entry and owner.value < owner.entered_value:
                self._reenter(owner)

    def _entered(self) -> list[Owner]:
        """Owners in the order, unsorted; some may have no block left."""
        return [owner for _, _, serial, owner in self._heap if owner.entry == serial]

    def _fold(self) -> None:
        """Merge the lists of worthless owners, and then of the least valued, into the common list.

        Leaves at most three quarters of `max_lists`, so that a fold is paid by many appends.
        """
        self._apply_changes()
        owners = [owner for owner in self._entered() if owner is not self._common]
        owners.sort(key=lambda owner: (owner.listed, owner.value))
        keep = self._max_lists * 3 // 4
        folded = [self._common]
        while owners and (len(owners) > keep or owners[0].value <= 0.0 or not owners[0].listed):
            folded.append(owners.pop(0))
        blocks = [block for owner in folded for block in owner]
        blocks.sort(key=lambda block: self._stamps[block.block_id])
        for owner in folded:
            owner.clear()
            if owner.entry:
                self._leave(owner)
        last: Any = self._common.head
        for block in blocks:
            block.prev_free_block = last
            last.next_free_block = block
            last = block
        self._close(self._common, last)
        self._reenter(self._common)
        self.num_folds += 1

    # --- looking ------------------------------------------------------------------------------------

    def get_all_free_blocks(self) -> list[Any]:
        """All free blocks in eviction order."""
        return list(self._in_order())

    def iter_blocks_after(self, cursor: Any | None) -> Iterator[Any]:
        """Free blocks in eviction order after the cursor (None: all).

        A block that was freed, or that moved, in front of the cursor since the walk passed is given
        too: in this order a new block needn't be at the end, and a cursor must not hide it for good. A
        cursor that is no longer free ends the walk at once, as in the stock queue.
        """
        if cursor is not None and cursor.next_free_block is None:
            return
        passed = cursor is None
        stamps = self._stamps
        walked = self._walked
        for block in self._in_order():
            if block is cursor:
                passed = True
            elif passed or walked[block.block_id] != stamps[block.block_id]:
                yield block
                walked[block.block_id] = stamps[block.block_id]

    def _in_order(self) -> Iterator[Any]:
        self._apply_changes()
        yield from self._empty
        yield from self._doubles
        by_value: dict[float, list[Owner]] = {}
        for owner in self._entered():
            by_value.setdefault(owner.value, []).append(owner)
        for value in sorted(by_value):
            yield from heapq.merge(*by_value[value], key=lambda block: self._stamps[block.block_id])

    def lowest(self, n: int) -> list[tuple[Owner | None, int]]:
        """(owner, blocks) of the n blocks that would leave next; None stands for those worth nothing."""
        left = n
        picked: list[tuple[Owner | None, int]] = []
        for worthless in (self._empty, self._doubles, self._common):
            count = sum(1 for _ in islice(worthless, left))
            left -= count
            if count:
                picked.append((None, count))
        self._apply_changes()
        for owner in sorted(self._entered(), key=lambda owner: owner.value):
            if owner is self._common or not left:
                continue
            count = sum(1 for _ in islice(owner, left))
            left -= count
            if count:
                picked.append((owner, count))
        return picked

    def check_invariants(self) -> None:
        """Raises AssertionError unless lists, counts and order agree; O(free blocks), for tests."""
        seen: set[int] = set()
        lists = [self._empty, self._doubles, *self._entered()]
        for owner in lists:
            before: Any = owner.head
            for block in owner:
                assert block.prev_free_block is before and block.block_id not in seen
                seen.add(block.block_id)
                before = block
            assert owner.tail.prev_free_block is before
        assert len(seen) == self.num_free_blocks, (len(seen), self.num_free_blocks)
        assert len(lists) - 2 == self._lists <= self._max_lists + 1
