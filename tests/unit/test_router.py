"""What Ray's routing loop demands of a router, without Ray's loop."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from replicas.responses_call import ResponsesCall
from runtime_actor.messages import AVOID_XARG, OWNER_XARG, OwnerTag
from runtime_actor.policies.base import Policy
from runtime_actor.policies.routing import RoutingPolicy
from runtime_actor.settings import PluggedSettings
from serve_app import ranking, routing_state
from serve_app.identity import PREAMBLE_TOKENS
from serve_app.router import AgentRequestRouter, _preamble_tokens
from serve_app.routing_state import RoutingState
from tests.unit.policy_kit import settings


def replica(name: str) -> Any:
    return SimpleNamespace(replica_id=SimpleNamespace(unique_id=name))


def pending(tag: OwnerTag | None = None, number: int = 0) -> Any:
    body = SimpleNamespace(vllm_xargs={OWNER_XARG: tag.encode()} if tag else None)
    return SimpleNamespace(
        args=[body],
        metadata=SimpleNamespace(internal_request_id=f"i{number}"),
        routing_context=SimpleNamespace(should_backoff=False),
    )


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> RoutingState:
    fresh = RoutingState()
    fresh.policies.configure([settings(RoutingPolicy)], 16)
    monkeypatch.setattr(routing_state, "STATE", fresh)
    return fresh


@pytest.fixture
def router() -> AgentRequestRouter:
    made = AgentRequestRouter.__new__(AgentRequestRouter)
    made._use_replica_queue_len_cache = False
    made.initialize_state()
    return made


def names(router: AgentRequestRouter, candidates: list[Any], request: Any) -> list[str]:
    ranks = asyncio.run(router.choose_replicas(candidates, request))
    assert all(len(rank) == 1 for rank in ranks)
    return [rank[0].replica_id.unique_id for rank in ranks]


TAG = OwnerTag("w", "a-1", "s-1")
BOTH = [replica("r1"), replica("r2")]


@pytest.mark.parametrize("tag", [TAG, None])
def test_every_candidate_is_a_rank_and_backoff_is_asked_for(
    router: AgentRequestRouter, state: RoutingState, tag: OwnerTag | None
) -> None:
    request = pending(tag)
    assert sorted(names(router, BOTH, request)) == ["r1", "r2"]
    assert request.routing_context.should_backoff
    assert sorted(names(router, BOTH, None)) == ["r1", "r2"]
    nothing = pending(tag)
    assert names(router, [], nothing) == [] and nothing.routing_context.should_backoff


def test_without_a_fresh_view_it_counts_a_fallback(router: AgentRequestRouter, state: RoutingState) -> None:
    names(router, BOTH, pending(TAG))
    assert (state.ranked, state.fallbacks) == (0, 1)
    state.update_cluster({"replicas": {}, "anchors": {}})
    names(router, BOTH, pending(TAG))
    assert (state.ranked, state.fallbacks) == (1, 1)


def test_a_session_goes_back_to_its_replica(router: AgentRequestRouter, state: RoutingState) -> None:
    state.record("w", "s-1", "a-1", "r2", 900)
    assert all(names(router, BOTH, pending(TAG))[0] == "r2" for _ in range(20))


@pytest.mark.parametrize("is_on", [True, False])
def test_a_replica_whose_engine_says_nothing_is_the_last_choice(
    router: AgentRequestRouter, state: RoutingState, monkeypatch: pytest.MonkeyPatch, is_on: bool
) -> None:
    state.policies.configure([settings(RoutingPolicy, enabled=is_on)], 16)
    state.record("w", "s-1", "a-1", "r2", 900)
    view = {"resident": {}, "running": 1, "waiting": 0, "block_size": 32, "total_blocks": 9, "age_s": 0.0}

    def seen(silent_s: float) -> set[str]:
        both = {"r1": {**view, "silent_s": 0.0}, "r2": {**view, "silent_s": silent_s}}
        state.update_cluster({"replicas": both, "anchors": {}})
        return {names(router, BOTH, pending(TAG))[0] for _ in range(20)}

    assert "r2" in seen(routing_state.STUCK_AFTER_S - 1.0)
    assert seen(routing_state.STUCK_AFTER_S + 1.0) == {"r1"}
    assert names(router, [BOTH[1]], pending(TAG)) == ["r2"], "where no other is left it still gets them"
    received_s = state.view.received_s
    monkeypatch.setattr(state, "_clock", lambda: received_s + routing_state.STUCK_VIEW_S + 1.0)
    assert "r2" in {names(router, BOTH, pending(TAG))[0] for _ in range(20)}, "an old view says nothing"


def test_a_request_has_a_better_place_where_its_own_is_stuck_and_another_isnt(state: RoutingState) -> None:
    view = {"resident": {}, "running": 1, "waiting": 0, "block_size": 32, "total_blocks": 9, "age_s": 0.0}

    def seen(first_s: float, second_s: float) -> bool:
        both = {"r1": {**view, "silent_s": first_s}, "r2": {**view, "silent_s": second_s}}
        state.update_cluster({"replicas": both, "anchors": {}})
        return state.has_better_than("q1")

    assert not seen(60.0, 0.0), "nobody knows where it is"
    state.note_sent("q1", "r1")
    assert seen(60.0, 0.0)
    assert not seen(0.0, 60.0) and not seen(60.0, 60.0)


VIEW = {"resident": {}, "running": 1, "waiting": 0, "block_size": 32, "total_blocks": 9, "silent_s": 0.0}


@dataclass
class Cluster:
    """Two replicas; `ages_s`: of each one's last report."""

    state: RoutingState
    now_s: float

    def later(self, seconds: float, ages_s: dict[str, float]) -> None:
        self.now_s += seconds
        replicas = {name: {**VIEW, "age_s": age_s} for name, age_s in ages_s.items()}
        self.state.update_cluster({"replicas": replicas, "anchors": {}})


@pytest.fixture
def cluster(state: RoutingState, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(state, state._clock())
    monkeypatch.setattr(state, "_clock", lambda: made.now_s)
    return made


def test_a_replica_whose_process_says_nothing_is_the_last_choice_until_it_does(
    router: AgentRequestRouter, state: RoutingState, cluster: Cluster
) -> None:
    state.record("w", "s-1", "a-1", "r2", 900)
    state.note_sent("q1", "r2")
    limit_s = routing_state.STUCK_AFTER_S
    cluster.later(limit_s, {"r1": 0.5, "r2": limit_s})
    assert not state.is_stuck("r2"), "not yet"
    cluster.later(1.0, {"r1": 0.5, "r2": limit_s + 1.0})
    assert state.has_better_than("q1")
    assert {names(router, BOTH, pending(TAG))[0] for _ in range(20)} == {"r1"}
    cluster.later(60.0, {"r1": 0.5})
    assert state.is_stuck("r2") and not state.is_stuck("r1"), "the runtime has given it up"
    cluster.later(1.0, {"r1": 0.5, "r2": 0.1})
    assert not state.is_stuck("r2") and not state.has_better_than("q1")


def test_a_replica_that_takes_requests_or_is_as_silent_as_all_others_is_not_stuck(
    router: AgentRequestRouter, state: RoutingState, cluster: Cluster
) -> None:
    limit_s = routing_state.STUCK_AFTER_S
    cluster.later(limit_s + 1.0, {"r1": limit_s + 1.0, "r2": limit_s + 1.0})
    assert not state.is_stuck("r1") and not state.is_stuck("r2"), "the runtime hears nobody"
    cluster.later(0.0, {"r1": 0.5, "r2": limit_s + 1.0})
    assert state.is_stuck("r2")
    router.on_new_queue_len_info(BOTH[1].replica_id, 1)
    assert not state.is_stuck("r2"), "its reports alone don't come through"
    cluster.later(limit_s + 1.0, {"r1": 0.5, "r2": 2 * limit_s})
    assert state.is_stuck("r2")
    cluster.now_s += routing_state.STUCK_VIEW_S + 1.0
    assert not state.is_stuck("r2"), "an old view says nothing"


def test_it_never_raises(router: AgentRequestRouter, state: RoutingState, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(ranking, "offers", broken)
    monkeypatch.setattr(ranking, "by_load", broken)
    assert sorted(names(router, BOTH, pending(TAG))) == ["r1", "r2"]
    garbage = SimpleNamespace(args=[SimpleNamespace(vllm_xargs={OWNER_XARG: 5})], routing_context=SimpleNamespace())
    assert sorted(names(router, BOTH, garbage)) == ["r1", "r2"]
    assert router._failures == 2


def test_the_switch_restores_stock_order_exactly(router: AgentRequestRouter, state: RoutingState) -> None:
    """Off, the same random numbers give power of two choices' order, whatever is known of the session."""
    state.record("w", "s-1", "a-1", "r2", 900)
    state.update_cluster({"replicas": {}, "anchors": {}})
    state.policies.configure([settings(RoutingPolicy, enabled=False)], 16)
    loads = {"r1": 0, "r2": 0, "r3": 2}
    many = [replica(name) for name in loads]
    for number in range(2):
        router.on_request_routed(pending(TAG, number), many[2].replica_id, None)
    for seed in range(50):
        router._random = random.Random(seed)
        assert names(router, many, pending(TAG)) == ranking.by_load(loads, random.Random(seed))
    assert (state.ranked, state.fallbacks) == (0, 0)
    state.policies.configure([settings(RoutingPolicy)], 16)
    assert all(names(router, many, pending(TAG))[0] == "r2" for _ in range(20))


class Broken(Policy):
    name = "routing"
    seat = "router"

    def order(self, items: Any) -> Any:
        raise RuntimeError("broken")


def test_a_broken_policy_leaves_stock_order_and_is_switched_off(
    router: AgentRequestRouter, state: RoutingState
) -> None:
    broken = PluggedSettings("broken", path=f"{__name__}:Broken")
    state.policies.configure([broken], 3)
    for _ in range(5):
        assert sorted(names(router, BOTH, pending(TAG))) == ["r1", "r2"]
    (row,) = state.policies.as_state(None)
    assert row["switched_off"] and row["failures"] == 3 and not state.policies.is_active
    assert router._failures == 0


def test_a_second_try_goes_elsewhere(router: AgentRequestRouter, state: RoutingState) -> None:
    state.record("w", "s-1", "a-1", "r2", 900)
    first = pending(TAG)
    first.args[0].request_id = "first"
    router.on_request_routed(first, BOTH[1].replica_id, None)
    again = pending(TAG)
    again.args[0].vllm_xargs[AVOID_XARG] = "first"
    assert names(router, BOTH, pending(TAG))[0] == "r2"
    assert names(router, BOTH, again) == ["r1", "r2"]
    again.args[0].vllm_xargs[AVOID_XARG] = "unknown"
    assert names(router, BOTH, again)[0] == "r2"


def test_a_second_try_goes_elsewhere_before_the_first_was_taken(
    router: AgentRequestRouter, state: RoutingState
) -> None:
    """A replica whose process hangs takes nothing, so Ray never tells that the request went there."""
    state.record("w", "s-1", "a-1", "r2", 900)
    first = pending(TAG)
    first.args[0].request_id = "first"
    assert names(router, BOTH, first) == ["r2", "r1"]
    again = pending(TAG)
    again.args[0].request_id = "again"
    again.args[0].vllm_xargs[AVOID_XARG] = "first"
    assert names(router, BOTH, again) == ["r1", "r2"]
    third = pending(TAG)
    third.args[0].vllm_xargs[AVOID_XARG] = "again"
    assert names(router, BOTH, third) == ["r2", "r1"]


def test_load_is_a_set_of_ids(router: AgentRequestRouter, state: RoutingState) -> None:
    r1 = BOTH[0].replica_id
    for number in range(3):
        router.on_request_routed(pending(TAG, number), r1, None)
    router.on_request_completed(r1, "never routed")
    assert router._load("r1") == 3
    for number in range(3):
        router.on_request_completed(r1, f"i{number}")
        router.on_request_completed(r1, f"i{number}")
    assert router._load("r1") == 0
    router.on_request_completed(replica("gone").replica_id, "x")


def test_other_processes_requests_count_for_a_moment(
    router: AgentRequestRouter, state: RoutingState, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr("serve_app.router.time", SimpleNamespace(monotonic=lambda: now_s))
    r1 = BOTH[0].replica_id
    router.on_request_routed(pending(TAG, 0), r1, None)
    router.on_new_queue_len_info(r1, 5)
    assert router._load("r1") == 4
    router.on_request_routed(pending(TAG, 1), r1, None)
    assert router._load("r1") == 5
    now_s += 3
    assert router._load("r1") == 2
    router.on_new_queue_len_info(r1, 0)
    assert router._load("r1") == 2


LONG = "word " * 300


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (SimpleNamespace(messages=[{"role": "system", "content": "x" * 400}, {"role": "user", "content": LONG}]), 100),
        (SimpleNamespace(prompt=LONG), PREAMBLE_TOKENS),
        (SimpleNamespace(prompt=list(range(1000))), PREAMBLE_TOKENS),
        (SimpleNamespace(prompt="short"), 0),
        (ResponsesCall({"instructions": "x" * 400, "input": LONG}), 100),
        (ResponsesCall({"input": [{"role": "system", "content": "x" * 80}, {"role": "user", "content": LONG}]}), 20),
        (SimpleNamespace(), 0),
    ],
)
def test_what_an_agents_requests_begin_with(body: Any, tokens: int) -> None:
    assert _preamble_tokens(SimpleNamespace(args=[body])) == tokens  # type: ignore[arg-type]
