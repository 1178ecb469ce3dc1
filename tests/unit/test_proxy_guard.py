"""Bytes that are no text in the headers that Ray's proxy decodes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from serve_app.http.proxy_guard import DONE, MAX_REPLAY_BYTES, HeaderText, WholeAnswers, middlewares
from serve_app.identity import fold_headers


async def _fine(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"fine"})


def answer(*headers: tuple[bytes, bytes]) -> tuple[int, bytes]:
    """As an ASGI server calls it: test clients make text of header bytes first."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    scope = {"type": "http", "method": "GET", "path": "/", "headers": list(headers)}
    asyncio.run(HeaderText(_fine)(scope, receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


def passed_on(*headers: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    seen: list[tuple[bytes, bytes]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend(scope["headers"])

    async def nothing(*_: Any) -> Any:
        return {"type": "http.disconnect"}

    asyncio.run(HeaderText(app)({"type": "http", "headers": list(headers)}, nothing, nothing))
    return seen


@pytest.mark.parametrize("name", [b"x-request-id", b"x-session-id"])
def test_bytes_that_are_no_text_are_made_text(name: bytes) -> None:
    """Ray decodes these two; the session is the one that the same bytes name in another header."""
    for value in (b"a\xe9b", b"\xff\xfe", "käse".encode()):
        kept = dict(passed_on((name, value)))[name]
        kept.decode()
        assert fold_headers([(name, kept)]) == fold_headers([(name, value)])
    assert answer((name, b"\xff\xfe")) == (200, b"fine")


def test_text_passes() -> None:
    assert answer((b"x-session-id", "käse".encode()), (b"other", b"\xff")) == (200, b"fine")


def test_the_proxy_gets_it_as_a_middleware() -> None:
    assert [middleware.cls for middleware in middlewares()] == [HeaderText, WholeAnswers]


@pytest.mark.parametrize("name", [b"x-request-timeout-seconds", b"X-Request-Disconnect-Disabled"])
def test_rays_own_switches_are_not_a_clients(name: bytes) -> None:
    assert passed_on((name, b"\xff"), (b"x-other", b"1")) == [(b"x-other", b"1")]


class Proxy:
    """Ray's proxy over gateways that end as `ends` says, one a call."""

    def __init__(self, *ends: str) -> None:
        self.ends = list(ends)
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.bodies.append(body)
        end = self.ends.pop(0)
        if end == "dies":
            return
        kind = b"text/event-stream" if "stream" in end else b"text/plain" if end.isdigit() else b"application/json"
        status = int(end) if end.isdigit() else 200
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
        if end == "stream dies":
            await send({"type": "http.response.body", "body": b'data: {"choices":[]}\n\n', "more_body": True})
        elif end == "stream dies late":
            await send({"type": "http.response.body", "body": DONE, "more_body": True})
        elif end != "json dies":
            await send({"type": "http.response.body", "body": b"inner details", "more_body": False})


def through(proxy: Any, *pieces: bytes, leaves: bool = False) -> tuple[int | None, bytes, bool]:
    """Status, body, and whether the answer has an end."""
    sent: list[Any] = []
    messages = [
        {"type": "http.request", "body": piece, "more_body": n < len(pieces) - 1} for n, piece in enumerate(pieces)
    ]

    async def receive() -> Any:
        if messages:
            return messages.pop(0)
        if leaves:
            return {"type": "http.disconnect"}
        return await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(WholeAnswers(proxy)({"type": "http"}, receive, send))
    starts = [message["status"] for message in sent if message["type"] == "http.response.start"]
    assert len(starts) <= 1
    bodies = [message for message in sent if message["type"] == "http.response.body"]
    ended = bool(bodies) and not bodies[-1].get("more_body", False)
    return (starts or [None])[0], b"".join(m.get("body", b"") for m in bodies), ended


def test_a_gateways_death_before_the_answer_costs_nothing() -> None:
    proxy = Proxy("dies", "json")
    assert through(proxy, b"one ", b"two") == (200, b"inner details", True)
    assert proxy.bodies == [b"one two", b"one two"]


def test_two_deaths_are_an_error_in_shape() -> None:
    proxy = Proxy("dies", "dies")
    status, body, ended = through(proxy, b"{}")
    assert status == 503 and ended and json.loads(body)["error"]["code"] == "unavailable"


def test_a_large_body_is_not_kept() -> None:
    proxy = Proxy("dies")
    status, body, ended = through(proxy, b"x" * MAX_REPLAY_BYTES, b"yy")
    assert status == 503 and ended and len(proxy.bodies) == 1
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


def test_a_cut_stream_ends_with_an_error_event() -> None:
    status, body, ended = through(Proxy("stream dies"), b"{}")
    first, event, done = body.decode().strip().split("\n\n")
    assert status == 200 and ended and done == "data: [DONE]"
    assert json.loads(event.removeprefix("data: "))["error"]["code"] == "unavailable"
    assert first == 'data: {"choices":[]}'


def test_a_stream_that_said_done_gets_no_error() -> None:
    assert through(Proxy("stream dies late"), b"{}") == (200, DONE, True)


def test_an_answer_cut_in_its_middle_is_left_without_an_end() -> None:
    """So that the server closes the connection: half an object must not look whole."""
    assert through(Proxy("json dies"), b"{}") == (200, b"", False)


@pytest.mark.parametrize(("ray", "status"), [("408", 504), ("503", 503), ("429", 429)])
def test_rays_plain_texts_come_in_shape(ray: str, status: int) -> None:
    found, body, ended = through(Proxy(ray), b"{}")
    assert found == status and ended and b"inner" not in body
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


def test_nothing_is_sent_again_for_a_client_that_left() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        calls.append(1)

    calls: list[int] = []
    assert through(app, b"{}", leaves=True) == (None, b"", False)
    assert calls == [1]


def test_a_client_that_does_not_read_is_cut_off() -> None:
    async def stuck(_: Any) -> None:
        await asyncio.Event().wait()

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    with pytest.raises(TimeoutError):
        asyncio.run(WholeAnswers(Proxy("json"), send_timeout_s=0.01)({"type": "http"}, receive, stuck))
