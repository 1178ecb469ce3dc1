"""The endpoints under /runtime/memo: may this tool call be answered from an earlier one?"""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from runtime_actor.errors import RuntimeUnavailable
from serve_app.flight import Seats
from serve_app.http.errors import bad_request, unavailable
from serve_app.identity import IdentityResolver, declared_value
from serve_app.policies.memo_desk import MAX_WAIT_S, MemoDesk
from serve_app.tenants import Caller

MAX_NAME_CHARS = 256
MAX_CALLS = 1024
"""At a time, those that wait for another's run among them; beyond it, and of one tenant beyond half of it, a call is
refused (429) before its body is read, and its caller runs the tool."""
MISSING = object()


class MemoEndpoints:
    """Mixed into the gateway, whose parts it uses. Each of them answers for the caller's tenant alone."""

    _memo: MemoDesk
    _memo_seats: Seats
    _identities: IdentityResolver

    def _caller(self, request: Request) -> Caller:
        raise NotImplementedError

    async def _json_body(self, request: Request) -> dict[str, Any]:
        raise NotImplementedError

    async def memo_lookup(self, request: Request) -> Response:
        """{"tool", "version"?, "arguments"?, "wait_s"?} -> {"outcome": "hit", "value", "age_s"}, or "run" with a
        ticket for `store` or `release` (null: run it, nothing will be kept), or "wait": ask again. With
        "session_id" the answer may have "ahead": [{"tool", "version", "arguments"}], calls to be run before they are
        made, each of them after a look-up with "ahead": true, which is answered with "run" and a ticket or
        "refused"."""
        allowed = {"tool", "version", "arguments", "wait_s", "session_id", "ahead"}
        async with self._seated(request, allowed) as (tenant, body):
            answer = await self._looked_up(tenant, body)
        value = answer.pop("value", None)
        if value is None:
            return JSONResponse(answer)
        head = json.dumps(answer)[:-1].encode()
        return Response(head + b', "value": ' + value + b"}", media_type="application/json")

    async def _looked_up(self, tenant: str, body: dict[str, Any]) -> dict[str, Any]:
        """Raises ApiError 400."""
        arguments = body.get("arguments", {})
        if not isinstance(arguments, dict):
            raise bad_request("`arguments` must be an object.", "arguments", "invalid_value")
        tool, version = _name(body, "tool"), _optional_name(body, "version")
        if _flag(body, "ahead"):
            return await self._memo.lookup_ahead(tenant, tool, version, arguments)
        wait_s, session = _wait_s(body.get("wait_s", 0.0)), self._session_of(tenant, body)
        return await self._memo.lookup(tenant, tool, version, arguments, wait_s, session)

    async def memo_store(self, request: Request) -> Response:
        """{"ticket", "value"} -> {"stored": bool, "reason"}, and "ahead" as for a look-up; `value` is any JSON."""
        async with self._seated(request, {"ticket", "value"}) as (tenant, body):
            ticket, value = _name(body, "ticket"), body.get("value", MISSING)
            if value is MISSING:
                raise bad_request("`value` is required.", "value", "invalid_value")
            encoded = json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()
            answer = await self._memo.store(tenant, ticket, encoded)
        return JSONResponse({"stored": answer["reason"] == "stored", **answer})

    async def memo_release(self, request: Request) -> Response:
        """{"ticket"}: the tool failed, nothing is kept, the next caller runs it."""
        async with self._seated(request, {"ticket"}) as (tenant, body):
            return JSONResponse({"released": await self._memo.release(tenant, _name(body, "ticket"))})

    async def memo_invalidate(self, request: Request) -> Response:
        """{"tool"} or {"event"}, or both -> {"invalidated": how many results were dropped}."""
        async with self._seated(request, {"tool", "event"}) as (tenant, body):
            tool, event = _optional_name(body, "tool"), _optional_name(body, "event")
            if tool is None and event is None:
                raise bad_request("`tool` or `event` is required.", "tool", "invalid_value")
            try:
                return JSONResponse({"invalidated": await self._memo.invalidate(tenant, tool, event)})
            except RuntimeUnavailable:
                raise unavailable("The memo actor is away; the results are dropped before the next look-up.") from None

    @contextlib.asynccontextmanager
    async def _seated(self, request: Request, allowed: set[str]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Tenant and body of a call that has its seat. Raises ApiError."""
        tenant = self._caller(request).tenant
        slot = self._memo_seats.take(tenant)
        try:
            yield tenant, _fields(await self._json_body(request), allowed)
        finally:
            slot.free()

    def _session_of(self, tenant: str, body: dict[str, Any]) -> str | None:
        """Ids that say nothing count as none, as everywhere."""
        name = _optional_name(body, "session_id")
        declared = declared_value(name)
        return self._identities.session_id(tenant, declared) if declared is not None else None


def _flag(body: dict[str, Any], field: str) -> bool:
    value = body.get(field, False)
    if not isinstance(value, bool):
        raise bad_request(f"`{field}` must be true or false.", field, "invalid_value")
    return value


def _fields(body: dict[str, Any], allowed: set[str]) -> dict[str, Any]:
    if set(body) - allowed:
        raise bad_request(f"Unknown field; allowed are {', '.join(sorted(allowed))}.", None, "invalid_value")
    return body


def _optional_name(body: dict[str, Any], field: str) -> str | None:
    return None if body.get(field) is None else _name(body, field)


def _name(body: dict[str, Any], field: str) -> str:
    value = body.get(field)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_CHARS:
        raise bad_request(f"`{field}` must be a string of 1 to {MAX_NAME_CHARS} characters.", field, "invalid_value")
    return value


def _wait_s(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= MAX_WAIT_S:
        raise bad_request(f"`wait_s` must be a number from 0 to {MAX_WAIT_S:g}.", "wait_s", "invalid_value")
    return float(value)
