"""A replica's response items -> what the client sees (no Ray here).

The first item of a response is the engine's acceptance; a stream's others are server-sent events as
text, one or several an item, a plain response's one object.
"""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from runtime_actor.errors import MessageError
from runtime_actor.messages import RequestAccepted
from serve_app.http.errors import ApiError, from_engine

DONE = "data: [DONE]\n\n"
ANNOUNCEMENTS = (
    '"delta":{"role":"assistant","content":""}',
    "event: response.created\n",
    "event: response.in_progress\n",
)
"""What vLLM sends before it looks at whether the engine's first output is an error, and where that holds no
token it ends the stream without a word: an announcement with nothing behind it is a failure."""

FAILED_IN_ENGINE = "Internal server error"
"""vLLM's whole message when a request ended with an error inside the engine's loop."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A response whose first content item is here. `rest` goes on behind it."""

    accepted: RequestAccepted | None
    first: Any
    rest: AsyncIterator[Any]


class EngineRefusal(Exception):
    """Raised when the engine answered with an error before any content; `error` is its own form."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error.get("code")))
        self.error = error


async def open_response(items: AsyncIterator[Any]) -> Opened:
    """Wait for the first content item. The engine may accept a request and still fail it before that.

    Raises:
        EngineRefusal: an error came instead, or (code 500) nothing.
    """
    flat = flatten(items)
    accepted: RequestAccepted | None = None
    held = ""
    async for item in flat:
        found = acceptance(item)
        if found is not None:
            accepted = found
            continue
        error = error_of(item)
        if error is not None:
            raise EngineRefusal(error)
        if isinstance(item, str):
            if held and item == DONE:
                break
            held += item
            if item.count("data: ") == 1 and any(text in item for text in ANNOUNCEMENTS):
                continue
            return Opened(accepted, held, flat)
        return Opened(accepted, item, flat)
    raise EngineRefusal({"code": 500, "message": FAILED_IN_ENGINE})


async def flatten(items: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Batched items one by one."""
    async for item in items:
        if isinstance(item, list):
            for part in item:
                yield part
        else:
            yield item


def acceptance(item: Any) -> RequestAccepted | None:
    if isinstance(item, RequestAccepted):
        return item
    if isinstance(item, dict) and item.get("kind") == RequestAccepted.kind:
        try:
            return RequestAccepted.from_wire(item)
        except MessageError:
            return None
    return None


def error_of(item: Any) -> dict[str, Any] | None:
    """The engine's error in an item: an ErrorResponse, or a stream event that holds one."""
    if isinstance(item, str):
        if '"error"' not in item[:64]:
            return None
        for payload in events(item):
            parsed = _parsed(payload)
            if isinstance(parsed, dict) and isinstance(parsed.get("error"), dict):
                return dict(parsed["error"])
        return None
    error = getattr(item, "error", None)
    if error is not None and hasattr(error, "message"):
        return {
            "message": error.message,
            "type": error.type,
            "param": getattr(error, "param", None),
            "code": error.code,
        }
    return None


def events(text: str) -> Iterator[str]:
    """The payloads of `data: ...` lines."""
    for line in text.split("\n"):
        if line.startswith("data: "):
            yield line[6:]


async def client_events(opened: Opened, usable_tokens: int, model_tokens: int) -> AsyncIterator[str]:
    """The stream as the client sees it, with cached tokens in its usage. Raises ApiError where the engine failed."""
    cached_tokens = opened.accepted.cached_tokens if opened.accepted is not None else None
    yield _client_event(_text(opened.first), cached_tokens)
    async for item in opened.rest:
        error = error_of(item)
        if error is not None:
            raise from_engine(error, usable_tokens, model_tokens)
        yield _client_event(_text(item), cached_tokens)


async def openai_stream(events: AsyncIterator[str]) -> AsyncIterator[str]:
    """OpenAI's form of an end: an error as an event, and one [DONE]."""
    done = False
    try:
        async for event in events:
            done = done or DONE in event
            yield event
    except ApiError as error:
        yield error.event()
        done = False
    if not done:
        yield DONE


def _text(item: Any) -> str:
    if isinstance(item, str):
        return item
    if hasattr(item, "model_dump_json"):
        return f"data: {item.model_dump_json()}\n\n"
    return f"data: {json.dumps(item)}\n\n"


def _client_event(text: str, cached_tokens: int | None) -> str:
    """Unchanged unless it carries usage, which is then completed. Named events are Responses', whose usage is whole."""
    if cached_tokens is None or '"usage":{' not in text or not text.startswith("data: "):
        return text
    if '"prompt_tokens_details"' not in text:
        # One in each chunk (`continuous_usage_stats`). What a model or a client says has its quotes escaped.
        return text.replace('"usage":{', f'"usage":{{"prompt_tokens_details":{{"cached_tokens":{cached_tokens}}},')
    parts = []
    for payload in events(text):
        parsed = None if payload == "[DONE]" else _parsed(payload)
        if isinstance(parsed, dict) and isinstance(parsed.get("usage"), dict):
            complete_usage(parsed["usage"], cached_tokens)
            payload = json.dumps(parsed, ensure_ascii=False, separators=(",", ":"))
        parts.append(f"data: {payload}\n\n")
    return "".join(parts)


def complete_usage(usage: dict[str, Any], cached_tokens: int) -> None:
    """`prompt_tokens_details.cached_tokens` is always there, also when nothing was cached."""
    details = usage.get("prompt_tokens_details")
    if not isinstance(details, dict):
        details = usage["prompt_tokens_details"] = {}
    if details.get("cached_tokens") is None:
        details["cached_tokens"] = cached_tokens


def _parsed(payload: str) -> Any:
    try:
        return json.loads(payload)
    except ValueError:
        return None


def refusal_error(refusal: EngineRefusal, usable_tokens: int, model_tokens: int) -> ApiError:
    return from_engine(refusal.error, usable_tokens, model_tokens)
