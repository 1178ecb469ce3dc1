"""Never worse than stock order: measures it beside the order by value, and goes back to it where that pays more."""

from __future__ import annotations

from collections.abc import Sequence

from replicas.cache.shadow import ShadowLru

MOST_BEHIND = 0.5
"""How far hits may fall behind stock order's before it is used, in blocks of the whole cache."""

MOST_CREDIT = 2.0
"""How much of what they were ahead before may be lost again first, in blocks of the whole cache."""

FIRST_REST = 1.0
"""For how many blocks of prompts stock order is then used, in blocks of the whole cache."""

LONGEST_REST = 512.0


class RecencyGuard:
    """Hits by value against those that stock order would have had, on the same requests.

    What stock order is ahead is summed, where being behind counts up to MOST_CREDIT: gains of long ago don't pay for
    losses now. At MOST_BEHIND stock order takes over for FIRST_REST, and for twice as long each time that the next
    trial fails as well; a trial that gets ahead by as much makes the rest short again. So of n blocks of prompts a
    workload that defeats every forecast costs about log2(n) * MOST_BEHIND caches of hits.

    Args:
        capacity: blocks of the cache.
    """

    def __init__(self, capacity: int) -> None:
        self.fallbacks = 0
        """How often stock order took over."""
        self._shadow = ShadowLru(capacity)
        self._behind = 0.0
        self._rest = FIRST_REST
        self._rest_left = 0.0

    @property
    def prefers_recency(self) -> bool:
        return self._rest_left > 0.0

    def started(self, hashes: Sequence[bytes], hits: int, most: int) -> bool:
        """A request begins with `hits` cached blocks of at most `most`; whether `prefers_recency` changed by it."""
        lost = min(self._shadow.use(hashes), most) - hits
        capacity = self._shadow.capacity
        if self.prefers_recency:
            self._rest_left -= most
            return not self.prefers_recency
        self._behind = max(self._behind + lost, -MOST_CREDIT * capacity)
        if self._behind <= -MOST_BEHIND * capacity:
            self._rest = FIRST_REST
        if self._behind <= MOST_BEHIND * capacity:
            return False
        self._behind = 0.0
        self.fallbacks += 1
        self._rest_left = self._rest * capacity
        self._rest = min(2.0 * self._rest, LONGEST_REST)
        return True

    def finished(self, hashes: Sequence[bytes]) -> None:
        """All of a request's blocks are freed."""
        self._shadow.keep(hashes)

    def emptied(self) -> None:
        """The cache was reset."""
        self._shadow.clear()
