"""Whether a workload's requests still come: what new sessions of it are worth falls with its silence."""

from __future__ import annotations

PRIOR_GAP_S = 1.0
"""One pseudo-gap, for a workload of which one request was seen."""

MEMORY_GAPS = 64.0
"""Gaps after which what was seen counts half."""

EVIDENCE_GAPS = 16.0
"""At most so many gaps speak for the usual rate: silence as long as these halves it."""


class Arrivals:
    """Times between a workload's requests on this replica.

    Requests as a Poisson process whose rate has a gamma prior of c usual gaps of m seconds: after s seconds
    without one, the expected rate is c / (c m + s), and the share of the usual one c m / (c m + s). A workload
    that has stopped so leaves its place in the cache to those that go on, and one with long pauses keeps it longer.
    """

    __slots__ = ("_count", "_last_s", "_total_s")

    def __init__(self) -> None:
        self._count = 1.0
        self._total_s = PRIOR_GAP_S
        self._last_s: float | None = None

    def seen(self, now_s: float) -> None:
        if self._last_s is not None:
            if self._count >= MEMORY_GAPS:
                self._count *= 0.5
                self._total_s *= 0.5
            self._count += 1.0
            self._total_s += max(0.0, now_s - self._last_s)
        self._last_s = now_s

    def share(self, now_s: float) -> float:
        """Expected rate of requests relative to the usual one, in (0, 1]; 1.0 before the first request."""
        if self._last_s is None:
            return 1.0
        usual_s = min(self._count, EVIDENCE_GAPS) * self._total_s / self._count
        return usual_s / (usual_s + max(0.0, now_s - self._last_s))
