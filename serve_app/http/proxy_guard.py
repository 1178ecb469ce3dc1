"""What Ray's HTTP proxy leaves open, closed around it. The launcher names `middlewares` in
RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH, so this runs in the proxy's process.

- Ray decodes some headers as UTF-8 and answers everything else with a bare 500: such bytes are read as Latin-1, as the
  gateway reads those of other headers.
- Ray obeys two headers of its own that no client should set: one switches its time limit off, the other lets a
  request go on after its client has left. They are taken out.
- A gateway that dies before its answer begins leaves a bare 500: the request is sent once more, to a gateway that
  lives. One that dies within a stream leaves a stream without an end: it gets an error event.
- A client that doesn't read its answer would hold it in memory for as long as it likes: it is cut off.
"""

import asyncio

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_app.http.errors import ApiError, overloaded, unavailable
from serve_app.http.responses import respond

IMPORT_PATH = "serve_app.http.proxy_guard.middlewares"
DECODED = (b"x-request-id", b"x-session-id", b"serve_multiplexed_model_id", b"serve-multiplexed-model-id")
STRIPPED = (b"x-request-timeout-seconds", b"x-request-disconnect-disabled")

MAX_REPLAY_BYTES = 1 << 20
"""A larger body isn't kept for a second try; its request fails with its gateway."""

SEND_TIMEOUT_S = 60.0
"""How long a client may leave a piece of its answer unread while the connection's buffers are full."""

DONE = b"data: [DONE]\n\n"


class HeaderText:
    """Makes UTF-8 of header values that Ray decodes; takes out what isn't a client's to say."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            kept = [
                (name, _text(value) if name.lower() in DECODED else value)
                for name, value in scope.get("headers", ())
                if name.lower() not in STRIPPED
            ]
            scope = {**scope, "headers": kept}
        await self._app(scope, receive, send)


class WholeAnswers:
    """Every request gets an answer that has an end, whatever becomes of its gateway."""

    def __init__(self, app: ASGIApp, send_timeout_s: float = SEND_TIMEOUT_S) -> None:
        self._app = app
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(receive)
        answer = _Answer(send, self._send_timeout_s)
        for attempt in range(2):
            await self._app(scope, body.replayed(), answer.send)
            if answer.began or body.left or attempt or not body.whole:
                break
        if not answer.began and not body.left:
            await respond(unavailable("The gateway that served this request is gone; retry."))(scope, receive, send)
        await answer.end()


class _Body:
    """The request's messages, kept for a second try as long as they are few."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._kept: list[Message] = []
        self._size = 0
        self.left = False
        """The client has gone away."""

    @property
    def whole(self) -> bool:
        return self._size <= MAX_REPLAY_BYTES

    def replayed(self) -> Receive:
        """From the beginning, then what comes."""
        position = 0

        async def receive() -> Message:
            nonlocal position
            if position < len(self._kept):
                position += 1
                return self._kept[position - 1]
            message = await self._receive()
            self._note(message)
            position = len(self._kept)
            return message

        return receive

    def _note(self, message: Message) -> None:
        if message["type"] == "http.disconnect":
            self.left = True
            return
        self._size += len(message.get("body", b""))
        if self.whole:
            self._kept.append(message)
        else:
            self._kept.clear()


class _Answer:
    """What went to the client so far. Ray's own plain texts are put into OpenAI's shape."""

    def __init__(self, send: Send, timeout_s: float) -> None:
        self._send = send
        self._timeout_s = timeout_s
        self._replaced: ApiError | None = None
        self._is_stream = False
        self._said_done = False
        self._ended = False
        self.began = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.began = True
            kind = _content_type(message)
            self._is_stream = kind.startswith(b"text/event-stream")
            self._replaced = _error_of(message["status"]) if kind.startswith(b"text/plain") else None
            if self._replaced is not None:
                return
        elif message["type"] == "http.response.body":
            self._ended = not message.get("more_body", False)
            self._said_done = self._said_done or DONE in message.get("body", b"")
            if self._replaced is not None:
                if self._ended:
                    await respond(self._replaced)({"type": "http"}, _nothing, self._to_client)
                return
        await self._to_client(message)

    async def end(self) -> None:
        """The last word of a stream that was cut."""
        if self.began and self._is_stream and not self._ended:
            event = b"" if self._said_done else _cut_event() + DONE
            await self._to_client({"type": "http.response.body", "body": event, "more_body": False})

    async def _to_client(self, message: Message) -> None:
        """Raises TimeoutError when the client doesn't read, which closes its connection."""
        async with asyncio.timeout(self._timeout_s):
            await self._send(message)


def middlewares() -> list[Middleware]:
    return [Middleware(HeaderText), Middleware(WholeAnswers)]


def _cut_event() -> bytes:
    return unavailable("The gateway that served this request is gone.").event().encode()


def _error_of(status: int) -> ApiError | None:
    """Of Ray's own answers; the gateway's are JSON."""
    if status == 408:
        return ApiError(504, "The request did not finish in time.", code="timeout")
    if status == 429:
        return overloaded(1)
    if status == 503:
        return unavailable("The gateway can't take the request now; retry.")
    return None


def _content_type(message: Message) -> bytes:
    for name, value in message.get("headers", ()):
        if bytes(name).lower() == b"content-type":
            return bytes(value).lower()
    return b""


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


def _text(value: bytes) -> bytes:
    try:
        value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1").encode()
    return value
