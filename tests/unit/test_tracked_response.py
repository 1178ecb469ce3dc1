"""A response's first item, and its end, told once in every way a response can end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace

import pytest

from replicas.requests import CURRENT_REQUEST, RequestLedger, RequestRecord, owner_of
from replicas.tracked_response import tracked_response
from runtime_actor.messages import OWNER_XARG, WARMUP, OwnerTag, RequestAccepted, RequestFinished
from tests.unit.replica_fakes import FakeClock

TAG = OwnerTag("w", "a-1", "s-1")
REQUEST = SimpleNamespace(vllm_xargs={OWNER_XARG: TAG.encode()})


class Engine:
    """Yields `items` after its first output; `gate` holds the rest back."""

    def __init__(self, items: list, *, error: Exception | None = None, output: bool = True) -> None:
        self.clock = FakeClock()
        self.finished: list[RequestFinished | None] = []
        self.accepted: list[RequestRecord] = []
        self.gate = asyncio.Event()
        self.closed = False
        self.items, self.error, self.output = items, error, output
        self.ledger = RequestLedger(
            replica="r1",
            clock=self.clock,
            next_event_id=lambda: "e",
            on_begin=lambda record: None,
            on_accepted=self.accepted.append,
            on_finish=lambda record, event: self.finished.append(event),
        )

    async def open(self) -> AsyncGenerator:
        return self.stream()

    async def stream(self) -> AsyncGenerator:
        try:
            record = CURRENT_REQUEST.get()
            assert record is not None
            self.clock.now_s += 0.5
            if self.output:
                self.ledger.prompt_seen(record, prompt_tokens=64, cached_tokens=32)
            await self.gate.wait()
            if self.error is not None:
                raise self.error
            for item in self.items:
                self.ledger.tokens_seen(record, new_tokens=1, finish_reason="stop")
                yield item
        finally:
            self.closed = True

    def respond(self, request: object = REQUEST) -> AsyncGenerator:
        return tracked_response(self.open, request, self.ledger, "r1")

    @property
    def only_end(self) -> RequestFinished:
        (event,) = self.finished
        assert event is not None
        return event


def test_the_accepted_item_comes_before_the_engine_is_done() -> None:
    async def scenario() -> None:
        engine = Engine(["x", "y"])
        response = engine.respond()
        first = RequestAccepted.from_wire(await anext(response))
        assert first == RequestAccepted("r1", 64, 32)
        assert engine.ledger.num_in_flight == 1 and not engine.finished
        engine.gate.set()
        assert [item async for item in response] == ["x", "y"]
        end = engine.only_end
        assert (end.prompt_tokens, end.cached_tokens, end.completion_tokens) == (64, 32, 2)
        assert (end.finish_reason, end.ttft_s, end.e2e_s) == ("stop", 0.5, 0.5)
        assert (end.workload, end.session, end.agent) == ("w", "s-1", "a-1")
        assert engine.ledger.num_in_flight == 0

    asyncio.run(scenario())


def test_a_refusal_passes_as_it_is_and_leaves_no_event() -> None:
    async def scenario() -> None:
        engine = Engine([{"error": "bad"}], output=False)
        engine.gate.set()
        engine.items = ["refused"]
        assert [item async for item in engine.respond()] == ["refused"]
        assert engine.finished == [None] and engine.ledger.num_in_flight == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["close", "cancel"])
def test_a_client_that_leaves_ends_the_request_in_the_engine(how: str) -> None:
    async def scenario() -> None:
        engine = Engine(["x"])
        response = engine.respond()
        await anext(response)
        if how == "close":
            await response.aclose()
        else:
            task = asyncio.ensure_future(anext(response))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert engine.closed
        assert engine.only_end.finish_reason == "abort"

    asyncio.run(scenario())


def test_a_client_that_leaves_before_acceptance_is_an_abort_too() -> None:
    async def scenario() -> None:
        engine = Engine(["x"], output=False)
        task = asyncio.ensure_future(anext(engine.respond()))
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.closed
        end = engine.only_end
        assert (end.finish_reason, end.ttft_s, end.prompt_tokens) == ("abort", None, 0)

    asyncio.run(scenario())


def test_an_engine_error_after_acceptance_is_an_error() -> None:
    async def scenario() -> None:
        engine = Engine([], error=RuntimeError("engine"))
        response = engine.respond()
        await anext(response)
        engine.gate.set()
        with pytest.raises(RuntimeError, match="engine"):
            await anext(response)
        assert engine.only_end.finish_reason == "error"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "item",
    [
        'data: {"choices":[{"finish_reason":"tool_calls"}]}\n\n',
        ['data: {"choices":[{"finish_reason":"tool_calls"}]}\n\n'],
        SimpleNamespace(choices=[SimpleNamespace(finish_reason="tool_calls")]),
    ],
)
def test_tool_calls_are_seen_in_the_response(item: object) -> None:
    async def scenario() -> None:
        engine = Engine([item])
        engine.gate.set()
        assert [part async for part in engine.respond()][1:] == [item]
        assert engine.only_end.finish_reason == "tool_calls"

    asyncio.run(scenario())


def test_text_that_speaks_of_tool_calls_is_none() -> None:
    async def scenario() -> None:
        engine = Engine(['data: {"text":"\\"finish_reason\\":\\"tool_calls\\""}\n\n'])
        engine.gate.set()
        assert len([part async for part in engine.respond()]) == 2
        assert engine.only_end.finish_reason == "stop"

    asyncio.run(scenario())


def test_two_prompts_are_one_request() -> None:
    engine = Engine([])
    record = engine.ledger.begin(REQUEST)
    engine.ledger.prompt_seen(record, prompt_tokens=10, cached_tokens=0)
    engine.ledger.prompt_seen(record, prompt_tokens=20, cached_tokens=16)
    engine.ledger.finish(record, failed=None)
    engine.ledger.finish(record, failed=None)
    assert (engine.only_end.prompt_tokens, engine.only_end.cached_tokens) == (30, 16)
    assert len(engine.accepted) == 1


def test_owner_tags() -> None:
    assert owner_of(REQUEST) == TAG
    warmup = OwnerTag("w", "a-1", "s-1", WARMUP).encode()
    for xargs in (None, {}, {OWNER_XARG: "x"}, {OWNER_XARG: warmup}):
        assert owner_of(SimpleNamespace(vllm_xargs=xargs)) is None
    assert owner_of(object()) is None
