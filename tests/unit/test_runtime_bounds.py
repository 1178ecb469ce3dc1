"""The runtime's bounds while it runs: others are configured, and what is used last goes last."""

from __future__ import annotations

from typing import Any

import pytest

from runtime_actor.messages import RequestArrived, ToolReturned
from runtime_actor.policies.base import Observation, Policy
from runtime_actor.policies.host import PolicyHost
from runtime_actor.policies.kv_cache import KvCachePolicy
from runtime_actor.settings import PluggedSettings, RuntimeSettings
from tests.unit.runtime_kit import Kit


@pytest.mark.parametrize(
    "bounds",
    [
        {"max_workloads": 1},
        {"max_anchors": 1},
        {"max_anchor_bytes": 2048},
        {"max_replicas": 1},
        {"max_sessions": 1, "max_known_agents": 2},
        {"max_ended": 16},
    ],
    ids=str,
)
def test_smaller_bounds_hold_from_the_moment_they_are_configured(bounds: dict[str, int]) -> None:
    kit = Kit()
    for tenant in ("t1", "t2", "t3"):
        kit.teach("abc", sessions=10, tenant=tenant)
        kit.runtime.handle([kit.anchor(agent, tenant) for agent in "abc"])
        kit.exchange(f"replica of {tenant}", report=kit.report(f"replica of {tenant}"))
        kit.clock.advance(1.0)
    kit.exchange()
    assert kit.runtime.configure(RuntimeSettings.from_dict(bounds), 2)
    kit.runtime.check_invariants()
    known = set(kit.runtime.shared.learned.workloads)
    assert set(kit.runtime.snapshot()["tables"]) <= known, "tables of a workload that is gone"
    assert {workload for workload, _ in kit.runtime.shared.anchors._anchors} <= known
    assert len(kit.exchange(version=0).ended) <= kit.runtime.settings.max_ended
    assert len(known) == min(3, kit.runtime.settings.max_workloads) and "t3" in known


def tool_returned(kit: Kit, session: str) -> dict[str, Any]:
    return ToolReturned(kit.event_id(), kit.clock(), "t", "t", session, "search").to_wire()


def test_a_session_in_a_long_tool_call_keeps_no_silent_one_alive() -> None:
    """The silent ones came after it, and so are behind it in the order of arrivals."""
    kit = Kit(session_idle_s=60.0)
    kit.exchange(events=[kit.arrived("at work", "a")])
    kit.exchange(events=[kit.arrived("silent", "a")])
    for _ in range(10):
        kit.clock.advance(20.0)
        kit.exchange(events=[tool_returned(kit, "at work")])
    assert set(kit.runtime.shared.learned.workloads["t"].model.sessions) == {"at work"}
    kit.runtime.check_invariants()


def test_at_the_cap_a_session_in_a_long_tool_call_is_not_the_one_unused_for_longest() -> None:
    kit = Kit(max_sessions=2)
    kit.exchange(events=[kit.arrived("at work", "a")])
    kit.clock.advance(1.0)
    kit.exchange(events=[kit.arrived("silent", "a")])
    kit.clock.advance(1.0)
    kit.exchange(events=[tool_returned(kit, "at work")])
    kit.exchange(events=[kit.arrived("new", "a")])
    assert set(kit.runtime.shared.learned.workloads["t"].model.sessions) == {"at work", "new"}
    kit.runtime.check_invariants()


class Watcher(Policy):
    name = "watcher"
    in_place = True

    def __init__(self, seen: list[Observation]) -> None:
        self.settings = PluggedSettings("watcher")
        self.seen = seen

    def observe(self, event: Observation) -> None:
        self.seen.append(event)


def test_policies_see_only_what_was_applied() -> None:
    """An event in whose workload another tenant is at home is dropped for everybody."""
    kit = Kit()
    seen: list[Observation] = []
    kit.runtime.host = PolicyHost([Watcher(seen)], failure_limit=1)
    foreign = {**kit.arrived("s", "a"), "tenant": "somebody else"}
    assert kit.runtime.handle([kit.arrived("s", "a"), foreign, tool_returned(kit, "s")]) == 2
    nowhere = ToolReturned(kit.event_id(), kit.clock(), "x", "nowhere", "s", "search").to_wire()
    assert kit.runtime.handle([nowhere]) == 0
    assert [type(event) for event in seen] == [RequestArrived, ToolReturned]


@pytest.mark.parametrize(
    "row",
    ["text", {"name": "batch_shaping", "counters": "many"}, {"name": "x", "decisions": "1"}, {"counters": {"a": []}}],
)
def test_a_report_with_odd_policies_is_left_aside(row: Any) -> None:
    """Of a replica of another version; what one replica says must not take the state away from the operator."""
    kit = Kit(policies=[{"name": "kv_cache"}, {"name": "batch_shaping"}])
    kit.exchange("r1", report=kit.report("r1"))
    kit.exchange("r2", report=kit.report("r2", policies=[row]))
    assert [replica["replica"] for replica in kit.runtime.state()["replicas"]] == ["r1"]
    assert kit.runtime.reports_invalid == 1


def test_the_log_is_bounded_without_reading_out_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes as long as a checkpoint, while nobody is answered, and would be due every few seconds."""
    kit = Kit(max_log_events=16)
    learned = kit.runtime.shared.learned
    with monkeypatch.context() as during:
        during.setattr(learned, "dump", lambda: pytest.fail("the state was read out"))
        for number in range(100):
            kit.exchange(events=[kit.arrived(f"s{number % 3}", "ab"[number % 2])])
            assert len(learned.log) <= 16
    assert learned.replayed() is None
    kit.runtime.dump()
    kit.exchange(events=[kit.arrived("s1", "c")])
    replayed = learned.replayed()
    assert replayed is not None and replayed.dump() == learned.dump(), "from a checkpoint's state on"


def test_policies_keep_nothing_of_a_workload_that_was_dropped_by_the_same_events() -> None:
    kit = Kit(max_workloads=1)
    kit.runtime.handle([kit.arrived("s", "a", "first"), kit.arrived("s", "a", "second")])
    hosted = kit.runtime.host.get("kv_cache")
    assert hosted is not None and isinstance(hosted.policy, KvCachePolicy)
    candidates = hosted.policy._candidates
    assert set(candidates.part("second")) == {"s"} and not candidates.part("first")
    assert set(hosted.policy._dirty) == {"second"}
