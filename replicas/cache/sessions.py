"""The live sessions of a replica, of all workloads, the longest silent first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from replicas.cache.workload_values import Session, WorkloadValues
from replicas.cache.workloads import Workloads


class Sessions:
    """Bounded by who uses it: `one_too_many` says which one has to go."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[tuple[str, str], Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def get(self, workload: str, session: str) -> Session | None:
        return self._sessions.get((workload, session))

    def use(self, workload: WorkloadValues, session_id: str) -> Session:
        """The session, as seen last; a new one if it isn't known."""
        key = (workload.name, session_id)
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = Session(workload, session_id)
            workload.sessions[session_id] = session
        self._sessions.move_to_end(key)
        workload.sessions.move_to_end(session_id)
        return session

    def remove(self, session: Session) -> None:
        self._sessions.pop((session.workload.name, session.id), None)
        session.workload.remove(session)

    def one_too_many(self, most: int, wants: WorkloadValues, workloads: Workloads) -> Session | None:
        """Beyond `most`: the least recent of the workload that wants room if it has more than its share of those that
        have any, else of the one that has most. None: there is room."""
        if len(self._sessions) <= most:
            return None
        at_work = sum(1 for workload in workloads if workload.sessions)
        if len(wants.sessions) <= max(1, most // at_work):
            wants = max(workloads, key=lambda other: len(other.sessions))
        return next(iter(wants.sessions.values()))

    def rows(self, ahead_s: float) -> list[list]:
        """[workload, session, previous agent or "", current agent, t_s], t_s on a clock that is ahead by so much."""
        return [[s.workload.name, s.id, s.previous, s.current, s.last_s + ahead_s] for s in self]
