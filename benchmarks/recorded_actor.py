"""The runtime actor's core beside a trace: it hears of requests, and is called, in the trace's own time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from benchmarks.trace_format import Request
from runtime_actor.messages import ExchangeReply, ExchangeRequest, ReplicaReport, RequestArrived, SessionEnded
from runtime_actor.runtime import GATEWAY, REPLICA, AgentRuntime
from runtime_actor.settings import RuntimeSettings

TENANT = "t"
BLOCK_TOKENS = 32


class RecordedActor:
    """`now_s` is the time, and the caller's to move. What it is told waits for the next call."""

    def __init__(self, policies: Sequence[Mapping[str, Any]]) -> None:
        self.now_s = 0.0
        settings = RuntimeSettings.from_dict({"policies": [dict(policy) for policy in policies]})
        self._runtime = AgentRuntime(settings, lambda: self.now_s)
        self._ids = count()
        self._waiting: list[dict[str, Any]] = []

    def arrived(self, request: Request, replica: str, adapter: str = "") -> None:
        """With its last request a session ends, as a framework says or its silence does."""
        agent, session = request.agent, request.session
        arrived = RequestArrived(
            str(next(self._ids)), self.now_s, TENANT, TENANT, session, agent, agent, replica, adapter=adapter
        )
        self._waiting.append(arrived.to_wire())
        if request.final:
            self._waiting.append(SessionEnded(str(next(self._ids)), self.now_s, TENANT, TENANT, session).to_wire())

    def replica_calls(
        self,
        replica: str,
        resident: Mapping[str, int] | None = None,
        anchors: Mapping[str, int] | None = None,
        running: int = 0,
        blocks: int = 0,
    ) -> ExchangeReply:
        """Its report: blocks of each agent, tokens of each agent's anchor, requests in flight, blocks in all."""
        report = ReplicaReport(
            replica=replica,
            node="n",
            t_s=self.now_s,
            policy="reach",
            block_size=BLOCK_TOKENS,
            total_blocks=blocks,
            free_blocks=0,
            running=running,
            waiting=0,
            resident={TENANT: dict(resident or {})},
            anchors={TENANT: {agent: [agent, tokens] for agent, tokens in (anchors or {}).items()}},
            sessions=[],
            prompt_tokens=0,
            cached_tokens=0,
            evicted_blocks=0,
            dropped_events=0,
        )
        return self._call(replica, REPLICA, report.to_wire())

    def gateway_calls(self) -> ExchangeReply:
        return self._call("gateway", GATEWAY, None)

    def _call(self, caller: str, kind: str, report: dict[str, Any] | None) -> ExchangeReply:
        events, self._waiting = self._waiting, []
        return self._runtime.exchange(ExchangeRequest(caller, kind, self._runtime.epoch, 0, events, report))
