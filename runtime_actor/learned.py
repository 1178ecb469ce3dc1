"""What was learned from events: a state machine that a log of its entries rebuilds exactly.

Nothing in here reads a clock: an entry carries the time at which it was applied.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from runtime_actor.errors import CheckpointError, MessageError
from runtime_actor.intake import (
    MAX_EVENTS_PER_CALL,
    ActionsIssued,
    Entry,
    EventBatch,
    EventLog,
    Registration,
    ReplicasLost,
    SeenIds,
    TimePassed,
    decode,
)
from runtime_actor.ledger import PrefetchLedger
from runtime_actor.messages import (
    AnchorRecorded,
    Message,
    PrefetchFinished,
    RequestArrived,
    RequestFinished,
    SessionEnded,
    ToolReturned,
)
from runtime_actor.settings import RuntimeSettings
from runtime_actor.workloads import Workload

UNOWNED = ""
"""Tenant of a workload that only replicas have named so far."""


@dataclass(slots=True)
class Changes:
    """What the owner must pass on: events that counted, sessions that ended [workload, session], workloads dropped at
    the cap."""

    applied: list[Message] = field(default_factory=list)
    ended: list[tuple[str, str]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Ingested:
    """Outcome of one call's events. Anchors aren't applied here: they never enter log or checkpoint."""

    anchors: list[AnchorRecorded]
    changes: Changes


class LearnedState:
    """Workloads by name, at most `max_workloads`: the least recently used goes first, and is counted.

    `counters` are part of the state; `refused` counts what never entered it, since this process began.
    """

    def __init__(self, settings: RuntimeSettings) -> None:
        self.settings = settings
        self.workloads: OrderedDict[str, Workload] = OrderedDict()
        self.ledger = PrefetchLedger()
        self.seen = SeenIds(settings.max_event_ids)
        self.counters: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.log = EventLog(settings.max_log_events)

    # --- in -----------------------------------------------------------------------------------------

    def ingest(self, wires: Iterable[Any], now_s: float) -> Ingested:
        """Decode, drop what is invalid or known (both counted), apply the rest in order of time."""
        events: list[Message] = []
        anchors: list[AnchorRecorded] = []
        ids: set[str] = set()
        for number, wire in enumerate(wires):
            if number == MAX_EVENTS_PER_CALL:
                self.refused["events_over_call_limit"] += 1
                break
            try:
                event: Any = decode(wire, now_s)
            except MessageError:
                self.refused["events_invalid"] += 1
                continue
            if isinstance(event, AnchorRecorded):
                anchors.append(event)
            elif event.event_id in ids or event.event_id in self.seen:
                self.refused["events_duplicate"] += 1
            else:
                ids.add(event.event_id)
                events.append(event)
        events.sort(key=lambda e: e.t_s)  # type: ignore[attr-defined]
        changes = self.apply(EventBatch(now_s, tuple(events))) if events else Changes()
        return Ingested(anchors, changes)

    def apply(self, entry: Entry) -> Changes:
        """Advance by one entry, and note it in the log."""
        changes = Changes()
        if isinstance(entry, EventBatch):
            for event in entry.events:
                self.seen.add(event.event_id)  # type: ignore[attr-defined]
                if self._event(event, changes):
                    self.counters["events"] += 1
                    changes.applied.append(event)
        elif isinstance(entry, Registration):
            self._register(entry, changes)
        elif isinstance(entry, ActionsIssued):
            for action in entry.actions:
                self.ledger.issue(action)
        elif isinstance(entry, ReplicasLost):
            for replica in entry.replicas:
                self.ledger.replica_lost(replica)
        self._expire(entry.now_s, changes)
        self.log.append(entry)
        return changes

    def due(self, now_s: float) -> bool:
        """Whether time alone has made something happen; then apply `TimePassed`."""
        idle_s = self.settings.session_idle_s
        return self.ledger.due(now_s) or any(
            (oldest := w.sessions.oldest()) is not None and now_s - oldest.last_seen_s > idle_s
            for w in self.workloads.values()
        )

    def advance(self, now_s: float) -> Changes:
        return self.apply(TimePassed(now_s)) if self.due(now_s) else Changes()

    # --- events -------------------------------------------------------------------------------------

    def _event(self, event: Any, changes: Changes) -> bool:
        """False for one that isn't its tenant's to tell, or of a workload that nobody has."""
        if isinstance(event, PrefetchFinished):
            self.ledger.finish(event.action_id, event.outcome)
            return True
        creates = isinstance(event, (RequestArrived, RequestFinished))
        workload = self._workload(event.workload, event.tenant, creates, changes)
        if workload is None:
            return False
        if isinstance(event, RequestArrived):
            changes.ended += [(workload.name, s) for s in workload.arrived(event)]
        elif isinstance(event, RequestFinished):
            workload.finished(event)
        elif isinstance(event, ToolReturned):
            workload.tool_returned(event.session, event.t_s)
        elif isinstance(event, SessionEnded) and workload.end(event.session, event.t_s):
            changes.ended.append((workload.name, event.session))
        return True

    def _workload(self, name: str, tenant: str, create: bool, changes: Changes) -> Workload | None:
        """The workload, if `tenant` owns it; a new one belongs to the first tenant that names it."""
        workload = self.workloads.get(name)
        if workload is None:
            if not create:
                self.counters["events_unknown_workload"] += 1
                return None
            return self._new_workload(name, tenant, changes)
        if workload.tenant == UNOWNED:
            workload.tenant = tenant
        if workload.tenant != tenant:
            self.counters["events_foreign_tenant"] += 1
            return None
        self.workloads.move_to_end(name)
        return workload

    def _new_workload(self, name: str, tenant: str, changes: Changes) -> Workload:
        workload = self.workloads[name] = Workload(name, tenant, self.settings)
        while len(self.workloads) > self.settings.max_workloads:
            gone, _ = self.workloads.popitem(last=False)
            self.ledger.forget_workload(gone)
            self.counters["workloads_dropped"] += 1
            changes.dropped.append(gone)
        return workload

    def _register(self, entry: Registration, changes: Changes) -> None:
        """Rows oldest first. A workload that isn't known has no tenant until an event names it."""
        for name, session, previous, current, t_s in sorted(entry.rows, key=lambda row: row[4]):
            if entry.now_s - t_s > self.settings.session_idle_s:
                continue
            workload = self.workloads.get(name) or self._new_workload(name, UNOWNED, changes)
            closed = workload.registered(session, previous, current, entry.replica, min(t_s, entry.now_s))
            changes.ended += [(name, s) for s in closed]
            self.counters["registrations"] += 1

    def _expire(self, now_s: float, changes: Changes) -> None:
        self.ledger.expire(now_s)
        for workload in self.workloads.values():
            closed = workload.expire(now_s, self.settings.session_idle_s)
            changes.ended += [(workload.name, session) for session in closed]
            self.counters["sessions_idle_closed"] += len(closed)

    # --- out ----------------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """Everything but the log, of JSON types only."""
        return {
            "workloads": [workload.dump() for workload in self.workloads.values()],
            "ledger": self.ledger.dump(),
            "seen": self.seen.dump(),
            "counters": dict(self.counters),
        }

    @classmethod
    def restore(cls, values: Any, settings: RuntimeSettings) -> LearnedState:
        """Rebuild from a dump, possibly under other bounds. Raises CheckpointError if it is damaged."""
        learned = cls(settings)
        try:
            for entry in values["workloads"][-settings.max_workloads :]:
                workload = Workload.restore(entry, settings)
                learned.workloads[workload.name] = workload
            learned.ledger.restore(values["ledger"])
            for entry in values["workloads"][: -settings.max_workloads]:
                learned.ledger.forget_workload(str(entry["name"]))
            learned.seen.restore(values["seen"])
            learned.counters.update({str(k): int(v) for k, v in values["counters"].items()})
            learned.check_invariants()
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError, AssertionError) as error:
            raise CheckpointError(f"learned state is damaged: {error!r}") from error
        learned.log.rebase(values)
        return learned

    def replayed(self) -> LearnedState | None:
        """A second state, rebuilt from the log's base and entries; equal to this one. None: the log isn't whole."""
        if not self.log.is_whole:
            return None
        base = self.log.base
        fresh = LearnedState(self.settings) if base is None else LearnedState.restore(base, self.settings)
        for entry in self.log:
            fresh.apply(entry)
        return fresh

    def invariant_checks(self) -> list[Callable[[], None]]:
        """Checks that take some milliseconds each at most; they raise AssertionError or ValueError."""
        workloads = [workload.check_invariants for workload in self.workloads.values()]
        return [self._check_caps, self.ledger.check_invariants, *workloads]

    def _check_caps(self) -> None:
        assert len(self.workloads) <= self.settings.max_workloads, "more workloads than the cap"
        assert len(self.seen) <= self.settings.max_event_ids, "more event ids than the cap"

    def check_invariants(self) -> None:
        """Raises AssertionError or ValueError with what doesn't hold."""
        for check in self.invariant_checks():
            check()
