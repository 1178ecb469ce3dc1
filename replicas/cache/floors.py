"""What each tenant keeps of a cache that several contend for: a part of an equal share, whatever others do.

A tenant that holds no more than its floor is protected: its blocks leave after those of all that aren't. Above it,
value alone decides, as without floors. With one tenant there are none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from replicas.cache.block_owner import BlockOwner
from replicas.cache.residency import COUNT_INTERVAL_S
from replicas.cache.valuation import Valuation

SLACK = 9 / 8
"""Who is protected stays so up to this much above its floor, so that one who is at it doesn't go to and fro."""


class TenantFloors:
    """Counts a cache's blocks by tenant and says who is protected."""

    def __init__(self, valuation: Valuation, owner_of: Sequence[BlockOwner | None], clock: Callable[[], float]) -> None:
        self._valuation = valuation
        self._owner_of = owner_of
        self._clock = clock
        self._looked_s = float("-inf")

    def look(self) -> None:
        """At a request's arrival; counts anew unless that was done a moment ago."""
        settings = self._valuation.settings
        if settings.tenant_floor <= 0.0 or settings.policy not in ("reach", "anchors"):
            self._valuation.protect(frozenset())
            return
        now_s = self._clock()
        blocks = len(self._owner_of)
        if 0.0 <= now_s - self._looked_s < COUNT_INTERVAL_S * blocks:
            return
        self._looked_s = now_s
        held = blocks_of_tenants(self._owner_of)
        self._valuation.protect(within_floor(held, settings.tenant_floor * blocks, self._valuation.protected))


def blocks_of_tenants(owner_of: Iterable[BlockOwner | None]) -> Counter[str]:
    """Blocks by tenant; one that several share counts for each."""
    held: Counter[str] = Counter()
    for owner, blocks in Counter(owner_of).items():
        if owner is not None:
            for name in {workload for workload, _ in owner.agents}:
                held[name] += blocks
    return held


def within_floor(held: Mapping[str, int], room: float, before: frozenset[str]) -> frozenset[str]:
    """Tenants that hold no more than an equal part of `room` blocks; none where there is nobody to protect from."""
    if len(held) < 2:
        return frozenset()
    each = room / len(held)
    return frozenset(name for name, blocks in held.items() if blocks <= each * (SLACK if name in before else 1.0))
