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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import Any

from replicas.cache.block_ages import BlockAges
from replicas.cache.owner import Owner, nothing_changed
from replicas.cache.owner_order import OwnerOrder

MAX_LISTS = 2048
"""Owners with a list of their own; beyond it the least valued ones share the common list."""

_block_id = attrgetter("block_id")


class OwnerFreeQueue:
    """Free blocks in eviction order.

    Args:
        blocks: the free blocks, in the order they are to leave if all values are equal.
        owner_of: owner by block id (None: nobody's); read when a block is freed, kept by the caller.
        changed: returns the owners whose `value` changed since its last call; called when a victim has
            to be chosen among owners.
        gone: where blocks are counted that leave an owner's list by `popleft_n`, by `Owner.reason`.
        max_lists: cap on owners with a list of their own.
    """

    def __init__(
        self,
        blocks: Sequence[Any],
        owner_of: Sequence[Owner | None],
        changed: Callable[[], Iterable[Owner]] = nothing_changed,
        gone: list[int] | Counter[int] | None = None,
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
        self._gone = Counter() if gone is None else gone
        self._max_lists = max_lists
        self._empty = Owner()
        self._doubles = Owner()
        self._worthless = (self._empty, self._doubles)
        self._common = Owner()
        self._order = OwnerOrder()
        self._ages = BlockAges(len(owner_of))
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
        if self.duplicates and not self.duplicates.isdisjoint(map(_block_id, blocks)):
            for is_duplicate, run in groupby(blocks, lambda block: block.block_id in self.duplicates):
                (self._append_duplicates if is_duplicate else self._append_owned)(list(run))
        else:
            self._append_owned(blocks)
        if len(self._order) > self._max_lists:
            self._fold()

    def _append_owned(self, blocks: Sequence[Any]) -> None:
        """Each run of blocks of one list has a stamp, with room behind it for as many as there are blocks."""
        ages, owner_of = self._ages, self._owner_of
        stamps, stamp, room = ages.stamps, ages.unused, len(blocks)
        given: Any = self  # nobody's owner
        last: Any = None
        owner: Owner = self._common
        for block in blocks:
            block_id = block.block_id
            if owner_of[block_id] is given:
                block.prev_free_block = last
                last.next_free_block = block
            else:
                if last is not None:
                    last.next_free_block = owner
                    owner.prev_free_block = last
                given = owner_of[block_id]
                owner = given if given is not None and given.listed else self._common
                block.prev_free_block = owner.prev_free_block
                owner.prev_free_block.next_free_block = block
                stamp += room
                if owner.entry is None:
                    self._order.enter(owner, stamp)
            last = block
            stamps[block_id] = stamp
        if last is not None:
            last.next_free_block = owner
            owner.prev_free_block = last
        ages.unused = stamp + room
        self.num_free_blocks += room

    def _append_duplicates(self, blocks: Sequence[Any]) -> None:
        self._doubles.extend(blocks)
        ages = self._ages
        for block in blocks:
            ages.stamps[block.block_id] = ages.unused
        ages.unused += len(blocks)
        self.num_free_blocks += len(blocks)

    def prepend_n(self, blocks: Sequence[Any]) -> None:
        """Free blocks that hold nothing; they leave before all others, the first one first."""
        if not blocks:
            return
        following = self._empty.next_free_block
        last: Any = self._empty
        stamps, walked = self._ages.stamps, self._ages.walked
        for block in blocks:
            block.prev_free_block = last
            last.next_free_block = block
            last = block
            # What holds nothing is nothing to a walk.
            walked[block.block_id] = stamps[block.block_id]
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
        for worthless in self._worthless:
            if worthless.next_free_block is not worthless:
                n -= worthless.take(n, taken)
        if n:
            self._take_from_owners(n, taken)
        return taken

    def _take_from_owners(self, n: int, taken: list[Any]) -> None:
        """Take from the lowest-valued lists; lists of equal value are merged by time of freeing.

        An entry's stamp is that of the list's first block or an earlier one; only where values are
        equal does it have to be right.
        """
        self._apply_changes()
        entries, stamps = self._order.entries, self._ages.stamps
        while n:
            value, _, _, owner = entries[-1]
            first = owner.next_free_block
            if first is owner:
                entries.pop()
                owner.entry = None
                continue
            if owner.value == -value:
                if len(entries) == 1 or entries[-2][0] != value:
                    count = owner.take(n, taken)
                    n -= count
                    self._gone[owner.reason] += count
                    continue
                limit = -entries[-2][1]
                # Equal: the rival's entry is of a block that has since moved to this owner.
                if stamps[first.block_id] <= limit:
                    count = owner.take_older(n, taken, stamps, limit)
                    n -= count
                    self._gone[owner.reason] += count
                    continue
            entries.pop()
            self._order.enter(owner, stamps[first.block_id])

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
        for owner in self._order:
            owner.clear()
        self._order.clear()
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
        ages = self._ages
        ages.set_apart(block)
        stamp = ages.of(block)
        self.remove(block)
        after: Any = owner
        while after.prev_free_block is not owner and ages.of(after.prev_free_block) > stamp:
            after = after.prev_free_block
        before = after.prev_free_block
        block.prev_free_block, block.next_free_block = before, after
        before.next_free_block = after.prev_free_block = block
        self.num_free_blocks += 1
        if owner is not self._doubles:
            self._reenter(owner)
            if len(self._order) > self._max_lists:
                self._fold()

    def _list_of(self, block: Any) -> Owner:
        while not isinstance(block, Owner):
            block = block.next_free_block
        return block

    # --- order of owners ----------------------------------------------------------------------------

    def _reenter(self, owner: Owner) -> None:
        """Put an owner where its value and its first block belong; an empty list leaves the order."""
        self._order.leave(owner)
        first = owner.next_free_block
        if first is not owner:
            self._order.enter(owner, self._ages.of(first))

    def _apply_changes(self) -> None:
        """An owner that fell needs an entry further up; one that rose is put right when it surfaces."""
        for owner in self._changed():
            if owner.entry is not None and owner.value < -owner.entry[0]:
                self._reenter(owner)

    def _fold(self) -> None:
        """Merge the lists of worthless owners, and then of the least valued, into the common list.

        Leaves at most three quarters of `max_lists`, so that a fold is paid by many appends.
        """
        self._apply_changes()
        owners = [owner for owner in self._order if owner is not self._common]
        owners.sort(key=lambda owner: (owner.listed, owner.value))
        keep = self._max_lists * 3 // 4
        folded = [self._common]
        while owners and (len(owners) > keep or owners[0].value <= 0.0 or not owners[0].listed):
            folded.append(owners.pop(0))
        blocks = [block for owner in folded for block in owner]
        blocks.sort(key=self._ages.of)
        for owner in folded:
            owner.clear()
            self._order.leave(owner)
        self._common.extend(blocks)
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
        is_behind = cursor is None
        for block in self._in_order():
            if block is cursor:
                is_behind = True
            elif is_behind or not self._ages.is_passed(block):
                yield block
                self._ages.passed(block)

    def _in_order(self) -> Iterator[Any]:
        self._apply_changes()
        yield from self._empty
        yield from self._doubles
        by_value: dict[float, list[Owner]] = {}
        for owner in self._order:
            by_value.setdefault(owner.value, []).append(owner)
        for value in sorted(by_value):
            yield from heapq.merge(*by_value[value], key=self._ages.of)

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
        for owner in sorted(self._order, key=lambda owner: owner.value):
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
        lists = [self._empty, self._doubles, *self._order]
        for owner in lists:
            before: Any = owner
            for block in owner:
                assert block.prev_free_block is before and block.block_id not in seen
                seen.add(block.block_id)
                before = block
            assert owner.prev_free_block is before
        assert len(seen) == self.num_free_blocks, (len(seen), self.num_free_blocks)
        assert sorted(self._order.entries) == self._order.entries
        assert all(entry[3].entry is entry for entry in self._order.entries)
        assert len(self._order) <= self._max_lists + 1
