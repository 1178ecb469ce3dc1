"""What one workload has done: its agents, its sessions and the chain that they form.

A session's requests are ordered by their arrival time at the gateway. One that reports late (an older
`t_s` than what the session already did) is counted in the statistics but is no step of the chain, since
the steps around it have been counted without it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from runtime_actor.errors import CheckpointError
from runtime_actor.identity import AgentRecord, Registry, SessionRecord
from runtime_actor.messages import RequestArrived, RequestFinished
from runtime_actor.settings import RuntimeSettings
from runtime_actor.transitions import TransitionModel

MAX_REPLICA_ROWS = 512
QUIET_S = 30.0
"""After so long without a step what was worked out from the window is given up; a step makes some of it again."""

REGISTRATION_SLACK_S = 1.0
"""A replica sees a request this much after the gateway at most; a newer step is one that was missed."""


@dataclass(slots=True)
class ReplicaUse:
    """What this workload did on one replica."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


class Workload:
    """Agents, sessions and transitions of one workload. Single-threaded; times come with the events."""

    def __init__(self, name: str, tenant: str, settings: RuntimeSettings) -> None:
        self.name = name
        self.tenant = tenant
        self.agents: Registry[AgentRecord] = Registry(settings.max_known_agents, AgentRecord, "agent")
        self.sessions: Registry[SessionRecord] = Registry(settings.max_sessions, SessionRecord, "session")
        self.model = TransitionModel(settings.window, settings.max_agents, settings.max_sessions)
        self.replica_use: dict[str, ReplicaUse] = {}
        self.forecasts: Counter[str] = Counter()
        self.late_events = 0
        self._version_at_expiry = -1
        self._changed_s = 0.0

    # --- events -------------------------------------------------------------------------------------

    def arrived(self, event: RequestArrived) -> list[str]:
        """Count an arrival. Returns the live sessions that had to be closed at the cap."""
        self.agents.touch(event.agent)[0].arrived(event)
        session, gone = self.sessions.touch(event.session)
        closed = [record.session for record in gone if self._close(record, event.t_s)]
        session.requests += 1
        session.last_seen_s = max(session.last_seen_s, event.t_s)
        before = session.ended_s if session.ended_s is not None else session.last_arrival_s
        if event.t_s < before or (session.ended and event.t_s == before):
            self.late_events += 1
            return closed
        session.replica = event.replica
        if event.session in self.model.sessions:
            self._compare_forecast(event.session, event.agent)
        self._step(session, event.agent, event.t_s)
        return closed

    def _step(self, session: SessionRecord, agent: str, t_s: float) -> None:
        if session.session in self.model.sessions:
            session.previous_agent = session.agent
        else:
            session.previous_agent = ""
            session.started_s = t_s
            session.ended_s = None
        session.agent = agent
        session.last_arrival_s = t_s
        self.model.observe(session.session, agent, t_s)

    def _compare_forecast(self, session: str, agent: str) -> None:
        forecast = self.model.forecast(session, 1)
        likely = max(forecast, key=lambda name: forecast[name], default=None)
        if likely is None or forecast[likely] <= 0.0:
            self.forecasts["none"] += 1
            return
        slot = self.model.slot_of(agent)
        self.forecasts["right" if self.model.slot_of(likely) == slot else "wrong"] += 1

    def finished(self, event: RequestFinished) -> None:
        self.agents.touch(event.agent)[0].completed(event)
        session = self.sessions.use(event.session)
        if session is not None:
            session.last_seen_s = max(session.last_seen_s, event.t_s)
        use = self.replica_use.pop(event.replica, None) or ReplicaUse()
        self.replica_use[event.replica] = use
        if len(self.replica_use) > MAX_REPLICA_ROWS:
            del self.replica_use[next(iter(self.replica_use))]
        use.requests += 1
        use.prompt_tokens += event.prompt_tokens
        use.cached_tokens += event.cached_tokens

    def tool_returned(self, session: str, t_s: float) -> None:
        record = self.sessions.use(session)
        if record is not None:
            record.last_seen_s = max(record.last_seen_s, t_s)

    def end(self, session: str, t_s: float) -> bool:
        """Close a session; False if it isn't live or went on after `t_s`."""
        record = self.sessions.get(session)
        if record is None or t_s < record.last_arrival_s:
            return False
        return self._close(record, t_s)

    def _close(self, record: SessionRecord, t_s: float) -> bool:
        if record.ended:
            return False
        record.ended_s = max(t_s, record.last_arrival_s)
        self.model.end(record.session, record.ended_s)
        return True

    def registered(self, session: str, previous: str, current: str, replica: str, t_s: float) -> list[str]:
        """A replica tells where a session stands; steps that this side missed are counted once.

        A session that isn't known counts as beginning with `previous`.
        Returns the live sessions that had to be closed at the cap.
        """
        known = self.sessions.get(session)
        if known is not None and (known.ended or known.agent == current):
            return []
        if known is not None and t_s <= known.last_arrival_s + REGISTRATION_SLACK_S:
            return []
        record, gone = self.sessions.touch(session)
        closed = [old.session for old in gone if self._close(old, t_s)]
        record.replica = replica
        record.last_seen_s = max(record.last_seen_s, t_s)
        if previous and record.agent != previous:
            self._step(record, previous, max(record.last_arrival_s, t_s - REGISTRATION_SLACK_S))
        self._step(record, current, t_s)
        return closed

    def expire(self, now_s: float, idle_s: float) -> list[str]:
        """Forget sessions silent for longer than `idle_s`; returns those that were still live."""
        closed = []
        self._forget_when_quiet(now_s)
        while (record := self.sessions.oldest()) is not None and now_s - record.last_seen_s > idle_s:
            if self._close(record, now_s):
                closed.append(record.session)
            self.sessions.remove(record.session)
        return closed

    def _forget_when_quiet(self, now_s: float) -> None:
        if self.model.version != self._version_at_expiry:
            self._version_at_expiry, self._changed_s = self.model.version, now_s
        elif not 0.0 <= now_s - self._changed_s < QUIET_S:
            self.model.forget_derived()

    # --- checkpoints --------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """Everything, of JSON types only."""
        return {
            "name": self.name,
            "tenant": self.tenant,
            "agents": self.agents.dump(),
            "sessions": self.sessions.dump(),
            "model": self.model.state(),
            "replica_use": [[r, u.requests, u.prompt_tokens, u.cached_tokens] for r, u in self.replica_use.items()],
            "forecasts": dict(self.forecasts),
            "late_events": self.late_events,
        }

    @classmethod
    def restore(cls, values: dict[str, Any], settings: RuntimeSettings) -> Workload:
        """Rebuild from a dump under possibly other bounds.

        Another `max_agents` than the dump's starts the chain afresh; statistics of agents stay.

        Raises:
            CheckpointError: a missing field or a wrong type.
        """
        try:
            workload = cls(str(values["name"]), str(values["tenant"]), settings)
            workload.agents.restore(values["agents"])
            for replica, requests, prompt, cached in values["replica_use"]:
                workload.replica_use[str(replica)] = ReplicaUse(int(requests), int(prompt), int(cached))
            workload.forecasts.update({str(kind): int(count) for kind, count in values["forecasts"].items()})
            workload.late_events = int(values["late_events"])
            if values["model"]["max_agents"] == settings.max_agents:
                workload.sessions.restore(values["sessions"])
                workload.model = TransitionModel.restore(values["model"], settings.window, settings.max_sessions)
                workload._align()
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise CheckpointError(f"workload state is damaged: {error!r}") from error
        return workload

    def _align(self) -> None:
        """Smaller bounds may have cut registry and chain at different sessions: keep those in both."""
        for session in [s for s in self.model.sessions if self.sessions.get(s) is None]:
            self.model.end(session, 0.0)
        for record in list(self.sessions):
            if not record.ended and record.session not in self.model.sessions:
                self.sessions.remove(record.session)

    def check_invariants(self) -> None:
        """Raises ValueError or AssertionError with what doesn't hold."""
        self.agents.check_invariants()
        self.sessions.check_invariants()
        self.model.check_invariants()
        live = {record.session for record in self.sessions if not record.ended}
        assert live == set(self.model.sessions), "live sessions of registry and chain differ"
        assert len(self.replica_use) <= MAX_REPLICA_ROWS
        for record in self.agents:
            assert record.cached_tokens <= record.prompt_tokens, f"{record.agent}: more cached than prompt"
