"""When each free block was freed, and which of them a walk through the queue has passed since."""

from __future__ import annotations

from typing import Any

from replicas.cache.owner import Owner


class BlockAges:
    """A stamp for each block id, higher for what was freed later.

    Blocks that go to one list together share a stamp: their order in the list tells their age, and as many numbers
    behind it as there are of them are left free for `set_apart`. From `unused` on all numbers are. `walked` is the
    stamp that a block had when a walk passed it: freed again since, it is new to that walk.
    """

    __slots__ = ("stamps", "unused", "walked")

    def __init__(self, size: int) -> None:
        self.stamps = [0] * size
        self.unused = 0
        self.walked = [-1] * size

    def of(self, block: Any) -> int:
        return self.stamps[block.block_id]

    def is_passed(self, block: Any) -> bool:
        return self.walked[block.block_id] == self.stamps[block.block_id]

    def passed(self, block: Any) -> None:
        self.walked[block.block_id] = self.stamps[block.block_id]

    def set_apart(self, block: Any) -> None:
        """Give each block that shares this one's stamp, all in its list, one of its own, in their order."""
        stamps, walked = self.stamps, self.walked
        stamp = stamps[block.block_id]
        before = block.prev_free_block
        while not isinstance(before, Owner) and stamps[before.block_id] == stamp:
            block, before = before, before.prev_free_block
        own = stamp
        while not isinstance(block, Owner) and stamps[block.block_id] == stamp:
            if walked[block.block_id] == stamp:
                walked[block.block_id] = own
            stamps[block.block_id] = own
            own += 1
            block = block.next_free_block
