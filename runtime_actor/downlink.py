"""What goes down to every caller, by version: tables that changed and sessions that ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable


class Downlink:
    """`version` grows with every change of the runtime's state; a caller names the last one it has.

    At most `max_ended` ended sessions are kept; a caller that was away for longer misses the oldest, and
    its replica forgets those sessions when they are idle.
    """

    def __init__(self, max_ended: int) -> None:
        self.version = 1
        self._tables: dict[str, tuple[int, bytes]] = {}
        self._ended: deque[tuple[int, str, str]] = deque(maxlen=max_ended)

    def resize(self, max_ended: int) -> None:
        self._ended = deque(self._ended, maxlen=max_ended)

    def changed(self) -> None:
        self.version += 1

    def put_table(self, workload: str, wire: bytes) -> None:
        """Bytes equal to the last ones are no change."""
        known = self._tables.get(workload)
        if known is None or known[1] != wire:
            self.version += 1
            self._tables[workload] = (self.version, wire)

    def sessions_ended(self, sessions: Iterable[tuple[str, str]]) -> None:
        self.version += 1
        self._ended.extend((self.version, workload, session) for workload, session in sessions)

    def forget_workload(self, workload: str) -> None:
        self.version += 1
        self._tables.pop(workload, None)

    def tables_since(self, version: int) -> dict[str, bytes]:
        return {workload: wire for workload, (at, wire) in self._tables.items() if at > version}

    def ended_since(self, version: int, still_ended: Callable[[str, str], bool]) -> list[list[str]]:
        """[workload, session] of those that ended after `version` and did not start again."""
        rows = []
        for at, workload, session in reversed(self._ended):
            if at <= version:
                break
            if still_ended(workload, session):
                rows.append([workload, session])
        return rows[::-1]
