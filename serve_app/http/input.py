"""A request's body as a JSON object, within limits: every way it can be wrong is a 4xx."""

import asyncio
import json
import math
import re
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from serve_app.config import GatewayConfig
from serve_app.http.errors import ApiError, bad_request, field_path

MAX_NAMED_BYTES = 1 << 20
"""A larger body with a NaN in it is refused without naming the field: finding it takes a second, slower parser."""

_decoder = msgspec.json.Decoder()
_BYTE = re.compile(r"\(byte (\d+)\)")
_NOT_A_NUMBER = re.compile(rb"NaN|Infinity")


def header_bytes(scope: Any) -> int:
    return sum(len(name) + len(value) + 4 for name, value in scope.get("headers", ()))


async def read_object(request: Request, limits: GatewayConfig) -> dict[str, Any]:
    """Raises ApiError: 413 too large, 408 too slow, 415 compressed, 400 not a JSON object."""
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(415, "Compressed bodies are not accepted; send the body as it is.", code="unsupported_encoding")
    return parse_object(await _read_bounded(request, limits), limits.max_json_depth)


async def _read_bounded(request: Request, limits: GatewayConfig) -> bytes:
    too_large = ApiError(413, f"The body is larger than {limits.max_body_bytes} bytes.", code="request_too_large")
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and len(declared) < 20 and int(declared) > limits.max_body_bytes:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limits.max_body_bytes:
                    raise too_large
                chunks.append(chunk)
    except TimeoutError:
        raise ApiError(408, f"The body did not arrive within {limits.body_timeout_s:g} s.", code="timeout") from None
    except ClientDisconnect:
        raise ApiError(400, "The client went away before its body was complete.") from None
    return b"".join(chunks)


def parse_object(raw: bytes, max_depth: int) -> dict[str, Any]:
    """Strict JSON: no NaN, no lone surrogates, no float that isn't finite. Whole numbers may be of any size.

    Raises:
        ApiError: 400, without any of the body's content.
    """
    if not raw.strip():
        raise bad_request("The body is empty; a JSON object is required.", code="invalid_json")
    try:
        value = _decoder.decode(raw)
        too_deep = isinstance(value, dict) and _is_deeper(value, max_depth)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        if _NOT_A_NUMBER.match(raw, _offset(error)):
            raise _not_finite(raw) from None
        raise bad_request(f"The body is not valid JSON: {_reason(error)}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise bad_request("The body must be a JSON object.", code="invalid_json")
    if too_deep:
        raise bad_request(f"The body is nested deeper than {max_depth} levels.", code="invalid_json")
    return value


def _offset(error: Exception) -> int:
    """Where in the body the decoder stopped; its end if it doesn't say."""
    found = _BYTE.search(str(error))
    return int(found.group(1)) if found else MAX_NAMED_BYTES


def _not_finite(raw: bytes) -> ApiError:
    """Names the field that holds the first NaN or Infinity, which Python's own parser takes."""
    path: tuple[str | int, ...] | None = None
    if len(raw) <= MAX_NAMED_BYTES:
        try:
            path = _first_not_finite(json.loads(raw))
        except (ValueError, RecursionError):
            path = None
    name = field_path(path) if path else None
    subject = f"`{name}`" if name else "A number of the body"
    return bad_request(f"{subject} must be finite: JSON has no NaN and no Infinity.", name, "invalid_json")


def _first_not_finite(value: Any) -> tuple[str | int, ...] | None:
    """Path of the first such number in the order of the text, without recursion."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while waiting:
        path, item = waiting.pop()
        if isinstance(item, float) and not math.isfinite(item):
            return path
        pairs = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
        waiting += reversed([((*path, key), inner) for key, inner in pairs])
    return None


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    text = str(error).removeprefix("JSON is malformed: ")
    return text.split(" - at ")[0].rstrip(".") if len(text) < 200 else "it can't be parsed"


def _is_deeper(value: dict[str, Any], limit: int) -> bool:
    """Level by level, so that depth costs no recursion."""
    level: list[Any] = [value]
    for _ in range(limit):
        inner: list[Any] = []
        for item in level:
            children = item.values() if isinstance(item, dict) else item
            inner.extend(child for child in children if isinstance(child, (dict, list)))
        if not inner:
            return False
        level = inner
    return True
