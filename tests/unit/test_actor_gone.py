"""Requests while the runtime actor is gone for good: they are answered, and none waits for it or asks for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runtime_actor.errors import RuntimeUnavailable
from runtime_actor.messages import ExchangeReply, ExchangeRequest
from serve_app.exchange import BATCH_EVENTS, MAX_EVENTS
from tests.simulated_bench import MODEL, SimulatedBench

REQUESTS = 60


class GoneActor:
    """Every call hangs until `released`, or fails at once; counted."""

    def __init__(self, hangs: bool) -> None:
        self._hangs = hangs
        self.calls = 0
        self.released = asyncio.Event()

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        self.calls += 1
        if self._hangs:
            await self.released.wait()
        raise RuntimeUnavailable("gone")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a request must not call {name}")


def body(number: int) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": f"say {number}"}]}


@pytest.mark.parametrize("hangs", [True, False])
def test_requests_are_answered_without_a_call_of_their_own(hangs: bool) -> None:
    async def test() -> None:
        bench, actor = SimulatedBench(), GoneActor(hangs)
        bench.gateway._client = actor
        bench.gateway._exchange._call = actor.exchange
        for number in range(REQUESTS):
            answer = await bench.send("POST", "/v1/chat/completions", json=body(number))
            assert answer.status_code == 200, answer.text
        assert 1 <= actor.calls <= 1 + REQUESTS // 10, "the exchange's own calls, none of a request"
        # What the actor should hear waits, but for what is on its way.
        assert len(bench.gateway._exchange.buffer) >= REQUESTS - BATCH_EVENTS * hangs
        actor.released.set()

    asyncio.run(asyncio.wait_for(test(), 120.0))


def test_what_waits_for_it_is_bounded() -> None:
    async def test() -> None:
        bench, actor = SimulatedBench(), GoneActor(hangs=False)
        exchange = bench.gateway._exchange
        exchange._call = actor.exchange
        for number in range(3):
            await bench.send("POST", "/v1/chat/completions", json=body(number))
        (event, *_) = exchange.buffer.take(1)
        for _ in range(MAX_EVENTS + 100):
            exchange.add(event)
        assert len(exchange.buffer) == MAX_EVENTS
        assert exchange.buffer.dropped > 0
        assert (await bench.send("POST", "/v1/chat/completions", json=body(9))).status_code == 200

    asyncio.run(asyncio.wait_for(test(), 120.0))
