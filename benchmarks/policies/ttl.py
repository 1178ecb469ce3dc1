"""Continuum's pins, clipped: after a request its session's blocks are pinned for a learned time.

The time is the 90th percentile of the agent's last 100 pauses. Pins never hold more than half of the
cache: the oldest are taken off first. Pinned blocks go last; on either side LRU.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Sequence

from benchmarks.cache import Block, FreeQueue
from benchmarks.policies.base import PassivePolicy, ScoredQueue
from benchmarks.trace_format import Request

PAUSES = 100
QUANTILE = 0.9


class TtlPolicy(PassivePolicy):
    def __init__(self) -> None:
        self._pauses: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=PAUSES))
        self._last: dict[str, tuple[str, float]] = {}
        self._pins: OrderedDict[str, tuple[float, tuple[str, ...]]] = OrderedDict()
        self._pinned: set[str] = set()
        self._limit = 0

    def start(self, blocks: Sequence[Block]) -> FreeQueue:
        self._limit = len(blocks) // 2
        return ScoredQueue(blocks, lambda block: float(block.content in self._pinned))

    def arrive(self, request: Request, index: int, now_s: float) -> None:
        if request.session in self._last:
            agent, last_s = self._last[request.session]
            self._pauses[agent].append(now_s - last_s)
        self._last[request.session] = (request.agent, now_s)
        self._pins.pop(request.session, None)
        for session in [s for s, (until_s, _) in self._pins.items() if until_s <= now_s]:
            del self._pins[session]
        self._clip()

    def finish(self, request: Request, now_s: float) -> None:
        pauses = sorted(self._pauses[request.agent])
        if request.final:
            self._last.pop(request.session, None)
        elif pauses:
            ttl_s = pauses[int(QUANTILE * (len(pauses) - 1))]
            self._pins[request.session] = (now_s + ttl_s, request.blocks)
        self._clip()

    def _clip(self) -> None:
        self._pinned = {content for _, blocks in self._pins.values() for content in blocks}
        while len(self._pinned) > self._limit:
            self._pins.popitem(last=False)
            self._pinned = {content for _, blocks in self._pins.values() for content in blocks}
