"""What one tenant may use, and that another one isn't touched by it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_actor.messages import RequestAccepted
from serve_app.config import Quota
from serve_app.http.errors import ApiError
from serve_app.quotas import MAX_TENANTS, RUNTIME_BURST, TenantQuotas
from serve_app.tenants import Tenants
from tests.unit.gateway_bench import CHUNK, DONE, KEYS, Answer, Bench


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Told(Answer):
    """An answer of 7 tokens."""

    def model_dump(self) -> dict[str, Any]:
        return {"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 7, "prompt_tokens_details": None}}


def quotas(clock: Clock, **limits: int) -> TenantQuotas:
    own = Quota(**limits)
    return TenantQuotas(lambda tenant: own if tenant == "t" else Quota(), clock)


def refusal(call: Any, *arguments: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        call(*arguments)
    assert caught.value.status == 429 and caught.value.code == "rate_limit_exceeded"
    return caught.value


def test_requests_a_minute_fill_again_with_time() -> None:
    clock = Clock()
    used = quotas(clock, requests_per_minute=6)
    for _ in range(6):
        used.count_request("t")
    error = refusal(used.count_request, "t")
    assert error.headers["retry-after"] == "10" and "requests_per_minute" in error.message and "6" in error.message
    clock.now_s += 9.9
    assert refusal(used.count_request, "t").headers["retry-after"] == "1"
    clock.now_s += 0.2
    used.count_request("t")
    for _ in range(100):
        used.count_request("u")


def test_tokens_are_taken_afterwards_and_debts_are_waited_for() -> None:
    clock = Clock()
    used = quotas(clock, tokens_per_minute=60)
    used.count_request("t")
    used.take_tokens("t", 90)
    assert refusal(used.count_request, "t").headers["retry-after"] == "31"
    clock.now_s += 31.0
    used.count_request("t")


def test_places_are_given_back() -> None:
    used = quotas(Clock(), max_in_flight=1)
    used.enter("t")
    refusal(used.enter, "t")
    used.enter("u")
    used.leave("t")
    used.enter("t")
    assert used.view("t")["refused"] == {"max_in_flight": 1}


def test_another_quota_holds_at_once_and_forgives_nothing() -> None:
    clock, limits = Clock(), {"t": Quota(requests_per_minute=2)}
    used = TenantQuotas(lambda tenant: limits[tenant], clock)
    used.count_request("t")
    used.count_request("t")
    limits["t"] = Quota(requests_per_minute=600)
    refusal(used.count_request, "t")
    clock.now_s += 1.0
    used.count_request("t")
    limits["t"] = Quota()
    for _ in range(1000):
        used.count_request("t")


def test_a_clock_that_goes_back_gives_nothing_and_takes_nothing() -> None:
    clock = Clock()
    used = quotas(clock, requests_per_minute=2)
    used.count_request("t")
    clock.now_s -= 50.0
    used.count_request("t")
    refusal(used.count_request, "t")


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(1, 3)), max_size=60), st.integers(1, 30))
def test_no_minute_sees_more_than_a_bucket_and_its_refill(steps: list[tuple[float, int]], limit: int) -> None:
    clock = Clock()
    used = quotas(clock, requests_per_minute=limit)
    passed = 0
    for gap_s, requests in steps:
        clock.now_s += gap_s
        for _ in range(requests):
            try:
                used.count_request("t")
                passed += 1
            except ApiError as error:
                assert int(error.headers["retry-after"]) >= 1
    assert passed <= limit + (clock.now_s - 100.0) * limit / 60.0 + 1e-6


def test_tenants_are_remembered_within_a_bound() -> None:
    used = TenantQuotas(lambda _: Quota(requests_per_minute=5), Clock())
    used.enter("busy")
    for number in range(MAX_TENANTS + 10):
        used.count_request(f"t{number}")
    assert len(used) == MAX_TENANTS
    used.leave("busy")
    assert used.view("busy")["in_flight"] == 0


# --- over HTTP ---------------------------------------------------------------------------------------


def bench(**limits: int) -> Bench:
    made = Bench()
    config = made.gateway._settings.config.gateway.model_copy(update={"quotas": {"one": Quota(**limits)}})
    tenants = Tenants(config)
    made.gateway._tenants = tenants
    made.gateway._quotas._quota_of = tenants.quota
    made.handle.items = [RequestAccepted("r1", 40, 32).to_wire(), Told()]
    return made


def limited(answer: httpx.Response, name: str) -> bool:
    if answer.status_code == 200:
        return False
    assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and name in error["message"]
    assert error["code"] == "rate_limit_exceeded" and error["type"] == "rate_limit_error"
    return True


def test_a_tenants_requests_a_minute_over_http() -> None:
    made = bench(requests_per_minute=2)
    assert [limited(made.chat(), "requests_per_minute") for _ in range(4)] == [False, False, True, True]
    body = {"messages": [{"role": "user", "content": "hi"}]}
    assert made.ask("POST", "/v1/chat/completions", "ops", json=body).status_code == 200
    view = made.ask("GET", "/runtime/state").json()["gateway"]
    assert view["tenant"]["refused"] == {"requests_per_minute": 2} and view["in_flight"] == 0
    assert len(made.handle.requests) == 3, "what is refused reaches no replica"


def test_a_refused_request_counts_too() -> None:
    made = bench(requests_per_minute=1)
    assert made.ask("POST", "/v1/chat/completions", content=b"{").status_code == 400
    assert limited(made.chat(), "requests_per_minute")


def test_tokens_of_prompt_and_answer_count() -> None:
    made = bench(tokens_per_minute=47)
    assert made.chat().status_code == 200
    assert limited(made.chat(), "tokens_per_minute")


def test_a_streams_tokens_count_without_usage() -> None:
    made = bench(tokens_per_minute=43)
    made.handle.items = [RequestAccepted("r1", 40, 32).to_wire(), CHUNK, CHUNK, CHUNK, DONE]
    assert made.chat(stream=True).status_code == 200
    assert made.gateway._quotas._uses["one"].tokens.level == pytest.approx(0.0, abs=0.5)


LONG = [{"role": "user", "content": "x" * 400}]


def test_who_leaves_before_the_answer_has_used_the_prompt() -> None:
    """Else prompts are computed for nothing by whoever hangs up in time, again and again."""
    made = bench(tokens_per_minute=1000)
    made.handle.items = ["stall"]

    async def main() -> None:
        transport = httpx.ASGITransport(made.asgi)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            headers = {"authorization": f"Bearer {KEYS['one']}"}
            asked = client.post("/v1/chat/completions", headers=headers, json={"messages": LONG})
            asking = asyncio.create_task(asked)
            async with asyncio.timeout(20.0):
                while not made.handle.requests:
                    await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait({asking})

    asyncio.run(main())
    assert made.handle.cancelled == 1 and made.gateway._admission.in_flight == 0
    assert made.gateway._quotas._uses["one"].tokens.level == pytest.approx(896.0, abs=2.0)


def test_an_answer_that_took_too_long_has_used_the_prompt() -> None:
    made = Bench(quota={"tokens_per_minute": 1000}, request_timeout_s=0.05)
    made.handle.items = ["stall"]
    assert made.chat(messages=LONG).status_code == 504
    assert made.gateway._quotas._uses["one"].tokens.level == pytest.approx(896.0, abs=2.0)


def test_waiting_for_a_turn_is_part_of_a_requests_time_and_costs_no_tokens() -> None:
    made = Bench(policies=[{"name": "fairness"}], quota={"tokens_per_minute": 1000}, request_timeout_s=0.05)
    assert made.gateway._policies.turnstile is not None
    made.gateway._policies.turnstile.places = 0
    for stream in (False, True):
        assert made.chat(messages=LONG, stream=stream).status_code == 504
    assert made.gateway._admission.in_flight == made.gateway._policies.turnstile.waiting == 0
    assert not made.handle.requests
    assert made.gateway._quotas._uses["one"].tokens.level == 1000.0


def test_one_tenant_cannot_take_all_places() -> None:
    made = bench(max_in_flight=1)
    slot = made.gateway._admission.admit("one")
    assert limited(made.chat(), "max_in_flight")
    body = {"messages": [{"role": "user", "content": "hi"}]}
    assert made.ask("POST", "/v1/chat/completions", "ops", json=body).status_code == 200
    slot.free()
    assert made.chat().status_code == 200


def test_without_a_quota_several_tenants_get_half_the_places_each() -> None:
    made = Bench()
    assert made.gateway._tenants.quota("one").max_in_flight == 1


def test_runtime_calls_of_a_tenant_are_limited_and_an_operators_are_not() -> None:
    made = bench()
    made.gateway._quotas._clock = Clock()
    answers = [made.ask("GET", "/runtime/state").status_code for _ in range(int(RUNTIME_BURST) + 2)]
    assert answers.count(429) == 2
    assert made.ask("GET", "/runtime/state", "ops").status_code == 200
