"""A route as the gateway sees it. The defaults are those of OpenAI's chat completions and completions."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from runtime_actor.messages import RequestAccepted
from serve_app import preparation
from serve_app.http.errors import ApiError
from serve_app.streaming import complete_usage, openai_stream

_IDENTITY_FIELDS = ("messages", "tools", "prompt")


class Route:
    """`method`: of the replica; also the engine's class of request (see `preparation`)."""

    def __init__(self, method: str) -> None:
        self.method = method

    def prepare(self, body: Mapping[str, Any], limits: preparation.Limits) -> dict[str, Any]:
        """The engine's fields, checked, without the client's hints. Raises ApiError 400 naming the field."""
        return preparation.prepare(self.method, body, limits)

    def identity_view(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """What decides who is asking, as chat completions have it: messages after clean-up, tools, prompt."""
        return {name: fields[name] for name in _IDENTITY_FIELDS if name in fields}

    def request(self, fields: Mapping[str, Any]) -> Any:
        """What goes to the replica. Raises ApiError."""
        return preparation.validated(self.method, fields)

    def own_error(self, error: ApiError) -> ApiError:
        """An error about the engine's request, with the field's name in the client's."""
        return error

    def answer(self, first: Any, accepted: RequestAccepted | None) -> dict[str, Any]:
        """A whole answer as the client gets it; `first` is the engine's, an object or plain."""
        content: dict[str, Any] = first if isinstance(first, dict) else first.model_dump()
        usage = content.get("usage")
        if isinstance(usage, dict):
            complete_usage(usage, accepted.cached_tokens if accepted else 0)
        return content

    def stream(self, events: AsyncIterator[str], accepted: RequestAccepted | None) -> AsyncIterator[str]:
        """The client's events; of an ApiError raised by `events` the route's own form."""
        return openai_stream(events)


def event(name: str, content: Any) -> str:
    """A named server-sent event."""
    return f"event: {name}\ndata: {json.dumps(content, ensure_ascii=False, separators=(',', ':'))}\n\n"
