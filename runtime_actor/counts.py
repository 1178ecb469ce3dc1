"""Counts of a window of session steps. Adding an entry and taking it away leave no trace.

Slots are small integers: agents 0..max_agents-1 (the last is OTHER), then START and END. A stage is (slot,
visits): the how-manieth request of that agent in its session, capped at MAX_VISITS. A team that goes
through its agents twice is ambiguous in its agents and plain in its stages.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

Stage = tuple[int, int]
Context = tuple[int, int, int]
"""(previous slot, current slot, visits of the current one)."""

MAX_VISITS = 8
ANY_VISITS = 0
MAX_GAP_MS = 86_400_000
"""A longer silence counts as one day, so that one forgotten session can't move a mean for ever."""

GAP_BINS = 44
SHORTEST_GAP_S = 0.02
"""Bin 0 is below it; then two bins an octave, the last from about 11 hours up."""


@dataclass(frozen=True, slots=True)
class WindowEntry:
    """One counted step. `gap_ms` is whole milliseconds so that sums come back exactly; None: unknown."""

    before: int
    source: int
    target: int
    gap_ms: int | None
    source_visits: int = ANY_VISITS
    target_visits: int = ANY_VISITS

    @property
    def slots(self) -> tuple[int, int, int]:
        return self.before, self.source, self.target

    def renamed(self, slot: int, name: int) -> WindowEntry:
        """The same step with `name` in place of `slot`."""
        before, source, target = (name if old == slot else old for old in self.slots)
        return replace(self, before=before, source=source, target=target)


def gap_bin(gap_ms: int) -> int:
    """Bin of a gap; 44 bins cover 20 ms to a day."""
    if gap_ms < 1000.0 * SHORTEST_GAP_S:
        return 0
    return min(1 + int(2.0 * math.log2(gap_ms / (1000.0 * SHORTEST_GAP_S))), GAP_BINS - 1)


def gap_bin_centres_s() -> np.ndarray:
    """Geometric middle of each bin, seconds [GAP_BINS]."""
    exponents = (np.arange(1, GAP_BINS) - 0.5) / 2.0
    return np.concatenate([[SHORTEST_GAP_S / 2.0], SHORTEST_GAP_S * 2.0**exponents])


class StepCounts:
    """first [slots+2, slots+2]: (source, target), START and END included, repeats on the diagonal.

    stages: stage -> next stage -> count; START is (start, 0), END (end, 0). contexts: (previous, current,
    visits) -> next stage -> count. gaps, ends [slots+2, GAP_BINS]: silences after a request of an agent
    that ended with the next request, or with the session's end.
    """

    def __init__(self, start: int, end: int) -> None:
        size = end + 1
        self.start = start
        self.end = end
        self.first = np.zeros((size, size), dtype=np.int64)
        self.stages: dict[Stage, Counter[Stage]] = {}
        self.contexts: dict[Context, Counter[Stage]] = {}
        self.gap_ms_sum = np.zeros(size, dtype=np.int64)
        self.gap_count = np.zeros(size, dtype=np.int64)
        self.gaps = np.zeros((size, GAP_BINS), dtype=np.int64)
        self.ends = np.zeros((size, GAP_BINS), dtype=np.int64)

    def add(self, entry: WindowEntry, sign: int) -> None:
        source, target = entry.source, entry.target
        self.first[source, target] += sign
        following = (target, entry.target_visits)
        _change(self.stages, (source, entry.source_visits), following, sign)
        if source != self.start:
            context = (entry.before, source, entry.source_visits)
            _change(self.contexts, context, following, sign)
        if entry.gap_ms is None:
            return
        if target == self.end:
            self.ends[source, gap_bin(entry.gap_ms)] += sign
        else:
            self.gaps[source, gap_bin(entry.gap_ms)] += sign
            self.gap_ms_sum[source] += sign * entry.gap_ms
            self.gap_count[source] += sign

    def differences(self, entries: Iterable[WindowEntry]) -> list[str]:
        """Names of what isn't the count of exactly these entries."""
        fresh = StepCounts(self.start, self.end)
        for entry in entries:
            fresh.add(entry, 1)
        arrays = ("first", "gap_ms_sum", "gap_count", "gaps", "ends")
        broken = [name for name in arrays if not (getattr(self, name) == getattr(fresh, name)).all()]
        return broken + [name for name in ("stages", "contexts") if getattr(self, name) != getattr(fresh, name)]


class Window:
    """The newest `size` entries and their counts."""

    def __init__(self, size: int, start: int, end: int) -> None:
        self.size = size
        self.entries: deque[WindowEntry] = deque()
        self.counts = StepCounts(start, end)

    def push(self, entry: WindowEntry) -> WindowEntry | None:
        """Count an entry; returns the one that left the window for it."""
        self.entries.append(entry)
        self.counts.add(entry, 1)
        if len(self.entries) <= self.size:
            return None
        oldest = self.entries.popleft()
        self.counts.add(oldest, -1)
        return oldest

    def rename(self, slot: int, name: int) -> None:
        """Entries that name `slot` name `name` from now on. Linear in the window."""
        entries = list(self.entries)
        for i, entry in enumerate(entries):
            if slot in entry.slots:
                self.counts.add(entry, -1)
                entries[i] = entry.renamed(slot, name)
                self.counts.add(entries[i], 1)
        self.entries = deque(entries)


def _change(rows: dict, key: object, column: Stage, sign: int) -> None:
    row = rows.get(key)
    if row is None:
        row = rows[key] = Counter()
    row[column] += sign
    if row[column] == 0:
        del row[column]
        if not row:
            del rows[key]
