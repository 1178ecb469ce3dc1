"""The endpoints that count and convert tokens: one call to a replica, nothing generated."""

import json
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
from serve_app.http.field_checks import CHAT
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
        body = await self._utility_body(request)
        check_blocks(body, self._limits.modalities)
        fields = chat_body(AnthropicCountTokensRequest, body)
        fields["messages"] = preparation.checked_messages(fields["messages"], self._limits.modalities)
        counted = await self._utility(
            "tokenize", preparation.parsed(TokenizeChatRequest, fields), self._caller(request).tenant
        )
        return JSONResponse({"input_tokens": json.loads(bytes(counted.body))["count"]})

    async def tokenize(self, request: Request) -> Response:
        body = await self._utility_body(request)
        kind = TokenizeChatRequest if "messages" in body else TokenizeCompletionRequest
        if "messages" in body:
            body["messages"] = preparation.prepare(CHAT, {"messages": body["messages"]}, self._limits)["messages"]
        return await self._utility("tokenize", preparation.parsed(kind, body), self._caller(request).tenant)

    async def detokenize(self, request: Request) -> Response:
        body = await self._utility_body(request)
        return await self._utility(
            "detokenize", preparation.parsed(DetokenizeRequest, body), self._caller(request).tenant
        )

    async def _utility_body(self, request: Request) -> dict[str, Any]:
        self._quotas.count_request(self._caller(request).tenant)
        body = await read_object(request, self._settings.config.gateway)
        self._check_model(body.get("model"))
        return {name: value for name, value in body.items() if value is not None}

    async def _utility(self, method: str, engine_request: Any, tenant: str) -> Response:
        """One item in, one out; takes a place among the requests in flight."""
        slot = self._admission.admit(tenant)
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
            slot.free()
