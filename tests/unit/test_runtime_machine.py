"""AgentRuntime against a naive model, under any order of events, calls, restarts and passing time."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from runtime_actor.runtime import AgentRuntime
from runtime_actor.settings import RuntimeSettings
from tests.unit.runtime_kit import Kit

TENANTS = st.sampled_from(["t", "u"])
SESSIONS = st.sampled_from([f"s{i}" for i in range(5)])
AGENTS = st.sampled_from(list("abcdef"))
REPLICAS = st.sampled_from(["r1", "r2"])
ANCHORS = {"t": {agent: [f"digest-{agent}", 64] for agent in "abcdef"}}


class RuntimeMachine(RuleBasedStateMachine):
    """Small bounds, so that every cap is hit, the log's too."""

    @initialize()
    def start(self) -> None:
        self.kit = Kit(
            window=32,
            max_agents=4,
            max_sessions=3,
            session_idle_s=50,
            max_log_events=32,
            max_event_ids=4096,
            replica_timeout_s=20,
            policies=[{"prefetch": {"min_predictability": 0.0, "min_probability": 0.05, "cooldown_s": 0.0}}],
        )
        self.requests: Counter[tuple[str, str]] = Counter()
        self.cached: Counter[tuple[str, str]] = Counter()
        self.actions: list[tuple[str, str]] = []
        self.known_version: dict[str, tuple[int, int]] = {}
        self.last_version = 0
        self.told: list[Any] = []

    @rule(tenant=TENANTS, session=SESSIONS, agent=AGENTS, replica=REPLICAS, age_s=st.floats(0.0, 5.0))
    def arrive(self, tenant: str, session: str, agent: str, replica: str, age_s: float) -> None:
        event = self.kit.arrived(session, agent, tenant, replica, t_s=self.kit.clock() - age_s)
        self.told.append(event)
        assert self.kit.runtime.handle([event]) == 1
        self.requests[(tenant, agent)] += 1

    @rule(tenant=TENANTS, session=SESSIONS, agent=AGENTS, cached=st.integers(0, 100))
    def finish(self, tenant: str, session: str, agent: str, cached: int) -> None:
        event = self.kit.finished(session, agent, tenant, cached=cached)
        self.told.append(event)
        self.kit.runtime.handle([event])
        self.cached[(tenant, agent)] += cached

    @rule(tenant=TENANTS, session=SESSIONS)
    def end(self, tenant: str, session: str) -> None:
        self.kit.runtime.handle([self.kit.ended(session, tenant)])

    @rule(index=st.integers(0, 1000))
    def repeat(self, index: int) -> None:
        if self.told:
            assert self.kit.runtime.handle([self.told[index % len(self.told)]]) == 0

    @rule(seconds=st.floats(0.01, 30.0))
    def wait(self, seconds: float) -> None:
        self.kit.clock.advance(seconds)

    @rule(
        replica=REPLICAS,
        blocks=st.integers(0, 3),
        sessions=st.lists(st.tuples(TENANTS, SESSIONS, AGENTS, AGENTS), max_size=3),
    )
    def exchange(self, replica: str, blocks: int, sessions: list[tuple[str, str, str, str]]) -> None:
        epoch, version = self.known_version.get(replica, (0, 0))
        rows = [[*row, self.kit.clock()] for row in sessions]
        report = self.kit.report(replica, resident={"t": {"b": blocks}}, anchors=ANCHORS, sessions=rows)
        reply = self.kit.exchange(replica, [], report, epoch, version)
        assert reply.need_sessions == (epoch != self.kit.runtime.epoch)
        for action in reply.actions:
            self.actions.append((replica, action["action_id"]))
        self.known_version[replica] = (reply.epoch, reply.version)

    @rule(outcome=st.sampled_from(["useful", "wasted", "refused", "nonsense"]))
    def answer(self, outcome: str) -> None:
        if self.actions:
            replica, action_id = self.actions.pop()
            self.kit.runtime.handle([self.kit.prefetch_finished(action_id, outcome, replica)])

    @rule()
    def restart(self) -> None:
        """Through JSON, as a checkpoint would."""
        old = self.kit.runtime
        state = json.loads(json.dumps(old.dump(), allow_nan=False))
        self.kit.runtime = AgentRuntime.restore(state, RuntimeSettings(), 0, self.kit.clock, old.epoch)
        assert self.kit.runtime.epoch > old.epoch
        assert self.kit.runtime.settings == old.settings
        assert self.kit.runtime.shared.learned.dump() == old.shared.learned.dump()

    @rule(mode=st.sampled_from(["reach", "lru"]), version=st.integers(0, 5))
    def switch(self, mode: str, version: int) -> None:
        self.kit.runtime.set_policy("kv_cache", {"mode": mode})
        self.kit.runtime.configure(self.kit.runtime.settings, version)

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "kit"):
            return
        runtime = self.kit.runtime
        runtime.check_invariants()
        learned = runtime.shared.learned
        replayed = learned.replayed()
        assert replayed is None or replayed.dump() == learned.dump()
        assert (replayed is not None) == learned.log.is_whole
        assert runtime.version >= self.last_version
        self.last_version = runtime.version
        state = runtime.state()
        assert {(a["tenant"], a["agent"]): a["requests"] for a in state["agents"] if a["requests"]} == dict(
            self.requests
        )
        assert {(a["tenant"], a["agent"]): a["cached_tokens"] for a in state["agents"] if a["cached_tokens"]} == {
            key: n for key, n in self.cached.items() if n
        }
        assert all(row["from"] != row["to"] and 0.0 < row["probability"] <= 1.0 for row in state["transitions"])
        prefetch = state["prefetch"]
        assert prefetch["issued"] == sum(prefetch[name] for name in ("useful", "wasted", "refused", "pending"))


TestRuntimeMachine = RuntimeMachine.TestCase
TestRuntimeMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
