"""Prefetches: when one is proposed, to whom, within which limits, and how it is accounted."""

from __future__ import annotations

from typing import Any

import pytest

from runtime_actor.messages import PrefetchAction
from tests.unit.runtime_kit import Kit

ANCHORS = {"t": {agent: [f"digest-{agent}", 320] for agent in "abc"}}


def taught(**settings: Any) -> Kit:
    kit = Kit(**settings)
    kit.teach("abc")
    kit.exchange()
    return kit


def move(kit: Kit, agent: str = "a", session: str = "s1", replica: str = "r1", **report: Any) -> list[PrefetchAction]:
    """The session moves to `agent`; returns what `replica` is asked to do at its next call."""
    kit.clock.advance(0.01)
    events = [kit.arrived(session, agent, replica=replica)]
    reply = kit.exchange(replica, events, kit.report(replica, **{"anchors": ANCHORS, **report}))
    return [PrefetchAction.from_wire(action) for action in reply.actions]


def prefetch(**changes: Any) -> dict[str, Any]:
    return {"policies": [{"name": "kv_cache", "prefetch": changes}]}


def test_the_likely_next_agent_is_warmed_where_the_session_is() -> None:
    kit = taught()
    (action,) = move(kit)
    assert (action.agent, action.workload, action.session, action.digest) == ("b", "t", "s1", "digest-b")
    assert action.token_ids == b"" and 0.0 < action.value <= 1.0
    assert action.deadline_s == pytest.approx(1.0, abs=0.2), "the mean gap after agent a is one second"
    assert kit.runtime.state()["prefetch"]["issued"] == 1


def test_a_replica_without_the_anchor_gets_its_tokens() -> None:
    kit = taught()
    kit.runtime.handle([kit.anchor("b")])
    (action,) = move(kit, anchors={})
    assert len(action.token_ids) == 320 * 4 and action.cache_salt == "salt"


def test_without_anchor_there_is_nothing_to_warm() -> None:
    assert move(taught(), anchors={}) == []


def test_what_is_resident_is_left_alone() -> None:
    assert move(taught(), resident={"t": {"b": 10}}) == []
    assert len(move(taught(), resident={"t": {"b": 3}})) == 1


def test_a_busy_replica_is_spared_and_the_idlest_asked() -> None:
    kit = taught()
    kit.exchange("r2", report=kit.report("r2", anchors=ANCHORS, running=2))
    kit.exchange("r3", report=kit.report("r3", anchors=ANCHORS, running=1))
    assert move(kit, running=4, waiting=9) == []
    assert kit.exchange("r2", report=kit.report("r2", anchors=ANCHORS)).actions == []
    assert len(kit.exchange("r3", report=kit.report("r3", anchors=ANCHORS)).actions) == 1


def test_ended_sessions_get_nothing() -> None:
    kit = taught()
    kit.clock.advance(0.01)
    events = [kit.arrived("s1", "a"), kit.ended("s1")]
    assert kit.exchange("r1", events, kit.report(anchors=ANCHORS)).actions == []


def test_a_session_that_ends_before_the_replica_calls_voids_the_action() -> None:
    kit = taught()
    kit.exchange("r1", report=kit.report(anchors=ANCHORS))
    kit.exchange("g1", [kit.arrived("s1", "a")], kind="gateway")
    kit.clock.advance(0.1)
    kit.exchange("g1", [kit.ended("s1")], kind="gateway")
    assert kit.exchange("r1").actions == []
    state = kit.runtime.state()
    assert state["prefetch"]["issued"] == 0 and state["caps"]["prefetch_suppressed_void"] == 1


def test_gates() -> None:
    assert move(taught(**prefetch(enabled=False))) == []
    assert move(taught(**prefetch(min_probability=1.0))) == []
    kit = Kit(**prefetch(min_predictability=0.9))
    kit.teach("ab")
    kit.teach("ac")
    kit.exchange()
    assert move(kit) == [], "b or c: not predictable enough"
    assert move(taught(**prefetch(max_per_s=0))) == []


def test_limits_per_replica() -> None:
    kit = taught(**prefetch(cooldown_s=5.0, max_per_s=2.0, max_outstanding=2))
    (first,) = move(kit, "a", "s1")
    assert move(kit, "a", "s2") == [], "the same anchor again within the cool-down"
    assert len(move(kit, "b", "s3")) == 1
    kit.clock.advance(30)
    assert move(kit, "a", "s4") == [], "two are outstanding"
    kit.runtime.handle([kit.prefetch_finished(first.action_id, "useful")])
    assert len(move(kit, "a", "s5")) == 1
    suppressed = kit.runtime.state()["caps"]
    assert suppressed["prefetch_suppressed_cooldown"] == 1
    assert suppressed["prefetch_suppressed_outstanding"] == 1


def test_every_action_is_accounted_once() -> None:
    kit = taught(**prefetch(cooldown_s=0.0, max_per_s=100.0))
    (action,) = move(kit)
    kit.runtime.handle([kit.prefetch_finished(action.action_id, "useful")])
    kit.runtime.handle([kit.prefetch_finished(action.action_id, "wasted")])
    kit.runtime.handle([kit.prefetch_finished("unknown", "useful"), kit.prefetch_finished("x", "sideways")])
    state = kit.runtime.state()
    assert state["prefetch"] == {"issued": 1, "useful": 1, "wasted": 0, "refused": 0, "pending": 0}
    assert state["caps"]["prefetch_unmatched"] == 3
    (action,) = move(kit, "a", "s2")
    kit.clock.advance(31)
    kit.exchange("g1", kind="gateway")
    assert kit.runtime.state()["prefetch"]["wasted"] == 1, "its replica is gone"
    (action,) = move(kit, "a", "s3")
    for _ in range(6):
        kit.clock.advance(25)
        kit.exchange("r1", report=kit.report(anchors=ANCHORS, resident={"t": {"b": 10, "c": 10}}))
    assert kit.runtime.state()["prefetch"] == {"issued": 3, "useful": 1, "wasted": 1, "refused": 1, "pending": 0}
    kit.runtime.check_invariants()
