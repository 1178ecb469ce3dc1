"""Events: duplicates, order, tenants, caps, forecasts, what the state shows."""

from __future__ import annotations

import json

import pytest

from runtime_actor.errors import ConfigurationError
from tests.unit.runtime_kit import Kit


def transitions(kit: Kit, tenant: str | None = None) -> dict[tuple[str, str], int]:
    return {(row["from"], row["to"]): row["count"] for row in kit.runtime.state(tenant)["transitions"]}


def test_state_has_the_named_parts_and_is_json() -> None:
    kit = Kit()
    kit.runtime.handle([kit.arrived("s1", "a"), kit.finished("s1", "a")])
    kit.exchange(report=kit.report(resident={"t": {"a": 5}}))
    state = json.loads(json.dumps(kit.runtime.state("t"), allow_nan=False))
    agent = state["agents"][0]
    assert (agent["agent"], agent["label"], agent["tenant"]) == ("a", "label-a", "t")
    assert (agent["requests"], agent["prompt_tokens"], agent["cached_tokens"]) == (1, 100, 40)
    assert agent["finish_reasons"] == {"stop": 1} and agent["ttft_mean_s"] == pytest.approx(0.2)
    assert state["replicas"][0]["resident"] == {"a": 5}
    assert state["replicas"][0]["hit_rate"] == pytest.approx(0.4)
    assert state["policies"][0]["name"] == "kv_cache" and state["policies"][0]["decisions"] >= 1
    assert {"issued", "useful", "wasted", "refused"} <= set(state["prefetch"])
    assert state["version"] > 1


def test_repeated_events_count_once() -> None:
    kit = Kit()
    event = kit.arrived("s1", "a")
    assert kit.runtime.handle([event, event]) == 1
    assert kit.runtime.handle([event]) == 0
    state = kit.runtime.state()
    assert state["agents"][0]["requests"] == 1
    assert state["caps"]["events_duplicate"] == 2


def test_events_of_one_call_are_taken_in_order_of_time() -> None:
    kit = Kit()
    events = [kit.arrived("s1", agent, t_s=1000.0 - 3 + i) for i, agent in enumerate("abc")]
    kit.runtime.handle(events[::-1])
    assert transitions(kit) == {("start", "a"): 1, ("a", "b"): 1, ("b", "c"): 1}


def test_a_late_event_is_counted_but_is_no_step() -> None:
    kit = Kit()
    kit.runtime.handle([kit.arrived("s1", "a", t_s=990.0), kit.arrived("s1", "c", t_s=992.0)])
    kit.runtime.handle([kit.arrived("s1", "b", t_s=991.0)])
    assert transitions(kit) == {("start", "a"): 1, ("a", "c"): 1}
    state = kit.runtime.state()
    assert {a["agent"]: a["requests"] for a in state["agents"]} == {"a": 1, "b": 1, "c": 1}
    assert state["workloads"][0]["late_events"] == 1


def test_an_end_that_comes_late_does_not_end_what_went_on() -> None:
    kit = Kit()
    kit.runtime.handle([kit.arrived("s1", "a", t_s=990.0)])
    kit.runtime.handle([kit.arrived("s1", "b", t_s=995.0)])
    kit.runtime.handle([kit.ended("s1", t_s=992.0)])
    assert kit.runtime.predict("t", "s1", 1) is not None
    kit.runtime.handle([kit.ended("s1", t_s=996.0)])
    assert kit.runtime.predict("t", "s1", 1) is None
    kit.runtime.handle([kit.arrived("s1", "c", t_s=995.5)])
    assert kit.runtime.predict("t", "s1", 1) is None, "a request from before the end came after it"
    kit.runtime.handle([kit.arrived("s1", "c", t_s=997.0)])
    assert kit.runtime.predict("t", "s1", 1) is not None
    kit.runtime.check_invariants()


def test_repeats_are_no_transitions() -> None:
    kit = Kit()
    kit.runtime.handle([kit.arrived("s1", agent, t_s=990.0 + i) for i, agent in enumerate("aaab")])
    assert transitions(kit) == {("start", "a"): 1, ("a", "b"): 1}
    assert kit.runtime.state()["workloads"][0]["repeats"] == {"a": 2}


def test_a_time_ahead_of_the_clock_becomes_now() -> None:
    kit = Kit()
    kit.runtime.handle([kit.arrived("s1", "a", t_s=9e9)])
    kit.clock.advance(10)
    kit.runtime.handle([kit.arrived("s1", "b")])
    assert ("a", "b") in transitions(kit)


def test_tenants_see_only_their_own() -> None:
    kit = Kit()
    kit.teach("ab", tenant="t1")
    kit.teach("xy", tenant="t2")
    kit.runtime.handle([kit.arrived("s1", "a", "t1"), kit.arrived("s1", "x", "t2")])
    kit.exchange(report=kit.report(resident={"t1": {"a": 3}, "t2": {"x": 4}}, anchors={"t2": {"x": ["d", 9]}}))
    text = json.dumps(kit.runtime.state("t1"))
    state = kit.runtime.state("t1")
    assert {a["agent"] for a in state["agents"]} == {"a", "b"}
    assert state["replicas"][0]["resident"] == {"a": 3}
    assert '"x"' not in text and "t2" not in text
    assert kit.runtime.state("nobody")["agents"] == []
    assert kit.runtime.predict("t1", "s1", 1)["agent"] == "a"  # type: ignore[index]
    assert kit.runtime.predict("t2", "s1", 1)["agent"] == "x"  # type: ignore[index]
    assert kit.runtime.predict("t3", "s1", 1) is None


def test_a_tenant_cannot_write_into_anothers_workload() -> None:
    kit = Kit()
    kit.runtime.handle([kit.arrived("s1", "a", "t1")])
    forged = {**kit.ended("s1", "t2"), "workload": "t1"}
    kit.runtime.handle([forged, {**kit.arrived("s1", "b", "t2"), "workload": "t1"}])
    assert kit.runtime.predict("t1", "s1", 1) is not None
    state = kit.runtime.state()
    assert state["caps"]["events_foreign_tenant"] == 2
    assert [a["agent"] for a in state["agents"]] == ["a"]


@pytest.mark.parametrize(
    "change",
    [
        {"prompt_tokens": -1},
        {"prompt_tokens": 10, "cached_tokens": 11},
        {"prompt_tokens": 10**400},
        {"e2e_s": float("inf")},
        {"e2e_s": 10**400},
        {"t_s": float("nan")},
        {"agent": "x" * 300},
        {"session": None},
        {"kind": "unheard_of"},
        {"protocol": 2},
    ],
)
def test_nonsense_is_counted_and_changes_nothing(change: dict) -> None:
    kit = Kit()
    assert kit.runtime.handle([{**kit.finished("s1", "a"), **change}, None, "text", 3]) == 0
    state = kit.runtime.state()
    assert state["agents"] == [] and state["caps"]["events_invalid"] == 4


def test_caps_hold_and_are_counted() -> None:
    kit = Kit(max_workloads=2, max_sessions=3, max_known_agents=4, max_event_ids=16, max_anchors=2)
    for tenant in ("t1", "t2", "t3"):
        for number in range(10):
            kit.clock.advance(1)
            kit.runtime.handle([kit.arrived(f"s{number}", f"agent{number}", tenant), kit.anchor(f"a{number}", tenant)])
    state = kit.runtime.state()
    assert [w["tenant"] for w in state["workloads"]] == ["t2", "t3"]
    assert all(w["live_sessions"] == 3 for w in state["workloads"])
    assert state["caps"]["workloads_dropped"] == 1
    assert state["caps"]["anchors_dropped"] > 0
    assert state["workloads"][0]["sessions_dropped"] == 7
    kit.runtime.check_invariants()


def test_forecasts_are_compared_with_what_comes() -> None:
    kit = Kit()
    kit.teach("abc", sessions=30)
    before = kit.runtime.state()["forecasts"]
    for agent in "abc":
        kit.clock.advance(1)
        kit.runtime.handle([kit.arrived("s1", agent)])
    after = kit.runtime.state()["forecasts"]
    assert after["right"] == before["right"] + 2
    kit.clock.advance(1)
    kit.runtime.handle([kit.arrived("s2", "a")])
    kit.clock.advance(1)
    kit.runtime.handle([kit.arrived("s2", "c")])
    assert kit.runtime.state()["forecasts"]["wrong"] == after["wrong"] + 1


def test_predict_is_a_ranked_distribution() -> None:
    kit = Kit()
    kit.teach("abc")
    kit.runtime.handle([kit.arrived("s1", "a")])
    near, far = kit.runtime.predict("t", "s1", 1), kit.runtime.predict("t", "s1", 3)
    assert near is not None and far is not None
    assert near["forecast"][0]["agent"] == "b" and near["forecast"][0]["probability"] > 0.8
    by_agent = {row["agent"]: row["probability"] for row in far["forecast"]}
    assert by_agent["c"] > 0.7
    assert all(0.0 <= row["probability"] <= 1.0 for row in near["forecast"] + far["forecast"])
    for horizon in (0, -1, 65, True, "3", 1.5):
        with pytest.raises(ConfigurationError, match="horizon"):
            kit.runtime.predict("t", "s1", horizon)  # type: ignore[arg-type]


def test_score_follows_reach_and_ends_with_the_session() -> None:
    kit = Kit()
    kit.teach("abc")
    kit.exchange(events=[kit.arrived("s1", "a")])
    likely, unlikely = kit.runtime.score("t", "b", "s1"), kit.runtime.score("t", "a", "s1")
    assert likely is not None and unlikely is not None and likely > unlikely
    kit.runtime.handle([kit.ended("s1")])
    assert kit.runtime.score("t", "b", "s1") == 0.0
    assert kit.runtime.score("t", "b", "unknown") is None
