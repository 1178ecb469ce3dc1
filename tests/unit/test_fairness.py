"""Virtual token counters: shares by weight, no credit for time away, two levels, and what a flood does."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from benchmarks.gateway_queue import play
from benchmarks.queue_scenes import flood
from runtime_actor.errors import ConfigurationError
from runtime_actor.policies.base import RequestRefused, RequestSent, RequestServed, RequestView
from runtime_actor.policies.fairness import MAX_AGENTS, MAX_TENANTS, FairnessPolicy
from tests.unit.policy_kit import ManualClock, settings, view


def made(**options: Any) -> FairnessPolicy:
    return FairnessPolicy(settings(FairnessPolicy, **options), ManualClock())


def serve(policy: FairnessPolicy, request: RequestView, prompt: int = 100, output: int = 10) -> None:
    policy.observe(RequestSent(request, 0.0))
    policy.observe(RequestServed(request, prompt, 0, output, None, 0.0, 0.0))


def contest(policy: FairnessPolicy, waiting: list[RequestView], rounds: int, sizes: dict[str, int]) -> Counter[str]:
    """Serve whoever is first, and let it ask again meanwhile, so that it is never away; each tenant's prompt tokens."""
    for request in waiting:
        assert policy.admit(request) is None
    got: Counter[str] = Counter()
    for _ in range(rounds):
        keys = policy.order(waiting)
        first = min(range(len(waiting)), key=lambda i: keys[i] or ())
        request = waiting.pop(first)
        again = view(request.tenant, request.agent)
        assert policy.admit(again) is None
        waiting.append(again)
        serve(policy, request, sizes[request.tenant])
        got[request.tenant] += sizes[request.tenant]
    return got


def test_equal_service_whatever_the_size_of_requests() -> None:
    got = contest(made(), [view("small"), view("large")], 440, {"small": 100, "large": 1000})
    assert got["small"] + 22 * 20 == pytest.approx(got["large"], rel=0.2)


def test_service_by_weight() -> None:
    got = contest(made(weights={"double": 2.0}), [view("double"), view("one")], 600, {"double": 100, "one": 100})
    assert got["double"] == pytest.approx(2 * got["one"], rel=0.05)


def test_agents_of_a_tenant_share_what_the_tenant_gets() -> None:
    waiting = [view("t", f"a{n}") for n in range(4)] + [view("u", "b")]
    got = contest(made(), waiting, 400, {"t": 100, "u": 100})
    assert got["t"] == pytest.approx(got["u"], rel=0.05), "four agents don't make four tenants"


def test_time_away_earns_no_credit() -> None:
    policy = made()
    back = view("idle")
    policy.admit(back)
    serve(policy, back)
    contest(policy, [view("busy")], 100, {"busy": 100})
    got = contest(policy, [view("idle"), view("busy")], 100, {"idle": 100, "busy": 100})
    assert got["idle"] == pytest.approx(got["busy"], rel=0.1)


def test_one_who_comes_back_goes_before_the_one_who_holds_the_least_counter() -> None:
    policy = made()
    heavy = [view("heavy") for _ in range(8)]
    for request in heavy:
        policy.admit(request)
    for request in heavy[:4]:
        policy.observe(RequestSent(request, 0.0))
    light = view("light")
    policy.admit(light)
    heavy_key, light_key = policy.order([heavy[4], light])
    assert light_key is not None and heavy_key is not None and light_key < heavy_key


def test_one_tenant_cannot_fill_the_queue() -> None:
    policy = made(max_waiting_per_tenant=3)
    requests = [view("heavy") for _ in range(3)]
    assert [policy.admit(request) for request in requests] == [None] * 3
    refusal = policy.admit(view("heavy"))
    assert refusal is not None and (refusal.status, refusal.code) == (429, "tenant_overloaded")
    assert policy.admit(view("light")) is None
    policy.observe(RequestSent(requests[0], 0.0))
    assert policy.admit(view("heavy")) is None


def test_a_refused_or_left_request_leaves_nothing_and_costs_nothing() -> None:
    policy = made()
    one, other = view("t"), view("t")
    policy.admit(one), policy.admit(other)
    policy.observe(RequestRefused(one))
    assert policy.counters()["in_account"] == 1
    assert policy.order([one]) == [None]
    (key,) = policy.order([other])
    assert key is not None and key[0] == 0.0
    policy.observe(RequestRefused(other))
    policy.observe(RequestServed(other, 100, 0, 10, None, 0.0, 0.0))
    assert policy.counters()["in_account"] == 0


def test_flows_are_bounded() -> None:
    policy = made()
    for number in range(MAX_TENANTS + 50):
        request = view(f"t{number}")
        policy.admit(request)
        serve(policy, request)
    assert policy.counters()["tenants"] == MAX_TENANTS
    for number in range(MAX_AGENTS + 50):
        request = view("t", f"a{number}")
        policy.admit(request)
        serve(policy, request)
    assert len(policy._agents["t"]) == MAX_AGENTS, "a tenant that makes up agents"


def test_who_leaves_before_the_first_token_pays_for_the_prompt() -> None:
    """Else whoever gives up early enough, again and again, has the engines for a tenth of what others pay."""
    policy = made()
    patient, hasty = view("patient", prompt_tokens=1000), view("hasty", prompt_tokens=1000)
    for request in (patient, hasty):
        assert policy.admit(request) is None
        policy.observe(RequestSent(request, 0.0))
    policy.observe(RequestServed(patient, 1000, 0, 0, None, 0.0, 1.0))
    policy.observe(RequestServed(hasty, 0, 0, 0, None, 0.0, 1.0))
    waiting = [view("patient"), view("hasty")]
    for request in waiting:
        assert policy.admit(request) is None
    keys = policy.order(waiting)
    assert keys[0] is not None and keys[1] is not None and keys[0][0] == keys[1][0] > 1000.0


@pytest.mark.parametrize("weights", [{"t": 0}, {"t": "much"}, {"t": True}, {"t": float("nan")}])
def test_bad_weights_are_named(weights: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"policies\.fairness\.options\.weights\.t"):
        made(weights=weights)


def test_a_flood_costs_the_other_tenant_no_more_than_a_step_in_the_way() -> None:
    """On the simulated engine: alone 0.13 s, in the flood without the policy a hundred times that."""
    alone = play(flood(1, heavy=False), [])
    stock = play(flood(1), [])
    fair = play(flood(1), [{"name": "fairness"}])
    one_step_s = 512 * 0.0002 + 0.02
    assert fair.quantile("light", 0.99) <= alone.quantile("light", 0.99) + one_step_s
    assert fair.quantile("light", 0.99) <= 2.0 * alone.quantile("light", 0.99)
    assert fair.mean("light") <= 1.15 * alone.mean("light")
    assert stock.quantile("light", 0.99) > 50 * fair.quantile("light", 0.99)
    assert fair.last_s <= stock.last_s + 1.0, "work conserving"
