"""Header values that Ray's HTTP proxy can't decode are answered before it sees them.

Ray decodes `x-request-id` and `x-session-id` as UTF-8 and answers everything else with a bare 500. The launcher
names `middlewares` in RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH, so it runs in the proxy's process.
"""

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from serve_app.http.errors import bad_request
from serve_app.http.responses import respond

IMPORT_PATH = "serve_app.http.proxy_guard.middlewares"
DECODED = (b"x-request-id", b"x-session-id", b"serve_multiplexed_model_id", b"serve-multiplexed-model-id")


class HeaderText:
    """Refuses header values that must be text and aren't."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            for name, value in scope.get("headers", ()):
                if name.lower() in DECODED and not _is_text(value):
                    field = name.decode("latin-1")
                    error = bad_request(f"The header `{field}` is not valid UTF-8.", field, "invalid_value")
                    await respond(error)(scope, receive, send)
                    return
        await self._app(scope, receive, send)


def middlewares() -> list[Middleware]:
    return [Middleware(HeaderText)]


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
