"""Bytes that are no text in the headers that Ray's proxy decodes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from serve_app.http.proxy_guard import HeaderText, middlewares


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


@pytest.mark.parametrize("name", [b"x-request-id", b"x-session-id"])
def test_bytes_that_are_no_text_are_refused(name: bytes) -> None:
    status, body = answer((name, b"\xff\xfe"))
    error = json.loads(body)["error"]
    assert status == 400
    assert error["param"] == name.decode() and error["type"] == "invalid_request_error"


def test_text_passes() -> None:
    assert answer((b"x-session-id", "käse".encode()), (b"other", b"\xff")) == (200, b"fine")


def test_the_proxy_gets_it_as_a_middleware() -> None:
    assert [middleware.cls for middleware in middlewares()] == [HeaderText]
