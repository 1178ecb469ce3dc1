"""The KV-cache policy: owner-level reach.

Its scores are tables of discounted first-passage values (`reach.py`) that the engines look up when they
evict. Its forecasts are first-passage probabilities. Its actions warm the anchor of a session's likely
next agent on the replica where the session's next request is expected.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from runtime_actor.fair_map import FairMap
from runtime_actor.identity import SessionRecord
from runtime_actor.messages import RequestArrived, RequestFinished, SessionEnded
from runtime_actor.policies.base import CacheOwner, Observation, Policy, PrefetchSuggestion, Substrate
from runtime_actor.reach import ReachSettings, compute_tables
from runtime_actor.replica_map import ReplicaState
from runtime_actor.settings import KV_CACHE, PolicySettings
from runtime_actor.tables import OTHER, ReachTables

MAX_CANDIDATES = 1024
MAX_TABLES_PER_CALL = 8
RESIDENT_SHARE = 0.9
"""An anchor counts as resident from this share of its tokens on: its last block is often partial."""
MIN_DEADLINE_S = 0.2
MAX_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Learned:
    """Tables of a workload, from which model version they are, and when they were made."""

    tables: ReachTables
    predictability: float
    model_version: int
    t_s: float


class KvCachePolicy(Policy):
    """Candidates for a prefetch are sessions that moved since the last `act`, at most MAX_CANDIDATES.

    Tenants share these fairly; at that cap the oldest candidate is dropped and counted in `dropped_candidates`.
    """

    name: ClassVar[str] = KV_CACHE
    in_place: ClassVar[bool] = True

    settings: PolicySettings
    substrate: Substrate

    def __init__(self, settings: PolicySettings, substrate: Substrate) -> None:
        super().__init__(settings, substrate)
        self._reach = ReachSettings(settings.gamma, settings.horizon)
        self._dirty: OrderedDict[str, None] = OrderedDict.fromkeys(substrate.workload_names)
        self._learned: dict[str, Learned] = {}
        self._candidates: FairMap[str, None] = FairMap(MAX_CANDIDATES)
        self.dropped_candidates = 0

    # --- observe ------------------------------------------------------------------------------------

    def observe(self, event: Observation) -> None:
        if not isinstance(event, (RequestArrived, RequestFinished, SessionEnded)):
            return
        self._dirty[event.workload] = None
        if isinstance(event, SessionEnded):
            self._candidates.pop(event.workload, event.session)
            return
        sessions = self._candidates.part(event.workload)
        sessions[event.session] = None
        sessions.move_to_end(event.session)
        self.dropped_candidates += len(self._candidates.trim(event.workload))

    def counters(self) -> Mapping[str, int]:
        return {"dropped_candidates": self.dropped_candidates}

    def forget(self, workload: str) -> None:
        self._dirty.pop(workload, None)
        self._learned.pop(workload, None)
        self._candidates.drop(workload)

    # --- score --------------------------------------------------------------------------------------

    def score(self, item: CacheOwner) -> float | None:
        learned = self._learned.get(item.workload)
        session = self.substrate.session(item.workload, item.session)
        if learned is None or session is None:
            return None
        if session.ended:
            return 0.0
        return self._value(learned.tables, session, item.agent)

    def _value(self, tables: ReachTables, session: SessionRecord, agent: str) -> float:
        current = tables.index(session.agent)
        previous = tables.index(session.previous_agent) if session.previous_agent else tables.start
        alive = tables.alive(current, self.substrate.now_s - session.last_seen_s)
        return float(tables.row(previous, current)[tables.index(agent)]) * alive

    def score_tables(self) -> Mapping[str, ReachTables]:
        """At most MAX_TABLES_PER_CALL, each workload at most once an interval; the rest stay due."""
        changed: dict[str, ReachTables] = {}
        for workload in list(self._dirty):
            if len(changed) == MAX_TABLES_PER_CALL:
                break
            model = self.substrate.model(workload)
            known = self._learned.get(workload)
            if model is None or (known is not None and known.model_version == model.version):
                del self._dirty[workload]
                continue
            now_s = self.substrate.now_s
            if known is not None and 0.0 <= now_s - known.t_s < self.substrate.table_interval_s:
                continue
            tables = compute_tables(model, self._reach, workload)
            self._learned[workload] = Learned(tables, model.predictability(), model.version, now_s)
            changed[workload] = tables
            del self._dirty[workload]
        return changed

    # --- predict ------------------------------------------------------------------------------------

    def predict(self, workload: str, session: str, horizon: int) -> Mapping[str, float] | None:
        model = self.substrate.model(workload)
        if model is None or session not in model.sessions:
            return None
        return model.forecast(session, horizon)

    # --- act ----------------------------------------------------------------------------------------

    def act(self) -> list[PrefetchSuggestion]:
        candidates, self._candidates = self._candidates, FairMap(MAX_CANDIDATES)
        if not self.settings.prefetch.enabled:
            return []
        moved = ((workload, session) for workload, sessions in candidates for session in sessions)
        return [s for workload, session in moved for s in self._suggestions(workload, session)]

    def _suggestions(self, workload: str, session_id: str) -> list[PrefetchSuggestion]:
        limits = self.settings.prefetch
        session = self.substrate.session(workload, session_id)
        learned = self._learned.get(workload)
        if session is None or session.ended or learned is None:
            return []
        deadline_s = self._deadline_s(learned.tables, session)
        if learned.predictability < limits.min_predictability or deadline_s is None:
            return []
        forecast = self.predict(workload, session_id, limits.horizon) or {}
        found = []
        for agent, probability in forecast.items():
            if probability < limits.min_probability or agent == OTHER:
                continue
            target = self._target(workload, agent, session)
            if target is not None:
                value = self._value(learned.tables, session, agent)
                found.append(
                    PrefetchSuggestion(self.name, target.report.replica, workload, agent, session_id, deadline_s, value)
                )
        return found

    def _deadline_s(self, tables: ReachTables, session: SessionRecord) -> float | None:
        """Seconds until the session's next request is expected; None if it is long overdue."""
        gap_s = float(tables.gap_s[tables.index(session.agent)])
        if not math.isfinite(gap_s):
            return MAX_DEADLINE_S
        elapsed_s = max(0.0, self.substrate.now_s - session.last_arrival_s)
        if elapsed_s > 4.0 * gap_s + MIN_DEADLINE_S:
            return None
        return min(max(gap_s - elapsed_s, MIN_DEADLINE_S), MAX_DEADLINE_S)

    def _target(self, workload: str, agent: str, session: SessionRecord) -> ReplicaState | None:
        """Where the session's next request is expected, unless the anchor is there or can't be warmed.

        That is the session's own replica; while that one is busy, the least loaded replica.
        """
        home = self.substrate.replica(session.replica)
        if home is not None and home.load < self.settings.prefetch.busy_requests:
            return home if self._lacks(home, workload, agent) else None
        usable = [r for r in self.substrate.replicas if self._lacks(r, workload, agent)]
        return min(usable, key=lambda r: (r.load, r.report.replica), default=None)

    def _lacks(self, replica: ReplicaState, workload: str, agent: str) -> bool:
        tokens = self.substrate.anchor_tokens(workload, agent, replica.report.replica)
        return tokens > 0 and replica.resident_tokens(workload, agent) < RESIDENT_SHARE * tokens
