"""Eviction orders of other systems, for comparison: CacheSage and CacheScout as published, Continuum's pins.

Sources: arXiv 2605.27744 (window 4096, no self-transitions, tau 0.01, 8 hops, p = 1 - min(hops, 8) / 8,
additive recency exp(-0.1 age)); arXiv 2608.14624 ((p + d)(exp(-l age) + d), d = 0.1, l = 0.1); Continuum: after a
request its session's blocks are pinned for a learned time, here the 90th percentile of the agent's last 100
pauses, and pins never hold more than half of the cache, the oldest are taken off first.

A block follows the request that used it last. Transitions are taken from the stream of all requests of a
workload, as there; age is in requests. Eviction alone: their prefetches aren't here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

WINDOW = 4096
TAU = 0.01
MAX_HOPS = 8
DECAY = 0.1
FLOOR = 0.1

PAUSES = 100
QUANTILE = 0.9

MAX_WORKLOADS = 64
MAX_AGENTS = 1024
MAX_SESSIONS = 4096
"""Of what is remembered; beyond it the least recent one is forgotten."""

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """One request's use of the cache. `index` counts requests; `blocks` names what it needs, head first."""

    workload: str
    agent: str
    session: str
    index: int
    blocks: tuple[Hashable, ...]


class PeerOrder(ABC):
    """Values of uses; the blocks of the use with the lowest value go first."""

    def __init__(self) -> None:
        self.index = 0

    def arrived(self, workload: str, agent: str, session: str, blocks: Sequence[Hashable], now_s: float) -> Use:
        """A request has come; from now on what it uses is valued as this."""
        self.index += 1
        use = Use(workload, agent, session, self.index, tuple(blocks))
        self._arrived(use, now_s)
        return use

    @abstractmethod
    def _arrived(self, use: Use, now_s: float) -> None: ...

    @abstractmethod
    def finished(self, use: Use, now_s: float) -> None:
        """The request is answered."""

    @abstractmethod
    def ended(self, workload: str, session: str) -> None:
        """The session has ended."""

    @abstractmethod
    def next_change_s(self) -> float:
        """When values change without any of these calls; infinity: never."""

    @abstractmethod
    def settle(self, now_s: float) -> None:
        """Bring values up to date."""

    @abstractmethod
    def value(self, use: Use) -> float:
        """Within [0, 2], as of the last `settle`."""


class _Steps:
    """Transitions of one workload, and hops from the agent of its newest request."""

    def __init__(self) -> None:
        self._window: deque[tuple[str, str]] = deque()
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._last = ""
        self.reach: dict[str, float] = {}

    def seen(self, agent: str) -> None:
        if self._last and self._last != agent:
            self._window.append((self._last, agent))
            self._counts[self._last][agent] += 1
            if len(self._window) > WINDOW:
                self._forget(*self._window.popleft())
        self._last = agent
        self.reach = self._by_hops(agent)

    def _forget(self, source: str, target: str) -> None:
        """Nothing stays of what the window has no more of."""
        row = self._counts[source]
        row[target] -= 1
        if not row[target]:
            del row[target]
        if not row:
            del self._counts[source]

    def _by_hops(self, agent: str) -> dict[str, float]:
        hops = {agent: 0}
        frontier = [agent]
        while frontier:
            following = []
            for source in frontier:
                row = self._counts.get(source) or Counter[str]()
                total = sum(row.values())
                for target, count in row.items():
                    if target not in hops and count / total >= TAU:
                        hops[target] = hops[source] + 1
                        following.append(target)
            frontier = following
        return {name: 1.0 - min(count, MAX_HOPS) / MAX_HOPS for name, count in hops.items()}


class HopOrder(PeerOrder):
    """p of the use's agent, by hops from the agent of the workload's newest request, and the use's recency."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: OrderedDict[str, _Steps] = OrderedDict()

    def _arrived(self, use: Use, now_s: float) -> None:
        if use.workload not in self._steps:
            _put(self._steps, use.workload, _Steps(), MAX_WORKLOADS)
        self._steps.move_to_end(use.workload)
        self._steps[use.workload].seen(use.agent)

    def finished(self, use: Use, now_s: float) -> None:
        pass

    def ended(self, workload: str, session: str) -> None:
        pass

    def next_change_s(self) -> float:
        return math.inf

    def settle(self, now_s: float) -> None:
        pass

    def value(self, use: Use) -> float:
        steps = self._steps.get(use.workload)
        reach = steps.reach.get(use.agent, 0.0) if steps is not None else 0.0
        return self.combine(reach, math.exp(-DECAY * (self.index - use.index)))

    @abstractmethod
    def combine(self, reach: float, recency: float) -> float:
        """The value from an agent's p and a use's recency, both within [0, 1]."""


class CacheSageOrder(HopOrder):
    def combine(self, reach: float, recency: float) -> float:
        return reach + recency


class CacheScoutOrder(HopOrder):
    def combine(self, reach: float, recency: float) -> float:
        return (reach + FLOOR) * (recency + FLOOR)


class PinOrder(PeerOrder):
    """1 for what is pinned, 0 for the rest. `limit_blocks`: at most so many blocks are pinned."""

    def __init__(self, limit_blocks: int) -> None:
        super().__init__()
        self._limit = limit_blocks
        self._pauses: OrderedDict[tuple[str, str], deque[float]] = OrderedDict()
        self._last: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()
        self._pins: OrderedDict[tuple[str, str], tuple[float, Use]] = OrderedDict()
        self._pinned: set[Use] = set()

    def _arrived(self, use: Use, now_s: float) -> None:
        key = (use.workload, use.session)
        if key in self._last:
            agent, last_s = self._last[key]
            pauses = self._pauses.get((use.workload, agent)) or deque(maxlen=PAUSES)
            pauses.append(now_s - last_s)
            _put(self._pauses, (use.workload, agent), pauses, MAX_AGENTS)
        _put(self._last, key, (use.agent, now_s), MAX_SESSIONS)
        self._pins.pop(key, None)

    def finished(self, use: Use, now_s: float) -> None:
        pauses = sorted(self._pauses.get((use.workload, use.agent), ()))
        if pauses and (use.workload, use.session) in self._last:
            ttl_s = pauses[int(QUANTILE * (len(pauses) - 1))]
            _put(self._pins, (use.workload, use.session), (now_s + ttl_s, use), MAX_SESSIONS)

    def ended(self, workload: str, session: str) -> None:
        self._last.pop((workload, session), None)
        self._pins.pop((workload, session), None)

    def next_change_s(self) -> float:
        return min((until_s for until_s, _ in self._pins.values()), default=math.inf)

    def settle(self, now_s: float) -> None:
        for key in [key for key, (until_s, _) in self._pins.items() if until_s <= now_s]:
            del self._pins[key]
        held = Counter(block for _, use in self._pins.values() for block in use.blocks)
        while len(held) > self._limit:
            _, (_, use) = self._pins.popitem(last=False)
            held.subtract(use.blocks)
            held = +held
        self._pinned = {use for _, use in self._pins.values()}

    def value(self, use: Use) -> float:
        return float(use in self._pinned)


def _put(items: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    items[key] = value
    items.move_to_end(key)
    if len(items) > most:
        items.popitem(last=False)


PEERS = ("cachesage", "cachescout", "ttl")


def peer_order(name: str, cache_blocks: int) -> PeerOrder:
    """Raises KeyError for a name that isn't one of PEERS."""
    if name == "ttl":
        return PinOrder(cache_blocks // 2)
    return {"cachesage": CacheSageOrder, "cachescout": CacheScoutOrder}[name]()
