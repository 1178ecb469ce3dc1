"""Which agents have a row of their own, and what happens when one changes hands."""

from __future__ import annotations

import json

from runtime_actor.tables import OTHER
from runtime_actor.transitions import END, TransitionModel


def test_an_idle_slot_goes_to_a_new_agent_and_its_sessions_to_other() -> None:
    model = TransitionModel(window=4, max_agents=3)
    model.observe("old", "a", 0.0)
    for i in range(6):
        model.observe("new", "b", float(i))
    model.observe("new", "c", 7.0)
    assert set(model.agents) == {"b", "c"}
    assert model.name_of(model.sessions["old"].current) == OTHER
    model.check_invariants()


def test_agents_beyond_the_slots_share_other() -> None:
    model = TransitionModel(max_agents=3)
    for agent in "abcd":
        model.observe("s", agent, 0.0)
    assert model.counts()[("b", OTHER)] == 1
    assert model.repeats() == {OTHER: 1}
    assert model.slot_of("d") == model.slot_of("never seen") == model.other


def team(model: TransitionModel, members: str, sessions: range) -> None:
    for i in sessions:
        for agent in members:
            model.observe(f"{members}{i}", agent, float(i))
        model.end(f"{members}{i}", float(i))


def test_a_new_team_takes_the_slots_of_one_that_is_gone() -> None:
    """Long before the window forgets the old team; and what is learnt of the new one is right from then on."""
    model = TransitionModel(max_agents=4)
    team(model, "abc", range(100))
    model.observe("stays", "a", 0.0)
    team(model, "xyz", range(300))
    assert set(model.agents) == {"x", "y", "z"}
    assert model.observed < model.window
    assert model.name_of(model.sessions["stays"].current) == OTHER
    assert model.probabilities()["x", "y"] > 0.9
    assert model.counts()[(OTHER, END)] >= 100
    model.check_invariants()


def test_agents_that_come_once_take_no_slot() -> None:
    model = TransitionModel(max_agents=4)
    team(model, "abc", range(10))
    for i in range(2000):
        model.observe(f"stranger {i}", f"agent {i}", 100.0)
        if i % 20 == 0:
            team(model, "abc", range(i, i + 1))
    assert set(model.agents) == {"a", "b", "c"}
    assert model.probabilities()["a", "b"] == 1.0
    model.check_invariants()


def test_equally_active_agents_do_not_chase_each_other_out() -> None:
    model = TransitionModel(max_agents=5)
    before = 0
    taken = set()
    for i in range(4000):
        model.observe("s", "abcdefgh"[i % 8], float(i))
        taken.add(model.agents)
        before = max(before, len(taken))
    assert before <= 5, "four agents came first and stay"


def test_a_state_of_the_version_before_is_read() -> None:
    model = TransitionModel(max_agents=4)
    team(model, "abc", range(100))
    state = model.state()
    slots = state.pop("slots")
    window = TransitionModel(max_agents=4)._window
    window.load(state.pop("steps"))
    entries = [[s.before, s.source, s.target, s.gap_code and 1000, s.source_visits, s.target_visits] for s in window]
    old = state | {"version": 2, "names": slots["names"], "free_slots": slots["free"], "entries": entries}
    back = TransitionModel.restore(json.loads(json.dumps(old)))
    assert back.counts() == model.counts() and back.agents == model.agents
    for i in range(3):
        back.observe("new", "xyz"[i], 0.0)
    assert set(back.agents) == {"a", "b", "c"}, "the old ones count as active as their requests in the window"
