"""Bytes that are no text in the headers that Ray's proxy decodes."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from serve_app.proxy_guard import middlewares


async def _fine(_: object) -> PlainTextResponse:
    return PlainTextResponse("fine")


@pytest.fixture
def client() -> TestClient:
    return TestClient(Starlette(routes=[Route("/", _fine)], middleware=middlewares()))


@pytest.mark.parametrize("name", ["x-request-id", "X-Session-Id"])
def test_bytes_that_are_no_text_are_refused(client: TestClient, name: str) -> None:
    response: httpx.Response = client.get("/", headers=[(name.encode(), b"\xff\xfe")])
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"].lower() == name.lower() and error["type"] == "invalid_request_error"


def test_text_passes(client: TestClient) -> None:
    assert client.get("/", headers=[(b"x-session-id", "käse".encode()), (b"other", b"\xff")]).text == "fine"
