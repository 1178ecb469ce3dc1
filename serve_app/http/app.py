"""The gateway's FastAPI application: errors in one shape for every way a request can fail."""

from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from serve_app.config import GatewayConfig
from serve_app.http.errors import ApiError, from_pydantic
from serve_app.http.input import header_bytes
from serve_app.http.responses import respond

SLASHED = ("/", "/runtime/")
"""Paths that end with a slash by themselves."""

_STATUS_CODES = {404: "not_found", 405: "method_not_allowed"}


def make_app(limits: GatewayConfig) -> FastAPI:
    """No documentation pages, no CORS unless configured."""
    app = FastAPI(title="agent runtime", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(Exception, _unexpected)
    app.add_middleware(PlainPath)
    app.add_middleware(HeaderLimit, max_header_bytes=limits.max_header_bytes)
    if limits.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=limits.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["*"],
        )
    return app


class HeaderLimit:
    """Refuses a request whose headers are larger than `max_header_bytes` before anything reads them."""

    def __init__(self, app: ASGIApp, max_header_bytes: int) -> None:
        self._app = app
        self._max_header_bytes = max_header_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and header_bytes(scope) > self._max_header_bytes:
            error = ApiError(
                431, f"The headers are larger than {self._max_header_bytes} bytes.", code="headers_too_large"
            )
            await respond(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class PlainPath:
    """Takes a slash at a path's end away, which Starlette would answer with a redirect without JSON."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and path.endswith("/") and path not in SLASHED:
            scope = {**scope, "path": path.rstrip("/")}
        await self._app(scope, receive, send)


async def _api_error(request: Request, error: Any) -> JSONResponse:
    return respond(error, path=request.scope["path"])


async def _http_error(request: Request, error: Any) -> JSONResponse:
    status = error.status_code
    message = {404: "There is nothing at this path.", 405: "This method is not allowed here."}.get(
        status, "The request was refused."
    )
    headers = dict(error.headers or {})
    return respond(ApiError(status, message, code=_STATUS_CODES.get(status)), headers, request.scope["path"])


async def _validation_error(request: Request, error: Any) -> JSONResponse:
    return respond(from_pydantic([dict(entry) for entry in error.errors()]), path=request.scope["path"])


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    """Starlette logs the traceback."""
    failure = ApiError(500, "The request failed inside the server.", code="internal_error")
    return respond(failure, path=request.scope["path"])
