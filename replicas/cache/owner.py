"""An owner of cached blocks, with the linked list of those that are free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any


class Owner:
    """Whom cached blocks belong to, with the list of those that are free.

    The list is a ring that the owner itself closes: its `next_free_block` is the first block, its
    `prev_free_block` the last one, and both are the owner if there is none.

    `value` may be set at any time by whoever values owners; the queue learns of it through its
    `changed` callback. An owner that isn't `listed` is worthless for good: what it frees from then on
    goes to the common list. `reason` is what its blocks are counted as when they leave, `entry` its
    place in a queue's order.
    """

    __slots__ = ("entry", "listed", "next_free_block", "prev_free_block", "reason", "value")

    def __init__(self, value: float = 0.0, listed: bool = True) -> None:
        self.value = value
        self.listed = listed
        self.reason = 0
        self.entry: tuple[float, int, int, Owner] | None = None
        self.prev_free_block: Any = self
        self.next_free_block: Any = self

    def clear(self) -> None:
        self.prev_free_block = self.next_free_block = self

    def extend(self, blocks: Iterable[Any]) -> None:
        """Link blocks at the end."""
        last = self.prev_free_block
        for block in blocks:
            block.prev_free_block = last
            last.next_free_block = block
            last = block
        last.next_free_block = self
        self.prev_free_block = last

    def take(self, n: int, taken: list[Any]) -> int:
        """Move up to n blocks from the front to `taken`; how many there were."""
        before = len(taken)
        block = self.next_free_block
        for _ in range(n):
            if block is self:
                break
            taken.append(block)
            following = block.next_free_block
            block.prev_free_block = block.next_free_block = None
            block = following
        self.next_free_block = block
        block.prev_free_block = self
        return len(taken) - before

    def take_older(self, n: int, taken: list[Any], stamps: Sequence[int], limit: int) -> int:
        """As `take`, but only blocks whose stamp is below `limit`; always at least one."""
        before = len(taken)
        block = self.next_free_block
        stamp = stamps[block.block_id]
        for _ in range(n):
            taken.append(block)
            following = block.next_free_block
            block.prev_free_block = block.next_free_block = None
            block = following
            if block is self:
                break
            # Blocks freed together share the very object: their values needn't be looked at.
            if stamps[block.block_id] is not stamp:
                stamp = stamps[block.block_id]
                if stamp >= limit:
                    break
        self.next_free_block = block
        block.prev_free_block = self
        return len(taken) - before

    def __iter__(self) -> Iterator[Any]:
        block = self.next_free_block
        while block is not None and block is not self:
            yield block
            block = block.next_free_block


def nothing_changed() -> Iterable[Owner]:
    return ()
