"""Owners in the order in which they lose blocks."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from replicas.cache.owner import Owner


class OwnerOrder:
    """Owners by value; of equal values the one whose first block was freed first goes first.

    `entries` are (-value, -stamp, number, owner), ascending, so that the first to lose blocks is at the
    cheap end. A sorted list: a heap of a few hundred entries costs several times as much, since each of
    its steps looks at memory that is no longer in the processor's cache. An entry's value and stamp are
    those of when it was made; the list's first block may have become younger since, never older.
    """

    __slots__ = ("_number", "entries")

    def __init__(self) -> None:
        self.entries: list[tuple[float, int, int, Owner]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Owner]:
        """In no particular order; some may have no block left."""
        return (entry[3] for entry in self.entries)

    def enter(self, owner: Owner, stamp: int) -> None:
        """`stamp`: of the owner's first block. It must not have a place yet."""
        self._number += 1
        owner.entry = entry = (-owner.value, -stamp, self._number, owner)
        insort(self.entries, entry)

    def leave(self, owner: Owner) -> None:
        if owner.entry is not None:
            del self.entries[bisect_left(self.entries, owner.entry)]
            owner.entry = None

    def clear(self) -> None:
        for owner in self:
            owner.entry = None
        self.entries.clear()
