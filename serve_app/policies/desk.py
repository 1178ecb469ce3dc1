"""Where the gateway asks its policies: one ticket a request, from its admission to its last byte."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from runtime_actor.errors import ConfigurationError
from runtime_actor.messages import Message, RequestAccepted
from runtime_actor.policies import catalogue
from runtime_actor.policies.base import (
    GATEWAY,
    Clock,
    Policy,
    Refusal,
    RequestRefused,
    RequestSent,
    RequestServed,
    RequestView,
)
from runtime_actor.policies.host import PolicyHost
from runtime_actor.settings import AnyPolicySettings, PluggedSettings, RuntimeSettings
from serve_app.generation import Call
from serve_app.hints import ACCEPTED, CLIPPED, REJECTED, HintReport
from serve_app.http.errors import ApiError
from serve_app.identity import Identity
from serve_app.policies.answers import AnswerFilter
from serve_app.policies.estimates import output_tokens, prompt_tokens
from serve_app.policies.turnstile import Pass, Turnstile
from serve_app.settings import GatewaySettings

logger = logging.getLogger("ray.serve")

CALL_LIMIT_S = 0.25
"""What a call into a policy may take here: while it lasts this gateway serves nobody."""
SLO_HEADER = "x-slo-ttft-ms"
MAX_SLO_MS = 3_600_000
MIN_SLO_MS = 1
UNBOUNDED = (1 << 30, 1 << 40)


class WallClock:
    @property
    def now_s(self) -> float:
        return time.time()


class Ticket:
    """A request that no policy looks at."""

    fields: Mapping[str, Any] | None = None
    """What goes to the engine in the place of the client's own fields; None: those."""

    def accepted(self, accepted: RequestAccepted | None, is_stream: bool) -> None:
        """The engine took the request, and its first content is here."""

    def has_output(self) -> None:
        """The engine has computed the prompt."""

    def watch(self, call: Call) -> Call:
        """The call to the engine, as it is or with an eye on its first item."""
        return call

    def content(self, body: dict[str, Any]) -> None:
        """Filter a whole answer in place. Raises ApiError."""

    def stream(self, events: AsyncIterator[str]) -> AsyncIterator[str]:
        return events

    def leave(self) -> None:
        """The request is over; called once."""


NO_TICKET = Ticket()


class PolicyDesk:
    """The gateway's policies and its queue, which exists only while a policy that orders is on. `places`: how
    many requests the engines work on at once; `prefill_tokens`: what is bounded of their prompts."""

    def __init__(
        self,
        settings: Sequence[AnyPolicySettings],
        failure_limit: int,
        places: int,
        prefill_tokens: int,
        model: str = "",
        config_version: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self._failure_limit = failure_limit
        self._config_version = config_version
        self._followed: list[dict[str, Any]] = []
        self._model = model
        self._bounds = (places, prefill_tokens)
        self._numbers = itertools.count()
        self._clock = clock if clock is not None else WallClock()
        self._settings: tuple[AnyPolicySettings, ...] = ()
        self.host = PolicyHost((), failure_limit, CALL_LIMIT_S)
        self.turnstile: Turnstile | None = None
        self.refused = 0
        self.after_event: Callable[[], None] = lambda: None
        """Called once the policies have seen an event: what they ask for may be carried out."""
        self.configure(settings)

    def follow(self, policies: list[dict[str, Any]], config_version: int) -> None:
        """What the actor says is in force, unless it is of an older deployment than this gateway."""
        if config_version < self._config_version or policies == self._followed:
            return
        try:
            settings = RuntimeSettings.from_dict({"policies": policies}).policies
        except ConfigurationError as error:
            logger.warning("Policies from the actor left out: %s", error)
            return
        self._followed = policies
        self.configure(settings)

    def configure(self, settings: Sequence[AnyPolicySettings]) -> None:
        """Take what the operator changed; a policy whose settings are the same goes on with what it knows."""
        settings = tuple(entry for entry in settings if isinstance(entry, PluggedSettings))
        if settings == self._settings:
            return
        self._settings = settings
        kept = {hosted.name: hosted for hosted in self.host.policies}
        made = catalogue.make_seated(settings, GATEWAY, self._clock)
        policies = [
            kept[p.settings.name].policy
            if p.settings.name in kept and kept[p.settings.name].policy.settings == p.settings
            else p
            for p in made
        ]
        self.host.close()
        self.host = PolicyHost(policies, self._failure_limit, CALL_LIMIT_S)
        self._set_queue()

    def _set_queue(self) -> None:
        wanted = self.has("order")
        if wanted and self.turnstile is None:
            self.turnstile = Turnstile(*self._bounds, lambda requests: self.host.order(requests))
        elif self.turnstile is not None:
            self.turnstile.places, self.turnstile.prefill_tokens = self._bounds if wanted else UNBOUNDED
            self.turnstile.grant()

    def has(self, hook: str) -> bool:
        return any(h.enabled and getattr(type(h.policy), hook) is not getattr(Policy, hook) for h in self.host.policies)

    @property
    def now_s(self) -> float:
        return self._clock.now_s

    @property
    def is_active(self) -> bool:
        return any(hosted.policy.settings.enabled for hosted in self.host.policies)

    def observe(self, event: Message) -> None:
        if self.is_active:
            self.host.observe(event)
            self.after_event()

    async def enter(
        self,
        identity: Identity,
        fields: Mapping[str, Any],
        view: Mapping[str, Any],
        priority: int,
        headers: Mapping[str, str],
        report: HintReport,
        is_readable: bool = True,
    ) -> Ticket:
        """Returns when the request may go to an engine. `view` is the request as chat completions have it.

        Raises ApiError where a policy refuses it."""
        if not self.is_active:
            return NO_TICKET
        request = RequestView(
            request_id=next(self._numbers),
            tenant=identity.tenant,
            workload=identity.workload,
            session=identity.session,
            agent=identity.agent,
            arrived_s=self._clock.now_s,
            prompt_tokens=prompt_tokens(view),
            output_tokens=output_tokens(fields),
            priority=priority,
            ttft_slo_s=self._slo_s(headers, report),
            fields=fields,
            model=self._model,
            is_readable=is_readable,
        )
        request, refusal = self.host.admit(request)
        if refusal is not None:
            self.refused += 1
            self.host.observe(RequestRefused(request))
            raise api_error(refusal)
        ticket = PolicyTicket(self, request, request.fields if request.fields is not fields else None)
        await ticket.wait()
        return ticket

    def _slo_s(self, headers: Mapping[str, str], report: HintReport) -> float | None:
        """Read only while a policy uses it; the report then says what became of it."""
        text = headers.get(SLO_HEADER, "").strip()
        if not text or not any(h.enabled and h.policy.reads_ttft_slo for h in self.host.policies):
            return None
        try:
            asked_ms = float(text)
        except ValueError:
            asked_ms = math.nan
        if not math.isfinite(asked_ms) or asked_ms <= 0:
            report.note(SLO_HEADER, REJECTED)
            return None
        slo_ms = min(max(asked_ms, MIN_SLO_MS), MAX_SLO_MS)
        report.note(SLO_HEADER, ACCEPTED if slo_ms == asked_ms else CLIPPED)
        return slo_ms / 1000.0

    def as_state(self, tenant: str | None) -> list[dict[str, Any]]:
        """Rows as of the actor's `policies`; a tenant's workload has its own name."""
        return self.host.as_state(None if tenant is None else {tenant})

    def queue_state(self) -> dict[str, int]:
        gate = self.turnstile
        if gate is None:
            return {"refused": self.refused}
        return {
            "refused": self.refused,
            "places": gate.places,
            "inside": gate.inside,
            "waiting": gate.waiting,
            "passed": gate.passed,
            "waited": gate.waited,
        }


class PolicyTicket(Ticket):
    """A request that the policies look at."""

    def __init__(self, desk: PolicyDesk, request: RequestView, fields: Mapping[str, Any] | None) -> None:
        self.fields = fields
        self._desk = desk
        self._request = request
        self._pass: Pass | None = None
        self._sent_s = 0.0
        self._ttft_s: float | None = None
        self._waited_s = 0.0
        self._accepted: RequestAccepted | None = None
        self._output_tokens = 0

    async def wait(self) -> None:
        gate = self._desk.turnstile
        if gate is not None:
            try:
                self._pass = await gate.enter(self._request)
            except BaseException:
                self._desk.host.observe(RequestRefused(self._request))
                raise
        self._sent_s = self._desk.now_s
        self._waited_s = max(0.0, self._sent_s - self._request.arrived_s)
        self._desk.host.observe(RequestSent(self._request, self._waited_s))

    def accepted(self, accepted: RequestAccepted | None, is_stream: bool) -> None:
        self._accepted = accepted
        if accepted is not None and is_stream:
            self._ttft_s = max(0.0, self._desk.now_s - self._request.arrived_s)

    def watch(self, call: Call) -> Call:
        return WatchedCall(call, self.has_output)

    def has_output(self) -> None:
        """The engine has computed the prompt."""
        if self._pass is not None:
            self._pass.has_output()

    def content(self, body: dict[str, Any]) -> None:
        usage = body.get("usage")
        if isinstance(usage, dict):
            self._output_tokens = int(usage.get("completion_tokens") or usage.get("output_tokens") or 0)
        answer = self._filter()
        if answer is not None:
            answer.content(body)

    async def stream(self, events: AsyncIterator[str]) -> AsyncIterator[str]:
        answer = self._filter()
        counted = self._counted(events)
        async for event in answer.stream(counted) if answer is not None else counted:
            yield event

    async def _counted(self, events: AsyncIterator[str]) -> AsyncIterator[str]:
        """An event is about a token: streams aren't batched."""
        async for event in events:
            self._output_tokens += event.count("data: ")
            yield event

    def _filter(self) -> AnswerFilter | None:
        if not self._request.is_readable or not self._desk.has("output"):
            return None
        return AnswerFilter(lambda: self._desk.host.outputs(self._request))

    def leave(self) -> None:
        if self._pass is not None:
            self._pass.leave()
        known = self._accepted
        self._desk.host.observe(
            RequestServed(
                request=self._request,
                prompt_tokens=known.prompt_tokens if known is not None else 0,
                cached_tokens=known.cached_tokens if known is not None else 0,
                output_tokens=self._output_tokens,
                ttft_s=self._ttft_s,
                waited_s=self._waited_s,
                held_s=max(0.0, self._desk.now_s - self._sent_s),
            )
        )


class WatchedCall:
    """A call that tells when its first item comes."""

    def __init__(self, call: Call, on_first: Callable[[], None]) -> None:
        self._call = call
        self._on_first = on_first

    async def __aiter__(self) -> AsyncIterator[Any]:
        is_first = True
        async for item in self._call:
            if is_first:
                is_first = False
                self._on_first()
            yield item

    def cancel(self) -> None:
        self._call.cancel()


def desk_of(settings: GatewaySettings) -> PolicyDesk:
    runtime = settings.config.runtime_settings()
    config = settings.config
    bounds = (config.running_requests, config.prefill_tokens)
    return PolicyDesk(runtime.policies, runtime.policy_failure_limit, *bounds, config.model.id, settings.version)


def api_error(refusal: Refusal) -> ApiError:
    headers: dict[str, str] = {}
    if refusal.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(refusal.retry_after_s)))
    return ApiError(refusal.status, refusal.message, param=refusal.param, code=refusal.code, headers=headers)
