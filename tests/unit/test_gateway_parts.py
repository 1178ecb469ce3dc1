"""Admission, tenants, the event buffer and the exchange with the actor."""

from __future__ import annotations

import asyncio
import gc
import hashlib
from typing import Any

import pytest

from runtime_actor.errors import MessageError, RuntimeUnavailable
from runtime_actor.messages import ExchangeReply, ExchangeRequest, SessionEnded
from serve_app.config import ApiKey, GatewayConfig, Quota
from serve_app.exchange import GatewayExchange
from serve_app.flight import Admission
from serve_app.http.errors import ApiError
from serve_app.quotas import TenantQuotas
from serve_app.routing_state import RoutingState
from serve_app.tenants import Tenants


def ended(name: str) -> SessionEnded:
    return SessionEnded(name, 0.0, "t", "t", "s")


def test_admission_refuses_and_recovers() -> None:
    admission = Admission(2, 3, TenantQuotas(lambda _: Quota()))
    first, second = admission.admit("t"), admission.admit("u")
    with pytest.raises(ApiError) as caught:
        admission.admit("t")
    assert caught.value.status == 429 and caught.value.headers["retry-after"] == "3"
    first.free()
    first.free()
    assert admission.in_flight == 1
    admission.admit("t").free()
    del second
    gc.collect()
    assert admission.in_flight == 0


def test_tenants() -> None:
    def key(tenant: str, secret: str, operator: bool = False) -> ApiKey:
        return ApiKey(tenant=tenant, sha256=hashlib.sha256(secret.encode()).hexdigest(), operator=operator)

    keys = [key("one", "k1"), key("two", "k2"), key("ops", "k3", operator=True)]
    tenants = Tenants(GatewayConfig(api_keys=keys))
    assert tenants.caller({"authorization": "Bearer k1"}, "10.0.0.1").tenant == "one"
    assert tenants.caller({"authorization": "bearer  k2 "}, None).tenant == "two"
    assert tenants.caller({"x-api-key": "k3"}, None).is_operator
    assert not tenants.caller({"x-api-key": "k1"}, "127.0.0.1").is_operator
    for headers in ({}, {"authorization": "Bearer nope"}, {"authorization": "Basic k1"}, {"authorization": "Bearer "}):
        with pytest.raises(ApiError) as caught:
            tenants.caller(headers, "127.0.0.1")
        assert caught.value.status == 401


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "localhost:8000", "[::1]:8000", "[::1]"])
def test_without_keys_this_machine_operates(host: str) -> None:
    assert Tenants(GatewayConfig()).caller({"host": host}, "127.0.0.1").is_operator
    assert not Tenants(GatewayConfig()).caller({"host": host}, "10.0.0.9").is_operator
    assert Tenants(GatewayConfig()).caller({"authorization": "Bearer x"}, None).tenant == "default"


@pytest.mark.parametrize("host", ["evil.example:8000", "", "10.0.0.1"])
def test_a_name_that_was_made_to_point_here_does_not_operate(host: str) -> None:
    assert not Tenants(GatewayConfig()).caller({"host": host}, "127.0.0.1").is_operator


class FakeActor:
    def __init__(self) -> None:
        self.requests: list[ExchangeRequest] = []
        self.error: Exception | None = None
        self.cluster: dict[str, Any] | None = None

    async def __call__(self, request: ExchangeRequest) -> ExchangeReply:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        return ExchangeReply(7, 3, {}, [], [["w", "s"]], 0.01, cluster=self.cluster)


def test_flush_delivers_and_applies() -> None:
    async def main() -> None:
        actor, routing = FakeActor(), RoutingState()
        actor.cluster = {"replicas": {}, "anchors": {"w": {"a": 64}}}
        exchange = GatewayExchange("g", actor, routing)
        routing.record("w", "s", "a", "r1", 5)
        exchange.add(ended("1"))
        await exchange.flush()
        assert [event["event_id"] for event in actor.requests[0].events] == ["1"]
        assert routing.view.anchors == {"w": {"a": 64}}
        assert routing.session("w", "s") is None
        exchange.add(ended("2"))
        await exchange.flush()
        assert (actor.requests[1].epoch, actor.requests[1].version) == (7, 3)

    asyncio.run(main())


def test_events_survive_an_absent_actor() -> None:
    async def main() -> None:
        actor = FakeActor()
        exchange = GatewayExchange("g", actor, RoutingState())
        exchange.add(ended("1"))
        actor.error = RuntimeUnavailable("away")
        with pytest.raises(RuntimeUnavailable):
            await exchange.flush()
        actor.error = None
        await exchange.flush()
        assert [event["event_id"] for event in actor.requests[-1].events] == ["1"]

    asyncio.run(main())


def test_events_that_the_actor_refuses_are_not_sent_for_ever() -> None:
    async def main() -> None:
        actor = FakeActor()
        exchange = GatewayExchange("g", actor, RoutingState())
        exchange.add(ended("1"))
        actor.error = MessageError("no")
        with pytest.raises(RuntimeUnavailable):
            await exchange.flush()
        actor.error = None
        await exchange.flush()
        assert len(exchange.buffer) == 0 and len(actor.requests) == 1

    asyncio.run(main())


def test_the_loop_wakes_for_news() -> None:
    async def main() -> None:
        actor = FakeActor()
        exchange = GatewayExchange("g", actor, RoutingState())
        exchange.start()
        exchange.start()
        while not actor.requests:
            await asyncio.sleep(0)
        exchange.add(ended("1"))
        async with asyncio.timeout(5):
            while not any(request.events for request in actor.requests):
                await asyncio.sleep(0.01)
        assert exchange.age_s < 5

    asyncio.run(main())
