"""The endpoints under /runtime: what the runtime knows, what a framework tells it, the operator's switch."""

import math
import os
import re
import time
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from runtime_actor.errors import ConfigurationError, RuntimeUnavailable
from runtime_actor.messages import Message, SessionEnded, ToolReturned
from serve_app.http.errors import ApiError, bad_request, unavailable
from serve_app.http.input import read_object
from serve_app.identity import declared_value
from serve_app.tenants import Caller

MAX_EVENTS_PER_CALL = 256
MAX_TOOL_CHARS = 128
MAX_DURATION_S = 7 * 86_400.0
_EVENT_FIELDS = {
    "tool_returned": frozenset({"type", "session_id", "tool", "duration_s"}),
    "session_ended": frozenset({"type", "session_id"}),
}
_POLICY_FIELDS = frozenset({"name", "mode", "weight", "enabled", "prefetch", "fail_closed", "options"})
_WHOLE = re.compile(r"\s*-?[0-9]{1,9}\s*")
PAGE = Path(__file__).parent / "pages" / "live.html"


class RuntimeEndpoints:
    """Mixed into the gateway, whose parts it uses."""

    _settings: Any
    _client: Any
    _exchange: Any
    _routing: Any
    _identities: Any
    _admission: Any
    _policies: Any
    _memo: Any
    _metrics: Any
    _quotas: Any
    _tenants: Any

    def _caller(self, request: Request) -> Caller:
        raise NotImplementedError

    def _end_session(self, tenant: str, workload: str, session: str) -> None:
        raise NotImplementedError

    async def runtime_state(self, request: Request) -> Response:
        """A tenant sees its own; an operator everybody's, or with `?tenant=` one tenant's."""
        caller = self._runtime_caller(request)
        tenant = request.query_params.get("tenant") if caller.is_operator else caller.tenant
        try:
            await self._exchange.flush()
            state = await self._client.state(tenant)
        except RuntimeUnavailable:
            raise unavailable("The runtime actor is away; requests are still served.") from None
        rows = [*state.get("policies", ()), *self._policies.as_state(tenant)]
        gateway = self._gateway_state(caller)
        if tenant is None:
            gateway["memo"] = await self._memo.state()
        return JSONResponse({**state, "policies": rows, "gateway": gateway})

    async def runtime_predict(self, request: Request) -> Response:
        caller = self._runtime_caller(request)
        horizon = _horizon(request.query_params.get("horizon", "1"))
        declared = declared_value(request.query_params.get("session_id"))
        if declared is None:
            raise bad_request("`session_id` is required.", "session_id", "invalid_value")
        session = self._identities.session_id(caller.tenant, declared)
        try:
            await self._exchange.flush()
            forecast = await self._client.predict(caller.tenant, session, horizon)
        except ConfigurationError as error:
            raise bad_request(f"`{_after_path(str(error))}", "horizon", "invalid_value") from None
        except RuntimeUnavailable:
            raise unavailable("The runtime actor is away; requests are still served.") from None
        if forecast is None:
            raise ApiError(404, "No such session.", param="session_id", code="not_found")
        return JSONResponse(forecast)

    async def runtime_events(self, request: Request) -> Response:
        """One event or {"events": [...]}; all are checked before the first is taken."""
        caller = self._runtime_caller(request)
        body = await self._json_body(request)
        listed = body.get("events", None) if "events" in body else [body]
        if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_EVENTS_PER_CALL:
            raise bad_request(
                f"`events` must be an array of 1 to {MAX_EVENTS_PER_CALL} events.", "events", "invalid_value"
            )
        prefix = "events" if "events" in body else None
        checked = [
            self._event(caller, event, f"{prefix}[{index}]." if prefix else "") for index, event in enumerate(listed)
        ]
        for event in checked:
            if isinstance(event, SessionEnded):
                self._end_session(event.tenant, event.workload, event.session)
            else:
                self._exchange.add(event)
        return JSONResponse({"accepted": len(checked)}, status_code=202)

    async def runtime_policy(self, request: Request) -> Response:
        """Operators only: switch a policy's mode, weight or prefetch while everything runs."""
        caller = self._runtime_caller(request)
        if not caller.is_operator:
            raise ApiError(403, "Only an operator may change a policy.", code="forbidden")
        body = await self._json_body(request)
        for name in body:
            if name not in _POLICY_FIELDS:
                raise bad_request(
                    f"Unknown field; allowed are {', '.join(sorted(_POLICY_FIELDS))}.", None, "invalid_value"
                )
        name = body.pop("name", "kv_cache")
        if not isinstance(name, str):
            raise bad_request("`name` must be a string.", "name", "invalid_value")
        if isinstance(body.get("prefetch"), bool):
            body["prefetch"] = {"enabled": body["prefetch"]}
        try:
            return JSONResponse({"name": name, **await self._client.set_policy(name, body)})
        except ConfigurationError as error:
            raise bad_request(str(error), None, "invalid_value") from None
        except RuntimeUnavailable:
            raise unavailable("The runtime actor is away; try again.") from None

    async def runtime_page(self, request: Request) -> Response:
        """The page itself holds no data; it asks /runtime/state with the viewer's own key."""
        return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers={"cache-control": "no-cache"})

    def _runtime_caller(self, request: Request) -> Caller:
        """Each call is work for the one actor. Raises ApiError 401 or 429."""
        caller = self._caller(request)
        if not caller.is_operator:
            self._quotas.count_runtime_call(caller.tenant)
        return caller

    async def _json_body(self, request: Request) -> dict[str, Any]:
        """Browsers send JSON across origins only after a preflight, which is refused."""
        if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise ApiError(415, "The content type must be application/json.", code="unsupported_media_type")
        origin = request.headers.get("origin")
        if origin and origin.split("://")[-1] != request.headers.get("host"):
            raise ApiError(403, "Requests from other origins are refused.", code="forbidden")
        return await read_object(request, self._settings.config.gateway)

    def _event(self, caller: Caller, event: Any, path: str) -> Message:
        """Raises ApiError 400 naming the field."""
        if not isinstance(event, dict):
            raise bad_request("An event must be an object.", path.rstrip(".") or None, "invalid_value")
        kind = event.get("type")
        fields = _EVENT_FIELDS.get(kind) if isinstance(kind, str) else None
        if fields is None:
            allowed = ", ".join(sorted(_EVENT_FIELDS))
            raise bad_request(f"`{path}type` must be one of {allowed}.", f"{path}type", "invalid_value")
        if set(event) - fields:
            raise bad_request(
                f"Unknown field in an event of type {kind}; allowed are {', '.join(sorted(fields))}.",
                path.rstrip(".") or None,
                "invalid_value",
            )
        declared = declared_value(event.get("session_id"))
        if declared is None:
            raise bad_request(f"`{path}session_id` is required.", f"{path}session_id", "invalid_value")
        session = self._identities.session_id(caller.tenant, declared)
        event_id = self._exchange.next_event_id()
        if kind == "session_ended":
            return SessionEnded(event_id, time.time(), caller.tenant, caller.tenant, session)
        return ToolReturned(
            event_id,
            time.time(),
            caller.tenant,
            caller.tenant,
            session,
            _tool(event.get("tool"), path),
            _duration_s(event.get("duration_s"), path),
        )

    def _gateway_state(self, caller: Caller) -> dict[str, Any]:
        """A tenant sees its own use; what all of them do together is for the operator."""
        own = self._quotas.view(caller.tenant)
        view: dict[str, Any] = {"tenant": own, "in_flight": own["in_flight"]}
        if not caller.is_operator:
            return view
        age_s = self._exchange.age_s
        return {
            **view,
            "pid": os.getpid(),
            "in_flight": self._admission.in_flight,
            "refused_in_flight": self._admission.refused,
            "retries": self._metrics.retries,
            "routing": {"ranked": self._routing.ranked, "fallbacks": self._routing.fallbacks},
            "exchange_age_s": None if math.isinf(age_s) else round(age_s, 3),
            "dropped_events": self._exchange.buffer.dropped,
            "queue": self._policies.queue_state(),
            "keys": self._tenants.view(),
        }


def _horizon(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise bad_request("`horizon` must be a whole number.", "horizon", "invalid_value")
    return int(text)


def _after_path(message: str) -> str:
    """`horizon: 0 is not allowed...` as `horizon`: 0 is ..."""
    return message.replace(":", "`:", 1)


def _tool(value: Any, path: str) -> str:
    tool = declared_value(value)
    if tool is None or len(tool) > MAX_TOOL_CHARS:
        raise bad_request(
            f"`{path}tool` must be a string of at most {MAX_TOOL_CHARS} characters.",
            f"{path}tool",
            "invalid_value",
        )
    return tool


def _duration_s(value: Any, path: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MAX_DURATION_S:
        raise bad_request(
            f"`{path}duration_s` must be from 0 to {MAX_DURATION_S:g} seconds.",
            f"{path}duration_s",
            "invalid_value",
        )
    return float(value)
