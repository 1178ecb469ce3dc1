"""A request's way to a replica: retry once, clip once, time limits, errors after the first event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, NodeDiedError, ObjectLostError, RayChannelError, WorkerCrashedError

from runtime_actor.messages import RequestAccepted
from serve_app import generation
from serve_app.generation import ContextLimits, Exchange
from serve_app.http.errors import ApiError
from serve_app.streaming import DONE, FAILED_IN_ENGINE, openai_stream

ACCEPTED = RequestAccepted("r1", 10, 0).to_wire()
CHUNK = 'data: {"choices":[{"index":0}]}\n\n'
TOO_LONG = "This model's maximum context length is 100 tokens. However, you requested 50 output tokens"


class FakeCall:
    """Yields its items, raises those that are exceptions, stalls at "stall"."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items
        self.cancelled = False

    async def __aiter__(self) -> AsyncIterator[Any]:
        for item in self._items:
            if isinstance(item, BaseException):
                raise item
            if item == "stall":
                await asyncio.Event().wait()
            yield item

    def cancel(self) -> None:
        self.cancelled = True


class Replicas:
    """Answers call after call with the next script."""

    def __init__(self, *scripts: list[Any]) -> None:
        self._scripts = list(scripts)
        self.sent: list[dict[str, Any]] = []
        self.calls: list[FakeCall] = []
        self.retries = 0
        self.after_failure: list[bool] = []

    def send(self, fields: dict[str, Any], has_failed: bool) -> FakeCall:
        self.sent.append(fields)
        self.after_failure.append(has_failed)
        self.calls.append(FakeCall(self._scripts.pop(0)))
        return self.calls[-1]

    def retried(self) -> None:
        self.retries += 1


def error_item(message: str, code: int) -> Any:
    return SimpleNamespace(error=SimpleNamespace(message=message, type="t", param=None, code=code))


def exchange(replicas: Replicas, fields: dict[str, Any] | None = None, timeout_s: float = 5.0) -> Exchange:
    limits = ContextLimits(usable_tokens=100, model_tokens=200)
    return Exchange(replicas.send, fields or {}, limits, timeout_s, replicas.retried)


def read(request: Exchange) -> str:
    async def main() -> str:
        opened = await request.open()
        return "".join([event async for event in openai_stream(request.events(opened))])

    return asyncio.run(main())


def refused(request: Exchange) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(request)
    return caught.value


def test_straight_through() -> None:
    replicas = Replicas([ACCEPTED, CHUNK, DONE])
    assert read(exchange(replicas)) == CHUNK + DONE
    assert replicas.retries == 0


DEATHS = [ActorDiedError(), WorkerCrashedError(), NodeDiedError("gone"), ObjectLostError("00", None, "")]


@pytest.mark.parametrize("first", [[ACCEPTED, ActorDiedError()], [error_item("dead", 500)], *([e] for e in DEATHS)])
def test_a_dead_replica_is_replaced_once(first: list[Any]) -> None:
    replicas = Replicas(first, [ACCEPTED, CHUNK, DONE])
    assert read(exchange(replicas)) == CHUNK + DONE
    assert replicas.retries == 1 and replicas.calls[0].cancelled
    assert replicas.after_failure == [False, True]


@pytest.mark.parametrize("first", [["stall"], [ACCEPTED, "stall"]])
def test_a_request_that_waits_for_a_stuck_engine_is_given_to_another_one(
    first: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "LOOK_EVERY_S", 0.001)
    replicas = Replicas(first, [ACCEPTED, CHUNK, DONE])
    looks = iter([False, False, True])
    request = exchange(replicas)
    request.is_stuck = lambda: next(looks)
    assert read(request) == CHUNK + DONE
    assert replicas.retries == 1 and replicas.calls[0].cancelled and replicas.after_failure == [False, True]


def test_it_is_moved_once_and_a_stream_that_has_begun_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "LOOK_EVERY_S", 0.001)
    for scripts in ([["stall"], ["stall"]], [[ACCEPTED, CHUNK, "stall"]]):
        replicas = Replicas(*scripts)
        request = exchange(replicas, timeout_s=0.2)
        request.is_stuck = lambda: True
        if len(scripts) == 2:
            assert refused(request).status == 504
        else:
            assert '"timeout"' in read(request)
        assert replicas.retries == len(scripts) - 1 and replicas.calls[-1].cancelled


def test_two_deaths_are_told() -> None:
    assert refused(exchange(Replicas([ActorDiedError()], [ActorDiedError()]))).status == 503


def test_a_death_in_mid_stream_is_an_event() -> None:
    replicas = Replicas([ACCEPTED, CHUNK, ActorDiedError()])
    text = read(exchange(replicas))
    assert '"unavailable"' in text and text.endswith(DONE) and replicas.retries == 0


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, KeyError, RayChannelError])
def test_any_fault_in_mid_stream_is_an_event_and_its_text_is_in_no_log(
    kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    replicas = Replicas([ACCEPTED, CHUNK, kind('File "/x/y.py", line 7, in serve\nwrong input: the secret plan')])
    text = read(exchange(replicas))
    assert '"internal_error"' in text and text.endswith(DONE)
    assert "secret" not in text + caplog.text and "/x/y.py" in caplog.text and kind.__name__ in caplog.text


def test_client_errors_are_not_retried() -> None:
    replicas = Replicas([error_item("bad", 400)])
    assert refused(exchange(replicas)).status == 400 and replicas.retries == 0


def test_clip_where_the_cache_is_the_limit() -> None:
    replicas = Replicas([error_item(TOO_LONG, 400)], [ACCEPTED, CHUNK, DONE])
    request = exchange(replicas, {"max_tokens": 50, "messages": []})
    assert read(request) == CHUNK + DONE
    assert request.clipped and replicas.sent[1] == {"messages": []}


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 200}, {"max_tokens": 10_000}])
def test_no_clip_beyond_the_model(fields: dict[str, Any]) -> None:
    assert refused(exchange(Replicas([error_item(TOO_LONG, 400)]), fields)).code == "context_length_exceeded"


def test_a_prompt_too_long_by_itself_is_refused_after_the_clip() -> None:
    replicas = Replicas([error_item(TOO_LONG, 400)], [error_item(TOO_LONG, 400)])
    assert refused(exchange(replicas, {"max_tokens": 50})).code == "context_length_exceeded"


def test_a_constraint_that_fails_to_compile_is_the_clients() -> None:
    replicas = Replicas([ACCEPTED, error_item(FAILED_IN_ENGINE, 500)])
    error = refused(exchange(replicas, {"structured_outputs": {"grammar": "x"}}))
    assert error.status == 400 and replicas.retries == 0


def test_time_limits() -> None:
    stalled = Replicas(["stall"])
    assert refused(exchange(stalled, timeout_s=0.05)).status == 504
    assert stalled.calls[0].cancelled
    late = Replicas([ACCEPTED, CHUNK, "stall"])
    text = read(exchange(late, timeout_s=0.05))
    assert '"timeout"' in text and text.endswith(DONE) and late.calls[0].cancelled


def test_leaving_cancels() -> None:
    replicas = Replicas([ACCEPTED, CHUNK, CHUNK, "stall"])

    async def main() -> None:
        request = exchange(replicas)
        opened = await request.open()
        events = request.events(opened)
        await anext(events)
        await events.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())
    assert replicas.calls[0].cancelled


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"prompt": "x"}, "prompt"),
        ({"messages": [], "max_tokens": 10_000}, "max_tokens"),
        ({"prompt": "x", "max_completion_tokens": 10_000}, "max_completion_tokens"),
        ({"messages": [], "max_tokens": 1}, "messages"),
    ],
)
def test_the_field_that_asks_for_too_much_is_named(fields: dict[str, Any], param: str) -> None:
    """One refusal, or as many as it takes once fewer tokens were tried."""
    error = refused(exchange(Replicas([error_item(TOO_LONG, 400)], [error_item(TOO_LONG, 400)]), fields))
    assert error.param == param
    assert (param in error.message) == param.startswith("max_")
