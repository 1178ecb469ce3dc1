"""What the actor's policies know of a quiet tenant outlasts another one's flood."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from runtime_actor.messages import RequestArrived, SessionEnded
from runtime_actor.policies import adapters, kv_cache
from runtime_actor.policies.adapters import IDLE_S, AdaptersPolicy
from runtime_actor.policies.kv_cache import KvCachePolicy
from runtime_actor.settings import PolicySettings
from tests.unit.policy_kit import settings


def arrived(tenant: str, session: str, t_s: float = 0.0) -> RequestArrived:
    return RequestArrived("e", t_s, tenant, tenant, session, "a", "", "r", adapter="poet")


def substrate() -> Any:
    return SimpleNamespace(workload_names=(), now_s=0.0, model=lambda _: None)


def test_sessions_that_may_be_prefetched() -> None:
    policy = KvCachePolicy(PolicySettings(), substrate())
    policy.observe(arrived("quiet", "s"))
    for number in range(2 * kv_cache.MAX_CANDIDATES):
        policy.observe(arrived("loud", f"s{number}"))
    assert list(policy._candidates.part("quiet")) == ["s"]
    assert len(policy._candidates) == kv_cache.MAX_CANDIDATES
    assert policy.dropped_candidates == kv_cache.MAX_CANDIDATES + 1
    policy.observe(SessionEnded("e", 0.0, "quiet", "quiet", "s"))
    policy.forget("loud")
    assert len(policy._candidates) == 0 and policy.act() == []


def test_sessions_whose_adapters_are_forecast() -> None:
    there = substrate()
    policy = AdaptersPolicy(settings(AdaptersPolicy), there)
    policy.observe(arrived("quiet", "s"))
    for number in range(adapters.MAX_SESSIONS + 100):
        policy.observe(arrived("loud", f"s{number}", t_s=1.0))
    assert policy._sessions.get("quiet", "s") is not None
    assert policy.counters()["sessions"] == adapters.MAX_SESSIONS
    there.now_s = IDLE_S + 0.5
    assert [s.replica for s in policy.act()] == ["r"]
    assert policy._sessions.get("quiet", "s") is None, "silent for too long"
    assert policy.counters()["sessions"] == adapters.MAX_SESSIONS - 1
    policy.forget("loud")
    assert policy.counters()["sessions"] == 0
