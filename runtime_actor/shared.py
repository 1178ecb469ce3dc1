"""The state that all policies share, and its owner's view of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from runtime_actor.identity import SessionRecord
from runtime_actor.learned import LearnedState
from runtime_actor.recorded_anchors import RecordedAnchors
from runtime_actor.replica_map import ReplicaMap, ReplicaState
from runtime_actor.settings import RuntimeSettings
from runtime_actor.transitions import TransitionModel


class SharedState:
    """Learned state, replicas and anchors at time `now_s`; implements `policies.base.Substrate`."""

    def __init__(self, settings: RuntimeSettings, now_s: float) -> None:
        self.now_s = now_s
        self.table_interval_s = settings.table_interval_s
        self.learned = LearnedState(settings)
        self.replica_map = ReplicaMap(settings.max_replicas)
        self.anchors = RecordedAnchors(settings.max_anchors, settings.max_anchor_bytes)

    def configure(self, settings: RuntimeSettings) -> list[str]:
        """Other bounds and times; what was learned stays, but for the workloads that are too many: their names."""
        before = self.learned
        self.learned = LearnedState.restore(before.dump(), settings)
        self.learned.refused = before.refused
        self.learned.ledger.suppressed = before.ledger.suppressed
        self.anchors.resize(settings.max_anchors, settings.max_anchor_bytes)
        self.table_interval_s = settings.table_interval_s
        return [name for name in before.workloads if name not in self.learned.workloads]

    @property
    def replicas(self) -> Iterable[ReplicaState]:
        return self.replica_map

    @property
    def workload_names(self) -> Iterable[str]:
        return tuple(self.learned.workloads)

    def model(self, workload: str) -> TransitionModel | None:
        known = self.learned.workloads.get(workload)
        return known.model if known is not None else None

    def session(self, workload: str, session: str) -> SessionRecord | None:
        known = self.learned.workloads.get(workload)
        return known.sessions.get(session) if known is not None else None

    def replica(self, replica: str) -> ReplicaState | None:
        return self.replica_map.get(replica)

    def anchor_tokens(self, workload: str, agent: str, replica: str) -> int:
        own = self.own_anchor(workload, agent, replica)
        if own is not None:
            return own[1]
        anchor = self.anchors.get(workload, agent)
        return anchor.tokens if anchor is not None else 0

    def own_anchor(self, workload: str, agent: str, replica: str) -> tuple[str, int] | None:
        """(digest, tokens) of an anchor that the replica can warm by itself."""
        state = self.replica_map.get(replica)
        entry = state.report.anchors.get(workload, {}).get(agent) if state is not None else None
        return (entry[0], entry[1]) if entry else None

    def invariant_checks(self) -> list[Callable[[], None]]:
        return [
            self.replica_map.check_invariants,
            self.anchors.check_invariants,
            *self.learned.invariant_checks(),
        ]
