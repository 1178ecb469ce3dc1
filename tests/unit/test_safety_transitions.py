"""Safety rules: who may come after whom in a session, learnt from sessions before."""

from __future__ import annotations

import pytest

from runtime_actor.messages import SessionEnded
from runtime_actor.policies import safety
from tests.unit.policy_kit import view
from tests.unit.test_safety import code, learn, made


@pytest.mark.parametrize(("action", "expected"), [("refuse", "unknown_transition"), ("flag", None), ("off", None)])
def test_an_agent_that_leaves_its_transitions(action: str, expected: str | None) -> None:
    policy = made({"transitions": action, "min_seen": 20})
    for number in range(20):
        learn(policy, "ab", f"taught{number}")
    learn(policy, "a", "s")
    assert policy.admit(view(agent="b")) is None
    assert code(policy.admit(view(agent="c"))) == expected
    assert policy.counters() == ({"refused": 1} if action == "refuse" else {"flagged": 1} if action == "flag" else {})
    policy.observe(SessionEnded("e", 0.0, "t", "t", "s"))
    assert policy.admit(view(agent="c")) is None, "a session's first agent is no surprise"


def test_little_seen_is_no_reason_and_tenants_learn_apart() -> None:
    policy = made({"transitions": "refuse", "min_seen": 20})
    for number in range(25):
        learn(policy, "ab", f"taught{number}", "u")
    learn(policy, "a", "s")
    assert policy.admit(view(agent="c")) is None


def test_after_an_agent_that_new_ones_keep_coming_after_nothing_is_strange() -> None:
    policy = made({"transitions": "refuse", "min_seen": 20})
    for number in range(60):
        learn(policy, ["a", "b"], f"taught{number}")
    learn(policy, "a", "s")
    assert code(policy.admit(view(agent="c"))) == "unknown_transition"
    for number in range(3):
        learn(policy, ["a", f"new{number}"], f"strange{number}")
    assert policy.admit(view(agent="c")) is None, "63 went on, 3 of them to an agent of their own: that asks for 80"
    for number in range(3):
        learn(policy, ["a", f"new{number}"], f"again{number}")
    assert code(policy.admit(view(agent="c"))) == "unknown_transition", "none of them came only once"


def test_what_came_once_is_forgotten_with_its_transition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safety, "MAX_EDGES", 4)
    policy = made({"transitions": "refuse", "min_seen": 5})
    for number in range(40):
        learn(policy, ["a", f"new{number}"], f"taught{number}")
    assert dict(policy._once) == {("t", "a"): 4}
    for number in range(40):
        learn(policy, ["b", "x"], f"others{number}")
        learn(policy, ["b", "y"], f"more{number}")
    learn(policy, ["c", "d", "e"], "last")
    assert dict(policy._once) == {("t", "c"): 1, ("t", "d"): 1}
    policy.forget("t")
    assert not policy._once and not policy._left
