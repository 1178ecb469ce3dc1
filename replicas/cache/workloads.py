"""The workloads that a replica knows: those whose sessions it serves, and others whose tables came."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from replicas.cache.workload_values import WorkloadValues


class Workloads:
    """At most `most`. The least recently used goes first: before all others one of which only tables are known, then
    one that has no live sessions.

    Tables of all tenants come to every replica, and of those that aren't served there they can be done without: a
    tenant that comes has its tables again with the next change, which its own request is.
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
        found = self._workloads.get(name)
        if found is not None:
            self._workloads.move_to_end(name)
            return found, None
        gone = None
        if len(self) >= self._most:
            gone = self._never_served() or next((known for known in self if not known.sessions), next(iter(self)))
        return self._put(name, gone), gone

    def for_tables(self, name: str) -> tuple[WorkloadValues | None, WorkloadValues | None]:
        """As `use`; (None, None) where one that was served here would have to go."""
        if name in self._workloads:
            return self._workloads[name], None
        is_full = len(self) >= self._most
        gone = self._never_served() if is_full else None
        if is_full and gone is None:
            return None, None
        return self._put(name, gone), gone

    def _never_served(self) -> WorkloadValues | None:
        return next((known for known in self if not known.sessions_of), None)

    def _put(self, name: str, gone: WorkloadValues | None) -> WorkloadValues:
        if gone is not None:
            del self._workloads[gone.name]
        made = self._workloads[name] = WorkloadValues(name)
        return made
