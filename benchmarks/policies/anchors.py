"""Anchors protected flat: every anchor block outlives every other block; LRU on either side."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.cache import Block, FreeQueue
from benchmarks.policies.base import PassivePolicy, ScoredQueue
from benchmarks.trace_format import Request


class AnchorsPolicy(PassivePolicy):
    def __init__(self) -> None:
        self._anchor_ids: set[int] = set()

    def start(self, blocks: Sequence[Block]) -> FreeQueue:
        return ScoredQueue(blocks, lambda block: float(block.block_id in self._anchor_ids))

    def gained(self, block: Block, request: Request, position: int, duplicate: bool) -> None:
        if position < request.anchor_blocks:
            self._anchor_ids.add(block.block_id)

    def lost(self, block: Block, successor: Block | None) -> None:
        self._anchor_ids.discard(block.block_id)
