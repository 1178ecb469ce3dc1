"""Every error of the gateway as the openai package raises it, its retries, and what a client's leaving stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from openai import _base_client as sdk
from ray.exceptions import ActorDiedError

from runtime_actor.messages import RequestAccepted
from serve_app.flight import Slot
from tests.unit.gateway_bench import CHUNK, DONE, KEYS, Answer, Bench
from tests.unit.http_bench import Served, served

ACCEPTED = RequestAccepted("r1", 40, 32).to_wire()
MESSAGES: Any = [{"role": "user", "content": "hi"}]
DEAD = [ActorDiedError()]
WAIT_S = 10.0


def refusal(code: int, message: str = "refused") -> Any:
    return SimpleNamespace(error=SimpleNamespace(message=message, type="t", param=None, code=code))


@pytest.fixture
def gateway() -> Iterator[Served]:
    bench = Bench()
    bench.handle.items = [ACCEPTED, Answer()]
    with served(bench) as running:
        yield running
    assert bench.gateway._admission.in_flight == 0


def client(gateway: Served, **options: Any) -> openai.OpenAI:
    settings = {"api_key": KEYS["one"], "max_retries": 0, "timeout": WAIT_S, **options}
    return openai.OpenAI(base_url=f"{gateway.url}/v1", **settings)


def async_client(gateway: Served, **options: Any) -> openai.AsyncOpenAI:
    settings = {"api_key": KEYS["one"], "max_retries": 0, "timeout": WAIT_S, **options}
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", **settings)


def until(holds: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {WAIT_S:g} s: {what}"


# --- classes of errors ------------------------------------------------------------------------------------

CASES: dict[str, tuple[type[openai.APIStatusError], int, dict[str, Any], list[Any]]] = {
    "unknown model": (openai.NotFoundError, 404, {"model": "other"}, []),
    "wrong field": (openai.BadRequestError, 400, {"temperature": 9}, [refusal(400)]),
    "too long": (openai.BadRequestError, 400, {}, [refusal(400, "This model's maximum context length is 100 tokens")]),
    "too large": (openai.APIStatusError, 413, {"extra_body": {"x": "y" * (9 << 20)}}, []),
    "unprocessable in the engine": (openai.UnprocessableEntityError, 422, {}, [refusal(422)]),
    "busy engine": (openai.RateLimitError, 429, {}, [refusal(429)]),
    "failed engine": (openai.InternalServerError, 500, {}, [refusal(500)]),
    "dead replicas": (openai.InternalServerError, 503, {}, DEAD),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_each_error_has_the_sdks_own_class(gateway: Served, name: str, stream: bool) -> None:
    """Also where a stream was asked for: before its first event an error is a response of its own."""
    expected, status, fields, items = CASES[name]
    gateway.bench.handle.items = items or gateway.bench.handle.items
    asked: dict[str, Any] = {"model": "m", "messages": MESSAGES, "stream": stream, **fields}

    async def ask() -> None:
        async with async_client(gateway) as asynchronous:
            await asynchronous.chat.completions.create(**asked)

    with client(gateway) as synchronous, pytest.raises(openai.APIStatusError) as caught:
        synchronous.chat.completions.create(**asked)
    with pytest.raises(openai.APIStatusError) as caught_async:
        asyncio.run(ask())
    for error in (caught.value, caught_async.value):
        assert type(error) is expected and error.status_code == status
        assert isinstance(error.body, dict) and set(error.body) == {"message", "type", "param", "code"}
        assert error.body["message"] in str(error)


def test_keys_and_rights(gateway: Served) -> None:
    with client(gateway, api_key="wrong") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with client(gateway) as caller, pytest.raises(openai.PermissionDeniedError):
        caller.post(f"{gateway.url}/runtime/policy", cast_to=object, body={"mode": "lru"})


def test_out_of_time_is_not_tried_again(gateway: Served, pauses: list[float]) -> None:
    """Two more tries of what took the whole time would take it twice more."""
    gateway.bench.handle.items = ["stall"]
    limit(gateway, 0.05)
    with client(gateway, max_retries=2) as caller, pytest.raises(openai.InternalServerError) as caught:
        caller.chat.completions.create(model="m", messages=MESSAGES)
    assert caught.value.status_code == 504 and caught.value.code == "timeout"
    assert pauses == [] and len(gateway.bench.handle.requests) == 1


def limit(gateway: Served, seconds: float) -> None:
    settings = gateway.bench.gateway._settings
    limits = settings.config.gateway.model_copy(update={"request_timeout_s": seconds})
    object.__setattr__(settings, "config", settings.config.model_copy(update={"gateway": limits}))


# --- inside a stream ----------------------------------------------------------------------------------------


def test_an_error_inside_a_stream_raises_after_what_came_before(gateway: Served) -> None:
    gateway.bench.handle.items = [ACCEPTED, CHUNK, ActorDiedError()]
    seen: list[Any] = []
    with client(gateway, max_retries=2) as caller, pytest.raises(openai.APIError) as caught:
        seen.extend(caller.chat.completions.create(model="m", messages=MESSAGES, stream=True))
        raise AssertionError("the stream ended without its error")
    assert caught.value.code == "unavailable" and type(caught.value) is openai.APIError
    assert len(gateway.bench.handle.requests) == 1, "what was begun is not asked for again"


def test_an_error_inside_an_async_stream_raises(gateway: Served) -> None:
    gateway.bench.handle.items = [ACCEPTED, CHUNK, ActorDiedError()]

    async def main() -> int:
        seen = 0
        async with async_client(gateway, max_retries=2) as caller:
            stream = await caller.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            with pytest.raises(openai.APIError):
                async for _ in stream:
                    seen += 1
        return seen

    assert asyncio.run(main()) == 1
    assert len(gateway.bench.handle.requests) == 1


# --- retries ------------------------------------------------------------------------------------------------


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the SDK would have slept before each retry."""
    waited: list[float] = []
    monkeypatch.setattr(sdk, "time", SimpleNamespace(sleep=waited.append, time=time.time))

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(sdk, "anyio", SimpleNamespace(sleep=sleep, to_thread=sdk.anyio.to_thread))
    return waited


@pytest.mark.parametrize("stream", [False, True])
def test_dead_replicas_and_then_an_answer(gateway: Served, pauses: list[float], stream: bool) -> None:
    """The gateway tries two replicas, says 503 with Retry-After, and the SDK comes again after that time."""
    gateway.bench.handle.scripts = [list(DEAD), list(DEAD)]
    gateway.bench.handle.items = [ACCEPTED, CHUNK, DONE] if stream else [ACCEPTED, Answer()]
    with client(gateway, max_retries=2) as caller:
        answer: Any = caller.chat.completions.create(model="m", messages=MESSAGES, stream=stream)
        assert not stream or [chunk.choices[0].delta.content for chunk in answer] == ["x"]
    assert pauses == [1.0] and len(gateway.bench.handle.requests) == 3


def test_overload_and_then_an_answer(gateway: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Slot] = [gateway.bench.gateway._admission.admit(tenant) for tenant in ("two", "ops")]
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        held.pop().free()

    monkeypatch.setattr(sdk, "time", SimpleNamespace(sleep=sleep, time=time.time))
    with client(gateway, max_retries=1) as caller:
        assert caller.chat.completions.create(model="m", messages=MESSAGES).id == "x"
    assert waited == [1.0] and len(gateway.bench.handle.requests) == 1
    held.pop().free()


def test_retries_of_an_async_client(gateway: Served, pauses: list[float]) -> None:
    gateway.bench.handle.scripts = [list(DEAD), list(DEAD)]

    async def main() -> str:
        async with async_client(gateway, max_retries=2) as caller:
            return (await caller.chat.completions.create(model="m", messages=MESSAGES)).id

    assert asyncio.run(main()) == "x" and pauses == [1.0]


@pytest.mark.parametrize("name", ["unknown model", "wrong field", "too long"])
def test_what_can_not_succeed_is_not_tried_again(gateway: Served, pauses: list[float], name: str) -> None:
    _, status, fields, items = CASES[name]
    gateway.bench.handle.items = items or gateway.bench.handle.items
    with client(gateway, max_retries=2) as caller, pytest.raises(openai.APIStatusError) as caught:
        caller.chat.completions.create(**{"model": "m", "messages": MESSAGES, **fields})
    assert caught.value.status_code == status and pauses == []


# --- a client that leaves -----------------------------------------------------------------------------------


def test_a_clients_timeout_cancels_the_call(gateway: Served) -> None:
    """Of a stream; while an answer is only waited for it is Ray Serve's proxy that sees the client leave."""
    handle = gateway.bench.handle
    handle.items = [ACCEPTED, CHUNK, "stall"]
    with client(gateway, timeout=0.3) as caller, pytest.raises(openai.APITimeoutError):
        list(caller.chat.completions.create(model="m", messages=MESSAGES, stream=True))
    until(lambda: handle.cancelled == 1, "the call is cancelled")


def test_a_stream_that_is_closed_cancels_the_call(gateway: Served) -> None:
    handle = gateway.bench.handle
    handle.items = [ACCEPTED, CHUNK, "stall"]
    with client(gateway) as caller, caller.chat.completions.create(model="m", messages=MESSAGES, stream=True) as answer:
        assert next(answer).choices[0].delta.content == "x"
    until(lambda: handle.cancelled == 1, "the call is cancelled")


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_goes_away_is_a_connection_error(gateway: Served, stream: bool) -> None:
    handle = gateway.bench.handle
    handle.items = [ACCEPTED, CHUNK, "stall"] if stream else ["stall"]
    with client(gateway) as caller, pytest.raises(openai.APIConnectionError) as caught:
        if stream:
            answer = caller.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            next(answer)
            gateway.stop()
            next(answer)
        else:
            gateway.stop()
            caller.chat.completions.create(model="m", messages=MESSAGES)
    assert not isinstance(caught.value, openai.APITimeoutError)
