"""The wall clock jumps a day ahead or back: everything goes on, nothing is counted twice or for ever."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_actor.runtime import AgentRuntime
from runtime_actor.settings import RuntimeSettings
from tests.unit.runtime_kit import Kit

DAY_S = 86_400.0


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S, 3600.0, -3600.0])
def test_learning_goes_on_after_a_jump(jump_s: float) -> None:
    kit = Kit()
    kit.clock.now_s = 10 * DAY_S
    kit.teach("ab", sessions=10)
    kit.exchange(report=kit.report())
    before = kit.runtime.state()
    kit.clock.advance(jump_s)
    kit.exchange(report=kit.report())
    kit.teach("ab", sessions=10)
    kit.exchange(report=kit.report())
    after = kit.runtime.state()
    counts = [{agent["agent"]: agent["requests"] for agent in state["agents"]} for state in (before, after)]
    assert counts[1] == {agent: 2 * requests for agent, requests in counts[0].items()}
    assert len(after["replicas"]) == 1 and after["replicas"][0]["age_s"] == 0.0
    (row,) = [row for row in after["transitions"] if len({row["from"], row["to"]}) == 2 and row["from"] == "a"]
    assert row["probability"] > 0.5
    kit.runtime.check_invariants()


def test_an_event_of_a_clock_that_runs_ahead_counts_as_now() -> None:
    """Another machine's clock: its sessions must not outlive everybody else's."""
    kit = Kit()
    kit.exchange(events=[kit.arrived("s1", "a", t_s=kit.clock() + DAY_S)], report=kit.report())
    record = kit.runtime.shared.session("t", "s1")
    assert record is not None and record.last_seen_s == kit.clock()


def test_a_checkpoint_from_the_future_is_used() -> None:
    """Written before the clock was put right."""
    kit = Kit()
    kit.clock.now_s = 10 * DAY_S
    kit.teach("ab", sessions=3)
    dump = kit.runtime.dump()
    kit.clock.advance(-2 * DAY_S)
    restored = AgentRuntime.restore(dump, RuntimeSettings(), 0, kit.clock, epoch=1)
    assert restored.epoch > kit.runtime.epoch, "the epoch grows whatever the clock says"
    assert restored.state()["agents"] == kit.runtime.state()["agents"]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-2 * DAY_S, 2 * DAY_S), max_size=12))
def test_any_jumps(jumps: list[float]) -> None:
    kit = Kit()
    kit.clock.now_s = 100 * DAY_S
    for number, jump_s in enumerate(jumps):
        kit.clock.advance(jump_s)
        events = [kit.arrived(f"s{number % 3}", "ab"[number % 2]), kit.finished(f"s{number % 3}", "ab"[number % 2])]
        reply = kit.exchange(events=events, report=kit.report())
        assert reply.next_call_s < 60.0 and reply.min_gap_s < 60.0
    state = kit.runtime.state()
    assert sum(agent["requests"] for agent in state["agents"]) == len(jumps)
    kit.runtime.check_invariants()
