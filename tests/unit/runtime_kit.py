"""Builders for events, reports and runtimes with a clock under the test's control."""

from __future__ import annotations

import itertools
from typing import Any

from runtime_actor.messages import (
    AnchorRecorded,
    ExchangeReply,
    ExchangeRequest,
    PrefetchFinished,
    ReplicaReport,
    RequestArrived,
    RequestFinished,
    SessionEnded,
)
from runtime_actor.runtime import AgentRuntime
from runtime_actor.settings import RuntimeSettings


class Clock:
    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> float:
        self.now_s += seconds
        return self.now_s


class Kit:
    """A runtime, its clock, and short ways to tell it things."""

    def __init__(self, **settings: Any) -> None:
        self.clock = Clock()
        self.runtime = AgentRuntime(RuntimeSettings.from_dict(settings), self.clock)
        self._ids = itertools.count()

    def event_id(self) -> str:
        return f"e{next(self._ids)}"

    def arrived(
        self,
        session: str,
        agent: str,
        tenant: str = "t",
        replica: str = "r1",
        t_s: float | None = None,
        adapter: str = "",
    ) -> dict[str, Any]:
        t_s = self.clock() if t_s is None else t_s
        return RequestArrived(
            self.event_id(), t_s, tenant, tenant, session, agent, f"label-{agent}", replica, adapter=adapter
        ).to_wire()

    def finished(
        self, session: str, agent: str, tenant: str = "t", replica: str = "r1", prompt: int = 100, cached: int = 40
    ) -> dict[str, Any]:
        return RequestFinished(
            self.event_id(), self.clock(), tenant, tenant, session, agent, replica, prompt, cached, 10, "stop", 0.2, 0.5
        ).to_wire()

    def ended(self, session: str, tenant: str = "t", t_s: float | None = None) -> dict[str, Any]:
        t_s = self.clock() if t_s is None else t_s
        return SessionEnded(self.event_id(), t_s, tenant, tenant, session).to_wire()

    def anchor(self, agent: str, tenant: str = "t", tokens: int = 320) -> dict[str, Any]:
        return AnchorRecorded(
            self.event_id(), self.clock(), "r1", tenant, agent, f"digest-{agent}", b"\1\0\0\0" * tokens, "salt", None
        ).to_wire()

    def prefetch_finished(self, action_id: str, outcome: str, replica: str = "r1") -> dict[str, Any]:
        return PrefetchFinished(
            self.event_id(), self.clock(), replica, "t", "b", action_id, outcome, "why", 320
        ).to_wire()

    def report(self, replica: str = "r1", **changes: Any) -> dict[str, Any]:
        values: dict[str, Any] = {
            "replica": replica,
            "node": "n1",
            "t_s": self.clock(),
            "policy": "reach",
            "block_size": 32,
            "total_blocks": 400,
            "free_blocks": 300,
            "running": 0,
            "waiting": 0,
            "resident": {},
            "anchors": {},
            "sessions": [],
            "prompt_tokens": 1000,
            "cached_tokens": 250,
            "evicted_blocks": 0,
            "dropped_events": 0,
        }
        return ReplicaReport(**{**values, **changes}).to_wire()

    def exchange(
        self,
        caller: str = "r1",
        events: list[Any] | None = None,
        report: dict[str, Any] | None = None,
        epoch: int | None = None,
        version: int = 0,
        kind: str = "replica",
    ) -> ExchangeReply:
        epoch = self.runtime.epoch if epoch is None else epoch
        return self.runtime.exchange(ExchangeRequest(caller, kind, epoch, version, events or [], report))

    def teach(self, chain: str = "abc", sessions: int = 20, tenant: str = "t", gap_s: float = 1.0) -> None:
        """Sessions that each walk `chain` and end."""
        for number in range(sessions):
            events = []
            for agent in chain:
                self.clock.advance(gap_s)
                events.append(self.arrived(f"taught-{number}", agent, tenant))
            events.append(self.ended(f"taught-{number}", tenant))
            self.runtime.handle(events)
