"""The endpoints that count and convert tokens: one call to a replica, nothing generated."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from serve_app import preparation
from serve_app.engine_api import (
    AnthropicCountTokensRequest,
    DetokenizeRequest,
    RawRequestInfo,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
)
from serve_app.generation import Exchange
from serve_app.http.blocks import check_blocks
from serve_app.http.field_checks import CHAT, check_tokens
from serve_app.http.input import read_object
from serve_app.routes.messages import chat_body
from serve_app.tenants import Caller


class UtilityEndpoints:
    """Mixed into the gateway, whose parts it uses."""

    _settings: Any
    _admission: Any
    _context: Any
    _limits: Any
    _metrics: Any
    _quotas: Any
    _handle: Any

    def _caller(self, request: Request) -> Caller:
        raise NotImplementedError

    def _check_model(self, model: Any) -> None:
        raise NotImplementedError

    async def count_tokens(self, request: Request) -> Response:
        """Of a Messages request, which /tokenize counts as the chat completion it is served as."""
        async with self._admitted(request) as body:
            check_blocks(body, self._limits.modalities)
            fields = chat_body(AnthropicCountTokensRequest, body)
            fields["messages"] = preparation.checked_messages(fields["messages"], self._limits.modalities)
            counted = await self._utility("tokenize", preparation.parsed(TokenizeChatRequest, fields))
            return JSONResponse({"input_tokens": json.loads(bytes(counted.body))["count"]})

    async def tokenize(self, request: Request) -> Response:
        async with self._admitted(request) as body:
            kind = TokenizeChatRequest if "messages" in body else TokenizeCompletionRequest
            if "messages" in body:
                body["messages"] = preparation.prepare(CHAT, {"messages": body["messages"]}, self._limits)["messages"]
            return await self._utility("tokenize", preparation.parsed(kind, body))

    async def detokenize(self, request: Request) -> Response:
        async with self._admitted(request) as body:
            check_tokens(body.get("tokens"))
            return await self._utility("detokenize", preparation.parsed(DetokenizeRequest, body))

    @contextlib.asynccontextmanager
    async def _admitted(self, request: Request) -> AsyncIterator[dict[str, Any]]:
        """The body, of a request that has its place among those in flight before it is read. Raises ApiError."""
        tenant = self._caller(request).tenant
        self._quotas.count_request(tenant)
        slot = self._admission.admit(tenant)
        try:
            body = await read_object(request, self._settings.config.gateway)
            self._check_model(body.get("model"))
            yield {name: value for name, value in body.items() if value is not None}
        finally:
            slot.free()

    async def _utility(self, method: str, engine_request: Any) -> Response:
        """One item in, one out."""
        exchange = Exchange(
            send=lambda _fields, _has_failed: getattr(self._handle, method).remote(
                engine_request, RawRequestInfo(headers={})
            ),
            fields={},
            limits=self._context,
            timeout_s=self._settings.config.gateway.request_timeout_s,
            on_retry=self._metrics.count_retry,
        )
        try:
            opened = await exchange.open()
            return JSONResponse(opened.first.model_dump())
        finally:
            exchange.close()
