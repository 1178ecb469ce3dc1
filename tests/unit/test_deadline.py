"""Deadlines: who is due first goes first, and what can't be in time is told so at once."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.gateway_queue import play
from benchmarks.queue_scenes import deadlines
from runtime_actor.messages import RequestAccepted
from runtime_actor.policies.base import RequestRefused, RequestSent, RequestServed
from runtime_actor.policies.deadline import MAX_AGENTS, MIN_SERVED, DeadlinePolicy
from tests.unit.gateway_bench import Answer, Bench
from tests.unit.policy_kit import ManualClock, settings, view

SECONDS_PER_TOKEN = 0.01


def made(**options: Any) -> DeadlinePolicy:
    return DeadlinePolicy(settings(DeadlinePolicy, **options), ManualClock())


def teach(policy: DeadlinePolicy, cached: int = 0, agent: str = "a", count: int = MIN_SERVED) -> None:
    for _ in range(count):
        request = view(agent=agent)
        ttft_s = (100 - cached) * SECONDS_PER_TOKEN
        policy.observe(RequestServed(request, 100, cached, 10, ttft_s, 0.0, ttft_s))


def test_order_by_what_is_due() -> None:
    policy = made(default_slo_s=30.0, priority_step_s=10.0)
    requests = [view(), view(ttft_slo_s=1.0), view(ttft_slo_s=1.0, priority=2), view(ttft_slo_s=1.0, arrived_s=990.0)]
    keys = [key[0] for key in policy.order(requests) if key is not None]
    assert keys == [1030.0, 1001.0, 1021.0, 991.0]


def test_nothing_is_refused_on_a_guess() -> None:
    policy = made()
    assert policy.admit(view(ttft_slo_s=0.001)) is None
    teach(policy, count=MIN_SERVED - 1)
    assert policy.admit(view(ttft_slo_s=0.001)) is None


def test_what_cannot_be_in_time_is_refused_early() -> None:
    policy = made(margin=1.2)
    teach(policy)
    assert policy.admit(view(prompt_tokens=100, ttft_slo_s=1.0)) is None
    refusal = policy.admit(view(prompt_tokens=200, ttft_slo_s=1.0))
    assert refusal is not None and (refusal.status, refusal.code) == (429, "deadline_unreachable")
    assert refusal.param == "x-slo-ttft-ms" and refusal.retry_after_s == pytest.approx(2.0)
    assert policy.admit(view(prompt_tokens=10_000)) is None, "a request without a deadline is never refused"
    assert made(shed=False).admit(view(prompt_tokens=200, ttft_slo_s=1.0)) is None
    assert policy.counters() == {"shed": 1, "waiting": 2}


def test_an_agent_that_finds_its_prompt_cached_has_more_time() -> None:
    policy = made()
    teach(policy)
    teach(policy, cached=90, agent="warm", count=20)
    assert policy.admit(view(agent="warm", prompt_tokens=400, ttft_slo_s=1.0)) is None
    assert policy.admit(view(agent="cold", prompt_tokens=400, ttft_slo_s=1.0)) is not None


def test_only_what_is_due_earlier_is_ahead() -> None:
    policy = made()
    teach(policy)
    clock = policy.substrate
    assert isinstance(clock, ManualClock)
    waiting = [view(ttft_slo_s=5.0) for _ in range(6)]
    for request in waiting:
        assert policy.admit(request) is None
    for request in waiting[:3]:
        clock.now_s += 0.5
        policy.observe(RequestSent(request, 0.5))
    assert policy.estimate_s(view(prompt_tokens=100, ttft_slo_s=1.0)) == pytest.approx(1.0)
    assert policy.estimate_s(view(prompt_tokens=100, ttft_slo_s=6.0)) == pytest.approx(1.0 + 3 * 0.5)
    for request in waiting:
        policy.observe(RequestRefused(request))
    assert policy.counters()["waiting"] == 0


def test_agents_are_bounded() -> None:
    policy = made()
    for number in range(MAX_AGENTS + 10):
        teach(policy, agent=f"a{number}", count=1)
    assert len(policy._cached) == MAX_AGENTS


def test_a_tenant_that_makes_up_agents_takes_no_knowledge_of_another() -> None:
    policy = made()
    policy.observe(RequestServed(view("quiet", "a"), 100, 90, 1, 0.1, 0.0, 0.1))
    for number in range(2 * MAX_AGENTS):
        policy.observe(RequestServed(view("loud", f"a{number}"), 100, 0, 1, 0.1, 0.0, 0.1))
    known = policy._cached.get("quiet", "a")
    assert known is not None and known.value == pytest.approx(0.9)


def test_more_deadlines_are_met_in_a_burst() -> None:
    """On the simulated engine, 20 bursts of 24 requests with deadlines of 1.5 s, of 5 s and none."""
    stock = play(deadlines(1), [])
    ordered = play(deadlines(1), [{"name": "deadline"}])
    assert ordered.met >= 1.4 * stock.met
    assert ordered.refused <= 0.05 * ordered.with_slo
    assert ordered.last_s <= stock.last_s + 1.0, "work conserving"


@pytest.mark.parametrize(
    ("value", "word"),
    [("200", "accepted"), ("1e12", "clipped"), ("0.2", "clipped"), ("soon", "rejected"), ("-5", "rejected")],
)
def test_the_header_is_read_while_the_policy_is_on(value: str, word: str) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    for policies, expected in (([{"name": "deadline"}], word), ([], "rejected"), ([{"name": "fairness"}], "rejected")):
        bench = Bench(policies=policies)
        bench.handle.items = [RequestAccepted("r1", 40, 32).to_wire(), Answer()]
        answer = bench.ask("POST", "/v1/chat/completions", json=body, headers={"x-slo-ttft-ms": value})
        assert answer.status_code == 200
        assert f"x-slo-ttft-ms={expected}" in answer.headers["x-agent-runtime-hints"]


def test_another_tenants_agents_make_nobodys_prompts_look_uncached() -> None:
    """Else a client that invents an agent with each request has others' refused."""
    policy = DeadlinePolicy(settings(DeadlinePolicy), ManualClock())

    def served(tenant: str, agent: str, cached: int) -> None:
        request = view(tenant, agent, prompt_tokens=1000)
        policy.observe(RequestServed(request, 1000, cached, 10, 0.5, 0.0, 1.0))

    for _ in range(10):
        served("t", "a", 900)
    mine = view("t", "a", prompt_tokens=1000, ttft_slo_s=1.0)
    before = policy.estimate_s(mine)
    for number in range(MAX_AGENTS + 1):
        served("u", f"invented {number}", 900)
    after = policy.estimate_s(mine)
    assert before is not None and after is not None and after == pytest.approx(before, rel=1e-6)
