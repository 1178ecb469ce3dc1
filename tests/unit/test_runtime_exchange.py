"""What one exchange does: tables, ended sessions, prefetches, the cluster view, pace."""

from __future__ import annotations

import pytest

from runtime_actor.errors import MessageError
from runtime_actor.tables import ReachTables
from tests.unit.runtime_kit import Kit


def test_tables_come_once_a_version() -> None:
    kit = Kit()
    kit.teach("abc")
    reply = kit.exchange()
    tables = ReachTables.from_bytes(reply.tables["t"])
    a, b = tables.index("a"), tables.index("b")
    assert tables.first[a, b] > 0.6
    assert kit.exchange(version=reply.version).tables == {}
    assert "t" in kit.exchange(version=reply.version, epoch=99).tables


def test_tables_wait_for_their_interval() -> None:
    kit = Kit(table_interval_s=10)
    kit.runtime.handle([kit.arrived("s1", "a")])
    first = kit.exchange()
    assert "t" in first.tables
    assert kit.exchange(events=[kit.arrived("s1", "b")], version=first.version).tables == {}
    kit.clock.advance(11)
    assert "t" in kit.exchange(version=first.version).tables


def test_ended_sessions_are_passed_on_until_they_start_again() -> None:
    kit = Kit()
    before = kit.exchange(events=[kit.arrived("s1", "a"), kit.arrived("s2", "a")]).version
    kit.clock.advance(1)
    reply = kit.exchange(events=[kit.ended("s1"), kit.ended("s2")], version=before)
    assert sorted(reply.ended) == [["t", "s1"], ["t", "s2"]]
    assert kit.exchange(version=reply.version).ended == []
    kit.clock.advance(1)
    kit.runtime.handle([kit.arrived("s1", "a")])
    assert kit.exchange(version=before).ended == [["t", "s2"]]


def test_idle_sessions_end() -> None:
    kit = Kit(session_idle_s=60)
    version = kit.exchange(events=[kit.arrived("s1", "a")]).version
    kit.clock.advance(61)
    assert kit.exchange(version=version).ended == [["t", "s1"]]
    assert kit.runtime.predict("t", "s1", 1) is None
    kit.runtime.check_invariants()


def test_a_new_epoch_asks_replicas_for_their_sessions() -> None:
    kit = Kit()
    assert kit.exchange(epoch=0).need_sessions
    assert not kit.exchange(epoch=0, caller="g1", kind="gateway").need_sessions
    row = ["t", "s1", "a", "b", kit.clock()]
    assert not kit.exchange(report=kit.report(sessions=[row])).need_sessions
    kit.runtime.handle([kit.arrived("s2", "a")])
    prediction = kit.runtime.predict("t", "s1", 1)
    assert prediction is not None and prediction["agent"] == "b"
    kit.runtime.check_invariants()


def test_registration_does_not_count_a_step_twice() -> None:
    kit = Kit()
    kit.runtime.handle([kit.arrived("s1", "a")])
    kit.clock.advance(2)
    kit.runtime.handle([kit.arrived("s1", "b")])
    kit.exchange(report=kit.report(sessions=[["t", "s1", "a", "b", kit.clock() + 0.1]]))
    counts = {(row["from"], row["to"]): row["count"] for row in kit.runtime.state()["transitions"]}
    assert counts == {("start", "a"): 1, ("a", "b"): 1}
    kit.clock.advance(5)
    kit.exchange(report=kit.report(sessions=[["t", "s1", "b", "c", kit.clock()]]))
    counts = {(row["from"], row["to"]): row["count"] for row in kit.runtime.state()["transitions"]}
    assert counts[("b", "c")] == 1


def test_gateways_get_the_cluster_and_replicas_do_not() -> None:
    kit = Kit()
    report = kit.report(resident={"t": {"a": 7}}, anchors={"t": {"a": ["d", 200]}}, running=2, waiting=1)
    assert kit.exchange(report=report).cluster is None
    kit.clock.advance(3)
    cluster = kit.exchange(caller="g1", kind="gateway").cluster
    assert cluster == {
        "replicas": {
            "r1": {
                "resident": {"t": {"a": 7}},
                "running": 2,
                "waiting": 1,
                "block_size": 32,
                "total_blocks": 400,
                "age_s": 3.0,
                "silent_s": 0.0,
            }
        },
        "anchors": {"t": {"a": 200}},
    }


def test_silent_replicas_are_dropped_with_their_blocks() -> None:
    kit = Kit(replica_timeout_s=30)
    kit.exchange(report=kit.report(resident={"t": {"a": 7}}))
    kit.clock.advance(31)
    assert kit.exchange(caller="g1", kind="gateway").cluster == {"replicas": {}, "anchors": {}}
    assert kit.runtime.state()["replicas"] == []


def test_bad_reports_are_counted_and_the_events_still_taken() -> None:
    kit = Kit()
    good = kit.report()
    for bad in (
        {**good, "resident": {"t": {"a": -1}}},
        {**good, "resident": {"t": 3}},
        {**good, "anchors": {"t": {"a": ["d"]}}},
        {**good, "sessions": [["t", "s"]]},
        {**good, "block_size": 0},
        {**good, "running": "2"},
        {**good, "t_s": float("nan")},
        {**good, "replica": "another"},
        {"kind": "replica_report"},
    ):
        assert kit.exchange(events=[kit.arrived("s1", "a")], report=bad).epoch == 1
    state = kit.runtime.state()
    assert state["caps"]["reports_invalid"] == 9
    assert state["agents"][0]["requests"] == 9
    assert state["replicas"] == []


def test_an_older_report_does_not_replace_a_newer_one() -> None:
    kit = Kit()
    old = kit.report(running=5)
    kit.clock.advance(1)
    kit.exchange(report=kit.report(running=1))
    kit.exchange(report=old)
    assert kit.runtime.state()["replicas"][0]["running"] == 1


def test_calls_of_all_callers_stay_within_the_limit() -> None:
    kit = Kit(max_calls_per_s=100)
    replies = [kit.exchange(caller=f"r{i}") for i in range(200)]
    assert replies[0].min_gap_s == pytest.approx(0.1)
    assert replies[-1].min_gap_s == pytest.approx(2.0)
    assert 200 / replies[-1].next_call_s <= 100
    kit.clock.advance(1000)
    assert kit.exchange(caller="r0").next_call_s == pytest.approx(0.5)


def test_unknown_caller_kind_is_refused() -> None:
    with pytest.raises(MessageError, match="caller_kind 'client'"):
        Kit().exchange(kind="client")
