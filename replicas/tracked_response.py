"""A replica's response stream with the engine's acceptance as its first item."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from replicas.requests import ABORT, CURRENT_REQUEST, ERROR, RequestLedger, RequestRecord
from runtime_actor.messages import RequestAccepted

_END = object()

_TOOL_CALLS = "tool_calls"
_TOOL_CALLS_IN_CHUNK = ('"finish_reason":"tool_calls"', '"type":"function_call"')
"""Of chat completions and of Responses. Can't occur inside a JSON string: there their quotes are escaped."""


async def tracked_response(
    open_stream: Callable[[], Awaitable[AsyncGenerator[Any, None]]],
    request: Any,
    ledger: RequestLedger,
    replica: str,
) -> AsyncGenerator[Any, None]:
    """The items of the stream, after `RequestAccepted(...).to_wire()` once the engine took the request.

    Whatever comes before the engine's first output is an error and passes as it is. Closing or
    cancelling this generator ends the request in the engine. The ledger hears of its end exactly once.
    """
    record = ledger.begin(request)
    # A context of its own: the engine's generators start in it and find the record there.
    context = contextvars.copy_context()
    context.run(CURRENT_REQUEST.set, record)
    opening = asyncio.get_running_loop().create_task(_open(open_stream), context=context)
    failed: str | None = ABORT
    announced = False
    stream: AsyncGenerator[Any, None] | None = None
    try:
        await _either(opening, record)
        if record.accepted.is_set():
            announced = True
            yield _accepted(record, replica)
        stream, item = await opening
        while item is not _END:
            if record.accepted.is_set() and not announced:
                announced = True
                yield _accepted(record, replica)
            _note_tool_calls(record, item)
            yield item
            item = await anext(stream, _END)
        failed = None
    except Exception:
        failed = ERROR
        raise
    finally:
        ledger.finish(record, failed=failed)
        await _close(opening, stream)


def _accepted(record: RequestRecord, replica: str) -> dict[str, Any]:
    return RequestAccepted(
        replica=replica, prompt_tokens=record.prompt_tokens, cached_tokens=record.cached_tokens
    ).to_wire()


async def _open(
    open_stream: Callable[[], Awaitable[AsyncGenerator[Any, None]]],
) -> tuple[AsyncGenerator[Any, None], Any]:
    stream = await open_stream()
    return stream, await anext(stream, _END)


async def _either(opening: asyncio.Task[Any], record: RequestRecord) -> None:
    """Until the engine took the request or the first item is there, whichever comes first."""
    waiter = asyncio.get_running_loop().create_task(record.accepted.wait())
    try:
        await asyncio.wait({opening, waiter}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()


async def _close(opening: asyncio.Task[Any], stream: AsyncGenerator[Any, None] | None) -> None:
    if not opening.done():
        opening.cancel()
        await asyncio.wait({opening})
    if stream is None and not opening.cancelled() and opening.exception() is None:
        stream = opening.result()[0]
    if stream is not None:
        await stream.aclose()


def _note_tool_calls(record: RequestRecord, item: Any) -> None:
    """Only the response knows that the engine's `stop` is a tool call to the client."""
    if isinstance(item, (str, list)):
        chunks = [item] if isinstance(item, str) else item
        if any(isinstance(chunk, str) and mark in chunk for chunk in chunks for mark in _TOOL_CALLS_IN_CHUNK):
            record.finish_reason = _TOOL_CALLS
        return
    if isinstance(item, dict):
        if any(part.get("type") == "function_call" for part in item.get("output") or ()):
            record.finish_reason = _TOOL_CALLS
        return
    choices = getattr(item, "choices", None) or []
    if any(getattr(choice, "finish_reason", None) == _TOOL_CALLS for choice in choices):
        record.finish_reason = _TOOL_CALLS
