"""A prefix cache of a fixed number of blocks, with vLLM's rules and an eviction policy of choice.

One request at a time: its cached head is taken out of the free queue, the rest gets the blocks that the
queue gives up, and afterwards all are freed, tail first. As in vLLM a block computed twice is held twice
and only the older copy serves hits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.trace_format import Request


@dataclass(slots=True, eq=False)
class Block:
    """`content` is the trace's block id, None while the block holds nothing."""

    block_id: int
    content: str | None = None
    ref_cnt: int = 0
    prev_free_block: Any = field(default=None, repr=False)
    next_free_block: Any = field(default=None, repr=False)


class FreeQueue(Protocol):
    """The part of vLLM's free queue that a replay calls."""

    @property
    def num_free_blocks(self) -> int: ...
    def popleft_n(self, n: int) -> list[Any]: ...
    def remove(self, block: Any) -> None: ...
    def append_n(self, blocks: Sequence[Any]) -> None: ...


class Policy(Protocol):
    """Decides which block goes. Called in this order for each request:

    arrive; then for each victim lost, for each new block gained; free_order; finish.
    """

    def start(self, blocks: Sequence[Block]) -> FreeQueue:
        """All blocks are free and hold nothing; the first goes first."""

    def arrive(self, request: Request, index: int, now_s: float) -> None: ...

    def gained(self, block: Block, request: Request, position: int, duplicate: bool) -> None:
        """`block` now holds request.blocks[position]; `duplicate`: an older copy is resident."""

    def lost(self, block: Block, successor: Block | None) -> None:
        """`block` is about to lose its content; `successor` is the copy that serves hits from now on."""

    def finish(self, request: Request, now_s: float) -> None:
        """The request is over; its blocks are freed next."""


class PrefixCache:
    """Plays requests against a policy."""

    def __init__(self, capacity: int, policy: Policy) -> None:
        self.capacity = capacity
        self._policy = policy
        self._queue = policy.start([Block(i) for i in range(capacity)])
        self._copies: dict[str, list[Block]] = {}

    def play(self, request: Request, index: int, now_s: float) -> int:
        """Returns the hit blocks: leading resident ones, the last block of the request left out."""
        self._policy.arrive(request, index, now_s)
        held = self._cached_head(request.blocks)
        hits = len(held)
        for block in held:
            self._queue.remove(block)
            block.ref_cnt = 1
        fresh = self._queue.popleft_n(len(request.blocks) - hits)
        self._drop(fresh)
        for position, block in enumerate(fresh, hits):
            self._fill(block, request, position)
        held.extend(fresh)
        self._policy.finish(request, now_s)
        for block in held:
            block.ref_cnt = 0
        held.reverse()
        self._queue.append_n(held)
        return hits

    def resident(self) -> Iterable[str]:
        return self._copies.keys()

    def _cached_head(self, blocks: Sequence[str]) -> list[Block]:
        head = []
        for content in blocks[:-1]:
            copies = self._copies.get(content)
            if copies is None:
                break
            head.append(copies[0])
        return head

    def _drop(self, victims: Iterable[Block]) -> None:
        for block in victims:
            block.ref_cnt = 1
            if block.content is None:
                continue
            copies = self._copies[block.content]
            serves = copies[0] is block
            copies.remove(block)
            if not copies:
                del self._copies[block.content]
            self._policy.lost(block, copies[0] if serves and copies else None)
            block.content = None

    def _fill(self, block: Block, request: Request, position: int) -> None:
        block.content = request.blocks[position]
        copies = self._copies.setdefault(block.content, [])
        copies.append(block)
        self._policy.gained(block, request, position, len(copies) > 1)
