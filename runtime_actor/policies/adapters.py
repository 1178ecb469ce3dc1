"""Adapter preloading: what the adapters of each replica's sessions are worth there, by who speaks next.

An agent's adapter is the one that its last request named. The value of an adapter on a replica is the probability
that one of the sessions there needs it within its next `horizon` requests. The replica decides what to load and what
has to go for it (`replicas/adapters.py`).
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from runtime_actor.fair_map import FairMap
from runtime_actor.messages import RequestArrived, SessionEnded
from runtime_actor.policies.base import ACTOR, AdapterSuggestion, Clock, Observation, Substrate
from runtime_actor.policies.own import OwnPolicy
from runtime_actor.settings import AnyPolicySettings, number

MAX_AGENTS = 4096
MAX_SESSIONS = 4096
"""Whose adapters are forecast; shared fairly by tenants, longest unseen first."""
MAX_DIRTY = 256
"""Sessions whose forecast is made again at one call; the others wait for the next."""
IDLE_S = 600.0
"""A session that was silent for so long needs nothing."""


@dataclass(frozen=True, slots=True)
class AdaptersOptions:
    """Only what a session needs with at least `min_probability` counts."""

    min_probability: float = number(0.3, 0.0, 1.0)
    horizon: int = number(2, 1, 16)


@dataclass(slots=True)
class SessionNeeds:
    """Where a session is served, and the probability with which it needs each adapter next."""

    replica: str
    seen_s: float
    needs: dict[str, float] = field(default_factory=dict)


class AdaptersPolicy(OwnPolicy[AdaptersOptions]):
    name: ClassVar[str] = "adapters"
    seat: ClassVar[str] = ACTOR
    kind: ClassVar[type[Any]] = AdaptersOptions

    substrate: Substrate

    def __init__(self, settings: AnyPolicySettings, substrate: Clock) -> None:
        super().__init__(settings, substrate)
        self._adapters: FairMap[str, str] = FairMap(MAX_AGENTS)
        self._sessions: FairMap[str, SessionNeeds] = FairMap(MAX_SESSIONS)
        self._dirty: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._changed: dict[str, None] = {}

    # --- observe ------------------------------------------------------------------------------------

    def observe(self, event: Observation) -> None:
        if isinstance(event, RequestArrived):
            self._arrived(event)
        elif isinstance(event, SessionEnded):
            self._drop(event.workload, event.session)

    def _arrived(self, event: RequestArrived) -> None:
        agents = self._adapters.part(event.workload)
        if event.adapter or event.agent in agents:
            agents[event.agent] = event.adapter
            agents.move_to_end(event.agent)
            self._adapters.trim(event.workload)
        if not agents or not event.replica:
            return
        sessions = self._sessions.part(event.workload)
        known = sessions.get(event.session)
        if known is None:
            known = sessions[event.session] = SessionNeeds(event.replica, event.t_s)
        elif known.replica != event.replica:
            # What it needs may stay the same: the new one hears it all the same.
            self._changed.update({known.replica: None, event.replica: None})
            known.replica = event.replica
        known.seen_s = event.t_s
        sessions.move_to_end(event.session)
        self._dirty[event.workload, event.session] = None
        while len(self._sessions) > MAX_SESSIONS:
            self._drop(*self._sessions.oldest(event.workload))

    def _drop(self, workload: str, session: str) -> None:
        self._dirty.pop((workload, session), None)
        gone = self._sessions.pop(workload, session)
        if gone is not None:
            self._changed[gone.replica] = None

    def forget(self, workload: str) -> None:
        self._adapters.drop(workload)
        for session in list(self._sessions.part(workload)):
            self._drop(workload, session)

    # --- act ----------------------------------------------------------------------------------------

    def act(self) -> list[AdapterSuggestion]:
        """For each replica where something changed what each adapter is worth there now, 0 not named."""
        self._drop_idle()
        for _ in range(min(len(self._dirty), MAX_DIRTY)):
            key, _none = self._dirty.popitem(last=False)
            self._forecast(*key)
        changed, self._changed = self._changed, {}
        return [AdapterSuggestion(self.name, replica, self._values(replica)) for replica in changed]

    def _drop_idle(self) -> None:
        for workload, sessions in list(self._sessions):
            for session in _silent(sessions, self.substrate.now_s - IDLE_S):
                self._drop(workload, session)

    def _forecast(self, workload: str, session: str) -> None:
        known = self._sessions.get(workload, session)
        if known is None:
            return
        model = self.substrate.model(workload)
        found = model.forecast(session, self.options.horizon) if model and session in model.sessions else {}
        needs: dict[str, float] = {}
        for agent, probability in found.items():
            adapter = self._adapters.get(workload, agent)
            if adapter and probability >= self.options.min_probability:
                needs[adapter] = max(needs.get(adapter, 0.0), min(probability, 1.0))
        self._counts["forecasts"] += 1
        if needs != known.needs:
            known.needs = needs
            self._changed[known.replica] = None

    def _values(self, replica: str) -> Mapping[str, float]:
        unneeded: dict[str, float] = {}
        for known in (known for _, sessions in self._sessions for known in sessions.values()):
            if known.replica == replica:
                for adapter, probability in known.needs.items():
                    unneeded[adapter] = unneeded.get(adapter, 1.0) * (1.0 - probability)
        return {adapter: 1.0 - rest for adapter, rest in unneeded.items()}

    def counters(self) -> Mapping[str, int]:
        return {**self._counts, "agents": len(self._adapters), "sessions": len(self._sessions)}


def _silent(sessions: Mapping[str, SessionNeeds], since_s: float) -> list[str]:
    """Those at the head that were last seen before then; the rest was seen later."""
    return list(itertools.takewhile(lambda name: sessions[name].seen_s < since_s, sessions))
