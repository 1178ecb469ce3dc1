"""A stream of server-sent events as an HTTP response."""

from collections.abc import AsyncIterator, Callable

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class EventStream(StreamingResponse):
    """A stream that gives back what it holds also when the client leaves before it begins."""

    def __init__(self, events: AsyncIterator[str], headers: dict[str, str], on_end: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={**headers, "cache-control": "no-cache"})
        self._on_end: Callable[[], None] | None = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()

    def __del__(self) -> None:
        """One that is never begun gives it back when it is collected."""
        self._end()

    def _end(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()
