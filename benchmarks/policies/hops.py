"""CacheSage and CacheScout as published: hops in a thresholded graph of agents, combined with recency.

Sources: arXiv 2605.27744 (window 4096, no self-transitions, tau 0.01, 8 hops, p = 1 - min(hops, 8) / 8,
additive recency exp(-0.1 age)) and arXiv 2608.14624 ((p + d)(exp(-l age) + d), d = 0.1, l = 0.1).
Transitions are taken from the stream of all requests, as there; age is in requests.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Sequence

from benchmarks.cache import Block, FreeQueue
from benchmarks.policies.base import PassivePolicy, ScoredQueue
from benchmarks.trace_format import Request

WINDOW = 4096
TAU = 0.01
MAX_HOPS = 8
DECAY = 0.1
FLOOR = 0.1


class HopPolicy(PassivePolicy, ABC):
    """Keeps p for each agent, by hops from the agent of the newest request."""

    def __init__(self) -> None:
        self._steps: deque[tuple[str, str]] = deque()
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._last_agent: str | None = None
        self._index = 0
        self._reach: dict[str, float] = {}
        self._agent: dict[int, str] = {}
        self._used: dict[int, int] = {}
        self._of_request: dict[str, Block] = {}

    def start(self, blocks: Sequence[Block]) -> FreeQueue:
        return ScoredQueue(blocks, self.score)

    def arrive(self, request: Request, index: int, now_s: float) -> None:
        self._index = index
        if self._last_agent is not None and self._last_agent != request.agent:
            self._count(self._last_agent, request.agent)
        self._last_agent = request.agent
        self._reach = self._by_hops(request.agent)

    def gained(self, block: Block, request: Request, position: int, duplicate: bool) -> None:
        if not duplicate:
            self._of_request[request.blocks[position]] = block

    def lost(self, block: Block, successor: Block | None) -> None:
        self._used.pop(block.block_id, None)
        if self._of_request.get(block.content or "") is block:
            del self._of_request[block.content or ""]
            if successor is not None:
                self._of_request[block.content or ""] = successor

    def finish(self, request: Request, now_s: float) -> None:
        for content in request.blocks:
            block = self._of_request[content]
            self._used[block.block_id] = self._index
            self._agent[block.block_id] = request.agent

    def score(self, block: Block) -> float:
        recency = math.exp(-DECAY * (self._index - self._used.get(block.block_id, 0)))
        return self.combine(self._reach.get(self._agent.get(block.block_id, ""), 0.0), recency)

    @abstractmethod
    def combine(self, reach: float, recency: float) -> float:
        """The order of a block from its agent's p and its own recency, both within [0, 1]."""

    def _count(self, source: str, target: str) -> None:
        self._steps.append((source, target))
        self._counts[source][target] += 1
        if len(self._steps) > WINDOW:
            old_source, old_target = self._steps.popleft()
            self._counts[old_source][old_target] -= 1

    def _by_hops(self, agent: str) -> dict[str, float]:
        hops = {agent: 0}
        frontier = [agent]
        while frontier:
            following = []
            for source in frontier:
                row = self._counts.get(source) or Counter[str]()
                total = sum(row.values())
                for target, count in row.items():
                    if target not in hops and count and count / total >= TAU:
                        hops[target] = hops[source] + 1
                        following.append(target)
            frontier = following
        return {name: 1.0 - min(count, MAX_HOPS) / MAX_HOPS for name, count in hops.items()}


class CacheSagePolicy(HopPolicy):
    def combine(self, reach: float, recency: float) -> float:
        return reach + recency


class CacheScoutPolicy(HopPolicy):
    def combine(self, reach: float, recency: float) -> float:
        return (reach + FLOOR) * (recency + FLOOR)
