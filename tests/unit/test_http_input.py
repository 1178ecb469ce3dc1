"""Bodies within limits, or a 4xx."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from serve_app.config import GatewayConfig
from serve_app.http.errors import ApiError
from serve_app.http.input import parse_object, read_object

LIMITS = GatewayConfig(max_body_bytes=2048, body_timeout_s=0.05)


def request(chunks: list[bytes], headers: dict[str, str] | None = None, stalls: bool = False) -> Request:
    left = list(chunks)

    async def receive() -> dict[str, Any]:
        if left:
            chunk = left.pop(0)
            return {"type": "http.request", "body": chunk, "more_body": bool(left) or stalls}
        if stalls:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    return Request({"type": "http", "method": "POST", "headers": raw}, receive)


def status_of(*arguments: Any, **keywords: Any) -> int:
    with pytest.raises(ApiError) as caught:
        asyncio.run(read_object(request(*arguments, **keywords), LIMITS))
    return caught.value.status


def test_in_pieces() -> None:
    assert asyncio.run(read_object(request([b'{"a"', b":1", b"}"]), LIMITS)) == {"a": 1}


def test_too_large_by_header_and_by_count() -> None:
    assert status_of([b"{}"], {"content-length": "4096"}) == 413
    assert status_of([b"x" * 1500, b"x" * 1500]) == 413


def test_too_slow_and_gone() -> None:
    assert status_of([b'{"a"'], stalls=True) == 408
    assert status_of([]) == 400


def test_compressed() -> None:
    assert status_of([b"x"], {"content-encoding": "gzip"}) == 415


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"   ",
        b"[]",
        b'"x"',
        b'{"model":',
        b'{"a":1e999}',
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
        b'{"a":"\\udc00 x"}',
        b'{"a":"\\ud800\\u0041"}',
        b'{"a":"\xed\xa0\x80"}',
        b"[" * 2000 + b"]" * 2000,
        b'{"a":' * 100 + b"1" + b"}" * 100,
        b'{"a":' + b"9" * 5000 + b"}",
    ],
)
def test_not_an_object(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(raw, 64)
    assert caught.value.status == 400 and caught.value.param is None


@given(st.binary(max_size=300))
def test_any_bytes_are_an_object_or_a_400(raw: bytes) -> None:
    try:
        assert isinstance(parse_object(raw, 64), dict)
    except ApiError as error:
        assert error.status == 400


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b'{"temperature": NaN}', "temperature"),
        (b'{"a": 1, "logit_bias": {"x": [0, -Infinity]}, "top_p": NaN}', "logit_bias.x[1]"),
        (b'{"messages": [{"n": 1.5}, {"n": Infinity}]}', "messages[1].n"),
        (b'{"my secret": NaN}', None),
        (b'{"temperature": NaN', None),
        (b'{"a": "' + b"x" * (1 << 20) + b'", "temperature": NaN}', None),
        (b'{"temperature": nan}', None),
        (b'{"temperature": -}', None),
    ],
)
def test_a_number_that_is_none_is_named(raw: bytes, param: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(raw, 8)
    assert caught.value.status == 400 and caught.value.param == param and caught.value.code == "invalid_json"
    assert "secret" not in caught.value.message
    assert ("finite" in caught.value.message) == (b"NaN" in raw or b"Infinity" in raw)
