"""The workloads that a replica knows: those whose sessions it serves, and others whose tables came."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from replicas.cache.owner_values import WorkloadValues


class Workloads:
    """At most `most`; the least recently used goes first, but none that has live sessions before one that has none.

    Tables of all tenants come to every replica, and of those of others some can be done without: a tenant that comes
    has its tables again with the next change, which its own request is.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._workloads: OrderedDict[str, WorkloadValues] = OrderedDict()

    def __len__(self) -> int:
        return len(self._workloads)

    def __iter__(self) -> Iterator[WorkloadValues]:
        return iter(self._workloads.values())

    def get(self, name: str) -> WorkloadValues | None:
        return self._workloads.get(name)

    def use(self, name: str) -> tuple[WorkloadValues, WorkloadValues | None]:
        """(the workload of a request, the one that had to go for it)."""
        found, gone = self._workloads.get(name), None
        if found is None:
            gone = self._make_room()
            found = self._workloads[name] = WorkloadValues(name)
        self._workloads.move_to_end(name)
        return found, gone

    def for_tables(self, name: str) -> tuple[WorkloadValues | None, WorkloadValues | None]:
        """As `use`; (None, None) where all that are known have sessions: no session ends for another's tables."""
        known = self._workloads.get(name)
        if known is not None:
            return known, None
        if len(self) >= self._most and all(workload.sessions for workload in self):
            return None, None
        return self.use(name)

    def _make_room(self) -> WorkloadValues | None:
        if len(self) < self._most:
            return None
        victim = next((workload for workload in self if not workload.sessions), None) or next(iter(self))
        return self._workloads.pop(victim.name)
