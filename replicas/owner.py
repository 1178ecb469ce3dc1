"""An owner of cached blocks, with the linked list of those that are free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol


class FreeBlock(Protocol):
    """What the queue needs of a block; vLLM's KVCacheBlock has it."""

    block_id: int
    prev_free_block: Any
    next_free_block: Any


class ListEnd:
    """Sentinel at either end of a list; linked like a block, never handed out."""

    __slots__ = ("block_id", "next_free_block", "owner", "prev_free_block")

    def __init__(self, owner: Owner) -> None:
        self.block_id = -1
        self.owner = owner
        self.prev_free_block: Any = None
        self.next_free_block: Any = None


class Owner:
    """Whom cached blocks belong to, with the list of those that are free.

    `value` may be set at any time by whoever values owners; the queue learns of it through its
    `changed` callback. An owner that isn't `listed` is worthless for good: what it frees from then on
    goes to the common list.
    """

    __slots__ = ("entered_value", "entry", "head", "listed", "tail", "value")

    def __init__(self, value: float = 0.0, listed: bool = True) -> None:
        self.value = value
        self.listed = listed
        self.entry = 0
        self.entered_value = value
        self.head = ListEnd(self)
        self.tail = ListEnd(self)
        self.clear()

    def clear(self) -> None:
        self.head.next_free_block = self.tail
        self.tail.prev_free_block = self.head

    def take(self, n: int, taken: list[Any]) -> None:
        """Move blocks from the front to `taken` until it has n or the list is empty."""
        block = self.head.next_free_block
        tail = self.tail
        for _ in range(n - len(taken)):
            if block is tail:
                break
            taken.append(block)
            following = block.next_free_block
            block.prev_free_block = block.next_free_block = None
            block = following
        self.head.next_free_block = block
        block.prev_free_block = self.head

    def take_older(self, n: int, taken: list[Any], stamps: Sequence[int], before: int) -> None:
        """As `take`, but only blocks whose stamp is below `before`; always at least one."""
        block = self.head.next_free_block
        while len(taken) < n and block is not self.tail:
            taken.append(block)
            following = block.next_free_block
            block.prev_free_block = block.next_free_block = None
            block = following
            if block is not self.tail and stamps[block.block_id] >= before:
                break
        self.head.next_free_block = block
        block.prev_free_block = self.head

    def __iter__(self) -> Iterator[Any]:
        block = self.head.next_free_block
        while block is not None and block is not self.tail:
            yield block
            block = block.next_free_block


def nothing_changed() -> Iterable[Owner]:
    return ()


def untold(owner: Owner, blocks: int) -> None:
    pass
