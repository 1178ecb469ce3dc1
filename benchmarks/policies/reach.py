"""The runtime's own policy, and other systems' orders, from the very code that an engine and the actor run.

Transitions and tables as in the actor, owners and values as in an engine, and its free queue; in
between only what vLLM's block pool does. Tables are new after every fourth request, about as often as
the actor sends them to a busy engine.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.cache import Block, FreeQueue
from benchmarks.trace_format import Request
from replicas.cache.block_owner import BlockOwner
from replicas.cache.claim import Claim
from replicas.cache.ownership import OwnerDirectory
from replicas.cache.recency_guard import RecencyGuard
from replicas.cache.settings import ValueSettings
from replicas.free_queue import OwnerFreeQueue
from runtime_actor.messages import OwnerTag
from runtime_actor.reach import ReachSettings, compute_tables
from runtime_actor.tables import ReachTables
from runtime_actor.transitions import TransitionModel

WORKLOAD = "replay"
TABLES_EVERY = 4


class ReachPolicy:
    """`values` may name another order than reach; `trim` may take something out of the tables, for its worth.

    guarded: goes back to stock order where that pays more.
    """

    def __init__(
        self,
        reach: ReachSettings | None = None,
        values: ValueSettings | None = None,
        trim: Callable[[ReachTables], ReachTables] | None = None,
        guarded: bool = True,
    ) -> None:
        self._guarded = guarded
        self._trim = trim
        self._now_s = 0.0
        self._reach = reach or ReachSettings()
        self._models: defaultdict[str, TransitionModel] = defaultdict(TransitionModel)
        self._values = values
        self._directory: OwnerDirectory
        self._owner_of: list[BlockOwner | None] = []
        self._duplicates: set[int] = set()
        self._served: dict[str, Block] = {}
        self._claim: Claim | None = None
        self._hits = 0
        self._queue: OwnerFreeQueue

    def start(self, blocks: Sequence[Block]) -> FreeQueue:
        self._directory = OwnerDirectory(
            self._values,
            hash_block_tokens=1,
            clock=lambda: self._now_s,
            cache_blocks=len(blocks),
            guard=RecencyGuard(len(blocks)) if self._guarded else None,
        )
        self._owner_of = [None] * len(blocks)
        self._queue = OwnerFreeQueue(blocks, self._owner_of, self._directory.changed)
        self._queue.duplicates = self._duplicates
        return self._queue

    def workload_of(self, request: Request) -> str:
        """Whose transitions it belongs to."""
        return WORKLOAD

    def arrive(self, request: Request, index: int, now_s: float) -> None:
        self._now_s = now_s
        workload = self.workload_of(request)
        self._models[workload].observe(request.session, request.agent, now_s)
        if index % TABLES_EVERY == 0:
            for name, model in self._models.items():
                tables = compute_tables(model, self._reach, name)
                self._directory.set_tables(self._trim(tables) if self._trim else tables)
        digests = [_digest(content) for content in request.blocks]
        tag = OwnerTag(workload, request.agent, request.session)
        self._claim = self._directory.arrive(str(index), tag, digests)
        self._hits = len(request.blocks)
        for position in reversed(self._claim.moved):
            block = self._served.get(request.blocks[position])
            if block is not None and self._set_owner(block, position) and block.next_free_block:
                self._queue.reassigned(block)

    def gained(self, block: Block, request: Request, position: int, duplicate: bool) -> None:
        self._hits = min(self._hits, position)
        self._set_owner(block, position)
        if duplicate:
            self._duplicates.add(block.block_id)
        else:
            self._served[request.blocks[position]] = block

    def lost(self, block: Block, successor: Block | None) -> None:
        self._owner_of[block.block_id] = None
        self._duplicates.discard(block.block_id)
        content = block.content or ""
        if successor is not None:
            self._served[content] = successor
            if successor.block_id in self._duplicates:
                self._duplicates.discard(successor.block_id)
                if successor.next_free_block is not None:
                    self._queue.reassigned(successor)
        elif self._served.get(content) is block:
            del self._served[content]

    def finish(self, request: Request, now_s: float) -> None:
        for position, content in enumerate(request.blocks[: self._hits]):
            self._set_owner(self._served[content], position)
        assert self._claim is not None
        self._directory.started(self._claim.request_id)
        self._directory.counted(self._claim.request_id, self._hits, len(request.blocks) - 1)
        self._directory.finished(self._claim.request_id)
        if request.final:
            workload = self.workload_of(request)
            self._models[workload].end(request.session, now_s)
            self._directory.end(workload, request.session)

    def _set_owner(self, block: Block, position: int) -> bool:
        """Whether the block got another owner than it had."""
        assert self._claim is not None
        _, _, owner = self._claim.spans(position, position + 1, 1)[0]
        former = self._owner_of[block.block_id]
        self._owner_of[block.block_id] = owner
        return former is not owner


def without_contexts(tables: ReachTables) -> ReachTables:
    """Order 1 alone."""
    return replace(
        tables,
        contexts=tables.contexts[:0],
        context_values=tables.context_values[:0],
        context_ends=tables.context_ends[:0],
    )


def without_waits(tables: ReachTables) -> ReachTables:
    """Silence says nothing."""
    return replace(tables, waits=None)


def _digest(content: str) -> bytes:
    return hashlib.blake2b(content.encode(), digest_size=8).digest()
