"""What the comparison policies share: a policy that watches nothing, and a queue sorted by score."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from benchmarks.cache import Block, FreeQueue
from benchmarks.trace_format import Request


class ScoredQueue:
    """Free blocks; the lowest score goes first, equal scores by time of freeing.

    Scores are asked for when a victim is needed, for all free blocks: simple and right, not fast.
    """

    def __init__(self, blocks: Sequence[Block], score: Callable[[Block], float] | None = None) -> None:
        self._free: dict[int, Block] = {block.block_id: block for block in blocks}
        self._score = score

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    def popleft_n(self, n: int) -> list[Block]:
        if n > len(self._free):
            raise ValueError(f"{n} blocks asked for, {len(self._free)} are free")
        if self._score is None:
            order = self._free.values()
            taken = [block for block, _ in zip(order, range(n), strict=False)]
        else:
            score = self._score
            ranked = (
                (-1.0 if block.content is None else score(block), age, block)
                for age, block in enumerate(self._free.values())
            )
            taken = [block for _, _, block in heapq.nsmallest(n, ranked)]
        for block in taken:
            del self._free[block.block_id]
        return taken

    def remove(self, block: Block) -> None:
        del self._free[block.block_id]

    def append_n(self, blocks: Sequence[Block]) -> None:
        self._free.update((block.block_id, block) for block in blocks)


class PassivePolicy:
    """Watches nothing and scores nothing: least recently used goes first, as in stock vLLM."""

    def start(self, blocks: Sequence[Block]) -> FreeQueue:
        return ScoredQueue(blocks)

    def arrive(self, request: Request, index: int, now_s: float) -> None:
        pass

    def gained(self, block: Block, request: Request, position: int, duplicate: bool) -> None:
        pass

    def lost(self, block: Block, successor: Block | None) -> None:
        pass

    def finish(self, request: Request, now_s: float) -> None:
        pass
