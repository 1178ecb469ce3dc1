"""The ingress: who is asking, what may pass, where it went, what came of it.

A request's life here: caller (API key) -> body within limits -> identity -> engine request with the
gateway's own fields -> replica (chosen by `router.py`) -> acceptance -> answer with response headers.
What is refused on the way leaves nothing behind: no agent, no session, no event.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray import serve
from ray.serve.llm.ingress import OpenAiIngress
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from replicas.garbage import freeze_what_stays
from replicas.internal_port import bind_to_node_address
from runtime_actor.client import RuntimeClient
from runtime_actor.memo_actor import get_or_create
from runtime_actor.messages import OwnerTag, RequestAccepted, RequestArrived, SessionEnded
from runtime_actor.policies.base import GuessSuggestion
from serve_app import preparation, routing_state
from serve_app.engine_api import RawRequestInfo
from serve_app.exchange import GatewayExchange
from serve_app.flight import Admission, Flight, Seats
from serve_app.generation import ContextLimits, Exchange
from serve_app.hints import (
    AHEAD_PRIORITY,
    CLIPPED,
    LEAD,
    cache_salt,
    engine_fields,
    forwarded_headers,
    read_hints,
)
from serve_app.http.errors import ApiError, bad_request, model_not_found, timed_out, unavailable
from serve_app.http.event_stream import EventStream
from serve_app.http.field_checks import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from serve_app.http.input import read_object
from serve_app.identity import IdentityResolver, fold_headers
from serve_app.leader import STARTED
from serve_app.memo_endpoints import MAX_CALLS, MemoEndpoints
from serve_app.metrics import GatewayMetrics
from serve_app.policies.desk import desk_of
from serve_app.policies.estimates import prompt_tokens
from serve_app.policies.memo_desk import MemoDesk
from serve_app.quotas import TenantQuotas
from serve_app.recognition.conversations import ConversationIndex
from serve_app.routes.messages import MessagesRoute
from serve_app.routes.responses import ResponsesRoute
from serve_app.routes.route import Route
from serve_app.runtime_endpoints import RuntimeEndpoints
from serve_app.settings import GatewaySettings
from serve_app.streaming import Opened
from serve_app.tenants import Caller, Tenants
from serve_app.utility_endpoints import UtilityEndpoints

HEADER_PREFIX = "x-agent-runtime-"
TIMED_OUT = 504

ROUTES: dict[str, Route] = {
    CHAT: Route(CHAT),
    COMPLETIONS: Route(COMPLETIONS),
    RESPONSES: ResponsesRoute(),
    MESSAGES: MessagesRoute(),
}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a gateway process has outside its configuration. `memo_actor`: (bytes, bytes of one tenant) -> handle of
    the actor that keeps tools' results."""

    name: str
    client: Any
    metrics: Any
    routing: routing_state.RoutingState
    memo_actor: Callable[[int, int], Any] = get_or_create


class Gateway(RuntimeEndpoints, MemoEndpoints, UtilityEndpoints, OpenAiIngress):
    """One deployment replica per gateway process; of several one serves (`serve_app.leader`)."""

    def __init__(self, llm_deployments: dict, model_cards: dict, *, settings: GatewaySettings) -> None:
        bind_to_node_address()
        super().__init__(llm_deployments, model_cards)
        name = serve.get_replica_context().replica_id.unique_id
        client = RuntimeClient(settings.runtime, settings.version)
        self.assemble(settings, Surroundings(name, client, GatewayMetrics(), routing_state.STATE))
        freeze_what_stays()

    def assemble(self, settings: GatewaySettings, around: Surroundings) -> None:
        """Everything that isn't Ray's."""
        config = settings.config
        self._settings = settings
        self._tenants = Tenants(config.gateway)
        self._quotas = TenantQuotas(self._tenants.quota)
        self._identities = IdentityResolver(settings.secret, ConversationIndex())
        self._admission = Admission(config.gateway.max_in_flight, config.gateway.retry_after_s, self._quotas)
        self._limits = preparation.Limits(frozenset(config.model.modalities), config.gateway.max_choices)
        self._context = ContextLimits(settings.usable_tokens, settings.model_tokens)
        self._metrics = around.metrics
        self._routing = around.routing
        self._routing.max_sessions = config.routing.max_sessions
        self._client = around.client
        self._policies = desk_of(settings, self._launch, self._routing.policies)
        self._memo = MemoDesk(self._policies, around.memo_actor)
        self._memo_seats = Seats(MAX_CALLS)
        self._exchange = GatewayExchange(around.name, self._client.exchange, self._routing, self._policies)
        self._began_s = time.time()

    def record_replica_metadata(self) -> dict[str, float]:
        """Ray asks once, and tells every proxy."""
        return {STARTED: self._began_s}

    async def check_health(self) -> None:
        """Serve calls it every few seconds: also what keeps the exchange loop alive."""
        self._exchange.start()
        self._metrics.publish_gauges(self._admission, self._exchange, self._routing)
        self._metrics.publish_policies(self._policies.as_state(None))

    # --- OpenAI's endpoints ----------------------------------------------------------------------------

    async def models(self, request: Request) -> Response:
        self._caller(request)
        return JSONResponse({"object": "list", "data": [self._card(name) for name in self._models]})

    async def model_data(self, model: str, request: Request) -> Response:
        self._caller(request)
        self._check_model(model)
        return JSONResponse(self._card(model))

    async def chat(self, request: Request) -> Response:
        return await self._generate(ROUTES[CHAT], request)

    async def completions(self, request: Request) -> Response:
        return await self._generate(ROUTES[COMPLETIONS], request)

    async def responses(self, request: Request) -> Response:
        return await self._generate(ROUTES[RESPONSES], request)

    async def messages(self, request: Request) -> Response:
        return await self._generate(ROUTES[MESSAGES], request)

    async def healthz(self) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(self) -> Response:
        """How many replicas report to the runtime now; each has answered a request of its own before it does.

        Raises ApiError 503 while there is none.
        """
        self._exchange.start()
        replicas = self._routing.num_replicas
        if replicas == 0:
            raise unavailable("No replica is ready yet.")
        return JSONResponse({"status": "ready", "replicas": replicas})

    # --- a generation ----------------------------------------------------------------------------------

    async def _generate(self, route: Route, request: Request) -> Response:
        try:
            return await self._answer(route, request)
        except ApiError as error:
            self._metrics.count_refusal(error.status)
            raise

    async def _answer(self, route: Route, request: Request) -> Response:
        self._exchange.start()
        arrived_s = time.time()
        headers = fold_headers(request.headers.raw)
        caller = self._caller(request, headers)
        self._quotas.count_request(caller.tenant)
        # Before the body is read: what is in flight bounds what is held of bodies too.
        slot = self._admission.admit(caller.tenant)
        try:
            body = await read_object(request, self._settings.config.gateway)
            self._check_model(body.get("model"))
            fields = route.prepare(body, self._limits)
            priority, report = read_hints(headers, body)
            view = route.identity_view(fields)
            resolved = self._identities.resolve(caller.tenant, headers, {**body, **view})
        except BaseException:
            slot.free()
            raise
        flight = Flight(slot, resolved.identity, resolved, report, arrived_s, view)
        return await self._fly(route, flight, fields, priority, headers)

    async def _fly(
        self, route: Route, flight: Flight, fields: dict[str, Any], priority: int, headers: dict[str, str]
    ) -> Response:
        """Ask a replica and answer; whatever happens, all that the flight holds is given back. What the engine computed
        for a request that nobody hears the end of is charged by its estimate."""
        handed_over = False
        try:
            if fields.get("model") in self._settings.config.model.adapters:
                flight.adapter = fields["model"]
            await self._wait_for_turn(route, flight, fields, priority, headers)
            exchange = self._start(route, flight, dict(flight.ticket.fields or fields), priority, headers)
            opened = await exchange.open()
            self._accept(flight, opened.accepted)
            flight.ticket.accepted(opened.accepted, bool(fields.get("stream")))
            response = self._respond(route, flight, opened, bool(fields.get("stream")))
            handed_over = isinstance(response, EventStream)
            return response
        except asyncio.CancelledError:
            # The client went away before an answer: the engine may have taken the request already.
            if flight.exchange is not None:
                self._accept(flight, None)
                self._quotas.take_tokens(flight.identity.tenant, prompt_tokens(flight.view))
            raise
        except ApiError as error:
            if error.status == TIMED_OUT and flight.exchange is not None:
                self._quotas.take_tokens(flight.identity.tenant, prompt_tokens(flight.view))
            raise route.own_error(error) from None
        finally:
            self._identities.refuse(flight.resolved)
            if not handed_over:
                self._finish(flight)

    async def _wait_for_turn(
        self, route: Route, flight: Flight, fields: dict[str, Any], priority: int, headers: dict[str, str]
    ) -> None:
        """In the gateway's queue, which is part of a request's time. Raises ApiError."""
        limit_s = self._settings.config.gateway.request_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                flight.ticket = await self._policies.enter(
                    flight.identity, fields, flight.view, priority, headers, flight.report, route.method
                )
        except TimeoutError:
            raise timed_out(limit_s) from None

    def _start(
        self, route: Route, flight: Flight, fields: dict[str, Any], priority: int, headers: dict[str, str]
    ) -> Exchange:
        identity = flight.identity
        tag = OwnerTag(identity.workload, identity.agent, identity.session)
        asked = priority - LEAD if flight.ticket.leads else priority
        allowed_priority = asked if self._settings.has_priorities else 0
        raw = RawRequestInfo(headers=forwarded_headers(headers))

        last: str | None = None

        def send(own_fields: dict[str, Any], has_failed: bool) -> Any:
            def to_replica(elsewhere: bool) -> Any:
                nonlocal last
                avoid = last if elsewhere or has_failed else None
                engine = self._engine_fields(identity.tenant, tag, allowed_priority, avoid)
                last = engine["request_id"]
                return self._call(route, {**own_fields, **engine}, raw)

            return flight.ticket.call(to_replica)

        flight.exchange = Exchange(
            send=send,
            fields=fields,
            limits=self._context,
            timeout_s=self._settings.config.gateway.request_timeout_s,
            started_s=flight.started_s,
            on_retry=self._metrics.count_retry,
            is_stuck=lambda: last is not None and self._routing.has_better_than(last),
        )
        return flight.exchange

    def _engine_fields(self, tenant: str, tag: OwnerTag, priority: int, avoid: str | None = None) -> dict[str, Any]:
        salt = cache_salt(self._settings.secret, self._settings.config.gateway.cache_owner(tenant))
        return engine_fields(tag, salt, priority, avoid)

    def _call(self, route: Route, fields: dict[str, Any], raw: RawRequestInfo) -> Any:
        """Raises ApiError. Without a model it is for the model itself, not for an adapter."""
        request = route.request({**fields, "model": fields.get("model") or self._settings.config.model.id})
        return getattr(self._handle, route.method).remote(request, raw)

    @property
    def _handle(self) -> Any:
        return self._get_configured_serve_handle(self._settings.config.model.id)

    def _launch(self, guess: GuessSuggestion) -> Any:
        """The call of a request that nobody has asked for yet."""
        tag = OwnerTag(guess.workload, guess.agent, guess.session)
        priority = AHEAD_PRIORITY if self._settings.has_priorities else 0
        fields = {**guess.fields, **self._engine_fields(guess.tenant, tag, priority)}
        return self._call(ROUTES[guess.method], fields, RawRequestInfo(headers={}))

    def _accept(self, flight: Flight, accepted: RequestAccepted | None) -> None:
        """The engine took the request: it is now part of its session."""
        identity = flight.identity
        flight.accepted = accepted
        flight.announced = True
        self._identities.accept(flight.resolved)
        if accepted is not None:
            self._quotas.take_tokens(identity.tenant, accepted.prompt_tokens)
            self._routing.record(
                identity.workload, identity.session, identity.agent, accepted.replica, accepted.prompt_tokens
            )
        self._exchange.add(
            RequestArrived(
                event_id=self._exchange.next_event_id(),
                t_s=flight.arrived_s,
                tenant=identity.tenant,
                workload=identity.workload,
                session=identity.session,
                agent=identity.agent,
                label=identity.label,
                replica=accepted.replica if accepted is not None else "",
                starts_session=identity.starts_session,
                adapter=flight.adapter,
            )
        )

    def _respond(self, route: Route, flight: Flight, opened: Opened, stream: bool) -> Response:
        exchange = flight.exchange
        assert exchange is not None
        if exchange.clipped:
            flight.report.note("max_tokens", CLIPPED)
        headers = self._headers(flight)
        if stream:
            heard = flight.answer.heard(flight.ticket.stream(exchange.events(opened)))
            return EventStream(route.stream(heard, flight.accepted), headers, lambda: self._finish(flight))
        exchange.end()
        content = route.answer(opened.first, flight.accepted)
        flight.ticket.content(content)
        flight.answer.add_response(content)
        self._quotas.take_tokens(flight.identity.tenant, _completion_tokens(content))
        return JSONResponse(content, headers=headers)

    def _headers(self, flight: Flight) -> dict[str, str]:
        headers = {
            "agent": flight.identity.agent,
            "session": flight.identity.session,
            "hints": flight.report.header(),
        }
        if flight.accepted is not None:
            headers["replica"] = flight.accepted.replica
            headers["cached-tokens"] = str(flight.accepted.cached_tokens)
        return {HEADER_PREFIX + name: value for name, value in headers.items()}

    def _finish(self, flight: Flight) -> None:
        """Give everything back; called once a request, whatever became of it."""
        is_cut = flight.exchange is None or not flight.exchange.is_over
        try:
            if flight.exchange is not None:
                flight.exchange.close()
            flight.ticket.leave()
        finally:
            flight.slot.free()
        identity = flight.identity
        if flight.announced:
            answer = flight.answer
            self._identities.answered(flight.resolved, str(answer), answer.turn, is_cut, answer.other_turns)
            self._quotas.take_tokens(identity.tenant, flight.answer.streamed_events)
        if identity.ends_session and flight.announced:
            self._end_session(identity.tenant, identity.workload, identity.session)

    def _end_session(self, tenant: str, workload: str, session: str) -> None:
        self._routing.end_session(workload, session)
        self._identities.session_ended(tenant, session)
        self._exchange.add(SessionEnded(self._exchange.next_event_id(), time.time(), tenant, workload, session))

    # --- small things ------------------------------------------------------------------------------------

    def _caller(self, request: Request, headers: dict[str, str] | None = None) -> Caller:
        """Raises ApiError 401."""
        folded = fold_headers(request.headers.raw) if headers is None else headers
        return self._tenants.caller(folded, request.client.host if request.client else None)

    def _check_model(self, model: Any) -> None:
        """Without one the request is for the model itself."""
        if model is None:
            return
        if not isinstance(model, str):
            raise bad_request("`model` must be a string.", "model", "invalid_value")
        if model not in self._models:
            raise model_not_found(model)

    @property
    def _models(self) -> list[str]:
        """The model and its adapters, by the names that requests use."""
        return [self._settings.config.model.id, *self._settings.config.model.adapters]

    def _card(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": int(self._began_s),
            "owned_by": "agent-runtime",
            "max_model_len": self._context.usable_tokens,
        }


def _completion_tokens(content: Any) -> int:
    """Of a whole answer, under the name of its route."""
    usage = content.get("usage") if isinstance(content, dict) else None
    if not isinstance(usage, dict):
        return 0
    return int(usage.get("completion_tokens") or usage.get("output_tokens") or 0)
