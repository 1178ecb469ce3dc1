"""Which replica comes first, and that a hot one never does."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_actor.errors import MessageError
from runtime_actor.policies.routing import RoutingOptions, RoutingPolicy
from runtime_actor.tables import ReachTables
from serve_app.policies.router_seat import RouterSeat
from serve_app.ranking import RankingInput, by_load, offers
from serve_app.routing_state import (
    ClusterView,
    ReplicaView,
    RoutingState,
    SessionView,
    cluster_view,
)
from tests.unit.policy_kit import settings

WEIGHTS = RoutingOptions()


def rank(request: RankingInput, cluster: ClusterView | None, weights: RoutingOptions) -> list[str]:
    """The policy's order of the replicas; None: without a fresh view."""
    seat = RouterSeat()
    seat.configure([settings(RoutingPolicy, **dataclasses.asdict(weights))], 1)
    return seat.ordered(offers(request, cluster, list(request.loads)))


def view(resident: dict[str, dict[str, int]], anchors: dict[str, int]) -> ClusterView:
    return ClusterView(
        replicas={name: ReplicaView({"w": blocks}, 0, 0, 32, 400, 0.1) for name, blocks in resident.items()},
        anchors={"w": anchors},
        received_s=0.0,
    )


def ask(
    loads: dict[str, int],
    agent: str = "a",
    session: SessionView | None = None,
    tables: ReachTables | None = None,
    chosen_s: dict[str, float] | None = None,
) -> RankingInput:
    return RankingInput("w", agent, loads, chosen_s or {}, session, tables)


def chain_tables() -> ReachTables:
    """a -> b -> a, certain."""
    first = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0], [1, 0, 0]], dtype=np.float32)
    zeros = np.zeros(3, dtype=np.float32)
    return ReachTables(
        "w", ("a", "b", "other"), first, np.zeros((0, 2), np.int16), np.zeros((0, 3), np.float32), 0.1, zeros, zeros
    )


def test_anchor_draws() -> None:
    cluster = view({"r1": {"a": 20}, "r2": {}}, {"a": 640})
    assert rank(ask({"r1": 0, "r2": 0}), cluster, WEIGHTS)[0] == "r1"


def test_session_blocks_without_a_shared_prefix_do_not_draw_strangers() -> None:
    cluster = view({"r1": {"a": 300}, "r2": {}}, {})
    assert rank(ask({"r1": 0, "r2": 0}, chosen_s={"r1": 5.0, "r2": 1.0}), cluster, WEIGHTS)[0] == "r2"


def test_the_second_session_of_an_agent_goes_where_the_first_went() -> None:
    state = RoutingState()
    state.record("w", "s1", "a", "r2", 500)
    places = state.agent_places("w", "a")
    request = RankingInput("w", "a", {"r1": 0, "r2": 0}, {"r2": 9.0}, None, None, 400, places)
    assert rank(request, view({"r1": {}, "r2": {}}, {}), WEIGHTS)[0] == "r2"
    seen = RankingInput("w", "a", {"r1": 0, "r2": 0}, {"r2": 9.0}, None, None, 400)
    assert rank(seen, view({"r1": {}, "r2": {"a": 15}}, {}), WEIGHTS)[0] == "r2"


def test_a_few_shared_tokens_draw_nobody() -> None:
    cluster = view({"r1": {"a": 300}, "r2": {}}, {"a": 32})
    request = RankingInput("w", "a", {"r1": 0, "r2": 0}, {"r1": 9.0}, None, None, 20, {"r1": 300})
    assert rank(request, cluster, WEIGHTS)[0] == "r2"


def test_places_of_agents_age_and_are_bounded() -> None:
    now = [0.0]
    state = RoutingState(clock=lambda: now[0])
    for n in range(20):
        state.record("w", "s", "a", f"r{n}", 10)
    assert len(state.agent_places("w", "a")) == 8
    now[0] = 60.0
    assert state.agent_places("w", "a") == {}
    for n in range(5000):
        state.record("w", "s", f"a{n}", "r1", 10)
    assert len(state._agents) == 4096


def report(state: RoutingState, resident: dict[str, dict[str, int]], age_s: float = 0.0) -> None:
    """What the actor tells the gateway, of replicas with blocks of 32 tokens."""
    replicas = {
        name: {
            "resident": {"w": blocks},
            "running": 0,
            "waiting": 0,
            "block_size": 32,
            "total_blocks": 400,
            "age_s": age_s,
        }
        for name, blocks in resident.items()
    }
    state.update_cluster({"replicas": replicas, "anchors": {"w": {}}})


def test_a_later_report_knows_better_than_the_place_of_an_agent() -> None:
    now = [0.0]
    state = RoutingState(clock=lambda: now[0])
    state.record("w", "s", "a", "r1", 640)
    report(state, {"r1": {}})
    assert state.agent_places("w", "a") == {"r1": 640}, "the prompt may still be in a queue"
    now[0] = 8.0
    report(state, {"r1": {}}, age_s=6.0)
    assert state.agent_places("w", "a") == {"r1": 640}, "the report is older than it is young enough to know"
    report(state, {"r1": {}})
    assert state.agent_places("w", "a") == {}


def test_a_session_has_no_more_than_a_later_report_admits() -> None:
    now = [0.0]
    state = RoutingState(clock=lambda: now[0])
    state.record("w", "s", "a", "r1", 640)
    state.record("w", "s", "b", "gone", 640)
    now[0] = 8.0
    report(state, {"r1": {"a": 10}})
    session = state.session("w", "s")
    assert session is not None and dict(session.places) == {"a": ("r1", 384), "b": ("gone", 640)}
    report(state, {"r1": {}})
    session = state.session("w", "s")
    assert session is not None and session.places["a"] == ("r1", 0)


def test_a_session_that_is_all_there_stays_although_its_anchor_is_elsewhere_too() -> None:
    """The prompt's last block never shows in a report; that must not make a tie with an anchor that may be gone."""
    now = [0.0]
    state = RoutingState(clock=lambda: now[0])
    state.record("w", "s", "a", "r1", 340)
    now[0] = 8.0
    report(state, {"r1": {"a": 10}, "r2": {"a": 10}})
    request = ask({"r1": 0, "r2": 0}, session=state.session("w", "s"), chosen_s={"r1": 9.0, "r2": 1.0})
    cluster = view({"r1": {"a": 10}, "r2": {"a": 10}}, {"a": 320})
    assert rank(request, cluster, WEIGHTS)[0] == "r1"


def test_where_nothing_is_cached_a_session_stays_where_its_anchors_are_computed_ahead() -> None:
    session = SessionView("a", {"a": ("r1", 0)})
    request = ask({"r1": 0, "r2": 0}, agent="b", session=session, chosen_s={"r1": 9.0, "r2": 1.0})
    assert rank(request, view({"r1": {}, "r2": {}}, {}), WEIGHTS)[0] == "r1"
    assert rank(ask({"r1": 1, "r2": 0}, "b", session), view({"r1": {}, "r2": {}}, {}), WEIGHTS)[0] == "r2"


def test_own_history_draws() -> None:
    session = SessionView("a", {"a": ("r2", 900)})
    assert rank(ask({"r1": 0, "r2": 0}, session=session), view({"r1": {}, "r2": {}}, {}), WEIGHTS)[0] == "r2"


def test_the_next_agent_draws() -> None:
    cluster = view({"r1": {}, "r2": {"b": 20}}, {"b": 640})
    request = ask({"r1": 0, "r2": 0}, tables=chain_tables(), chosen_s={"r1": 0.0, "r2": 9.0})
    assert rank(request, cluster, WEIGHTS)[0] == "r2"
    no_reach = RoutingOptions(reach_weight=0.0)
    assert rank(request, cluster, no_reach)[0] == "r1"


def test_load_moves_a_request_away_in_time() -> None:
    cluster = view({"r1": {"a": 20}, "r2": {}}, {"a": 640})
    assert rank(ask({"r1": 1, "r2": 0}), cluster, WEIGHTS)[0] == "r1"
    assert rank(ask({"r1": 3, "r2": 0}), cluster, WEIGHTS)[0] == "r2"


def test_a_hot_replica_loses_whatever_it_holds() -> None:
    cluster = view({"r1": {"a": 3000}, "r2": {}}, {"a": 90_000})
    assert rank(ask({"r1": 4, "r2": 0}), cluster, WEIGHTS) == ["r2", "r1"]


def test_ties_go_round() -> None:
    chosen: dict[str, float] = {}
    served = []
    for turn in range(9):
        first = rank(ask({"r1": 0, "r2": 0, "r3": 0}, chosen_s=chosen), view({}, {}), WEIGHTS)[0]
        chosen[first] = float(turn)
        served.append(first)
    assert sorted(served[:3]) == ["r1", "r2", "r3"] and served[:3] * 3 == served


def test_unknown_replicas_are_ranked_too() -> None:
    assert sorted(rank(ask({"new": 0, "r1": 0}), view({"r1": {}}, {}), WEIGHTS)) == ["new", "r1"]


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 20), min_size=1),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 500)),
)
def test_every_replica_once_and_the_first_is_never_hot(loads: dict[str, int], blocks: dict[str, int]) -> None:
    cluster = view({name: {"a": count} for name, count in blocks.items()}, {"a": 10_000})
    order = rank(ask(loads), cluster, WEIGHTS)
    assert sorted(order) == sorted(loads)
    assert loads[order[0]] - min(loads.values()) < WEIGHTS.hot_requests


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 20), min_size=1), st.integers())
def test_power_of_two(loads: dict[str, int], seed: int) -> None:
    order = by_load(loads, random.Random(seed))
    assert sorted(order) == sorted(loads)
    assert len(order) < 2 or loads[order[0]] <= loads[order[1]]


def test_affinity_holds_without_a_view_unless_hot() -> None:
    session = SessionView("a", {"a": ("r2", 900)})
    assert rank(ask({"r1": 0, "r2": 3}, session=session), None, WEIGHTS) == ["r2", "r1"]
    assert rank(ask({"r1": 0, "r2": 4}, session=session), None, WEIGHTS) == ["r1", "r2"]
    assert rank(ask({"r1": 0, "r2": 0}, agent="b", session=session), None, WEIGHTS) == ["r2", "r1"]
    gone = SessionView("a", {"a": ("r9", 900)})
    assert rank(ask({"r1": 0, "r2": 0}, session=gone), None, WEIGHTS) == ["r1", "r2"]


def test_state_is_bounded_and_ages() -> None:
    now = [0.0]
    state = RoutingState(max_sessions=3, clock=lambda: now[0])
    for n in range(10):
        state.record("w", f"s{n}", "a", "r1", 10)
    assert state.session("w", "s0") is None and state.session("w", "s9") is not None
    for n in range(40):
        state.record("w", "s9", f"a{n}", "r1", 10)
    place = state.session("w", "s9")
    assert place is not None and len(place.places) == 16 and place.current == "a39"
    state.update_cluster({"replicas": {}, "anchors": {}})
    now[0] = 7.0
    assert state.view_age_s == 7.0
    state.end_session("w", "s9")
    assert state.session("w", "s9") is None


@pytest.mark.parametrize(
    "wire", [{}, {"replicas": 5, "anchors": {}}, {"replicas": {"r": {"running": "x"}}, "anchors": {}}]
)
def test_a_damaged_view_keeps_the_former(wire: dict) -> None:
    with pytest.raises(MessageError, match="cluster view"):
        cluster_view(wire, 0.0)
