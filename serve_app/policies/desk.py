"""Where the gateway asks its policies: one ticket a request, from its admission to its last byte."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runtime_actor.errors import ConfigurationError
from runtime_actor.messages import Message, SessionEnded
from runtime_actor.policies import catalogue
from runtime_actor.policies.base import (
    GATEWAY,
    Clock,
    GuessSuggestion,
    Observation,
    Refusal,
    RequestRefused,
    RequestView,
)
from runtime_actor.policies.host import PolicyHost
from runtime_actor.policies.speculation import SpeculationPolicy
from runtime_actor.settings import AnyPolicySettings, PluggedSettings, RuntimeSettings
from serve_app.generation import Call
from serve_app.hints import ACCEPTED, CLIPPED, REJECTED, HintReport
from serve_app.http.errors import ApiError
from serve_app.identity import Identity
from serve_app.policies.ahead import Ahead, Launch
from serve_app.policies.estimates import PrefillEstimates, output_tokens, prompt_tokens
from serve_app.policies.router_seat import RouterSeat
from serve_app.policies.ticket import NO_TICKET, PolicyTicket, Ticket
from serve_app.policies.turnstile import Turnstile
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
        router: RouterSeat | None = None,
    ) -> None:
        self.router = router if router is not None else RouterSeat()
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
        self.ahead = Ahead(no_launch, self.host_observe)
        self.prefills = PrefillEstimates()
        self.open = 0
        """Requests that the policies look at and that aren't over."""
        self.reads_answers = False
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
        self.router.configure(settings, self._failure_limit)
        made = catalogue.make_seated(settings, GATEWAY, self._clock)
        self.host = self.host.go_on_with(made, self._failure_limit, CALL_LIMIT_S)
        self.reads_answers = any(h.enabled and h.policy.reads_answers for h in self.host.policies)
        self._set_queue()
        if self.speculation is None:
            self.ahead.end_all()

    def _set_queue(self) -> None:
        """Without a policy that orders, also where it was switched off for its faults, requests don't wait here."""
        wanted = self.has("order")
        if wanted and self.turnstile is None:
            self.turnstile = Turnstile(*self._bounds, lambda requests: self.host.order(requests), self._lets_lead)
        elif self.turnstile is not None:
            self.turnstile.places, self.turnstile.prefill_tokens = self._bounds if wanted else UNBOUNDED
            self.turnstile.grant()

    def has(self, hook: str) -> bool:
        return self.host.has(hook)

    def _lets_lead(self) -> bool:
        return any(hosted.enabled and hosted.policy.lets_lead for hosted in self.host.policies)

    @property
    def now_s(self) -> float:
        return self._clock.now_s

    @property
    def is_active(self) -> bool:
        return any(hosted.policy.settings.enabled for hosted in self.host.policies)

    def observe(self, event: Message) -> None:
        if not self.is_active:
            return
        if isinstance(event, SessionEnded):
            self.ahead.end(event.workload, event.session)
        self.host.observe(event)
        self.after_event()

    def host_observe(self, event: Observation) -> None:
        self.host.observe(event)

    # --- requests ahead -----------------------------------------------------------------------------

    @property
    def speculation(self) -> SpeculationPolicy | None:
        """The policy, if it is on."""
        return self.host.running(SpeculationPolicy)

    def start_guesses(self) -> None:
        """Those that the policies ask for, while there is room that no client's request wants."""
        for guess in self.host.guesses():
            policy = self.speculation
            if policy is not None and self._has_room_ahead(policy.options.max_guesses, policy.options.max_load):
                self.ahead.start(guess)
            else:
                self.ahead.drop(guess)

    def _has_room_ahead(self, max_guesses: int, max_load: float) -> bool:
        gate = self.turnstile
        running = self.open + len(self.ahead)
        is_free = gate is None or not gate.waiting
        return is_free and len(self.ahead) < max_guesses and running < max_load * self._bounds[0]

    async def enter(
        self,
        identity: Identity,
        fields: Mapping[str, Any],
        view: Mapping[str, Any],
        priority: int,
        headers: Mapping[str, str],
        report: HintReport,
        method: str = "",
    ) -> Ticket:
        """Returns when the request may go to an engine. `view` is the request as chat completions have it.

        Raises ApiError where a policy refuses it."""
        if not self.is_active:
            return NO_TICKET
        if self.turnstile is not None and self.turnstile.places == self._bounds[0] and not self.has("order"):
            self._set_queue()
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
            model=str(fields.get("model") or self._model),
            method=method,
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
        workloads = None if tenant is None else {tenant}
        return [*self.host.as_state(workloads), *self.router.as_state(workloads)]

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
            "led": gate.led,
        }


def no_launch(guess: GuessSuggestion) -> Call:
    """Until a gateway says how. Raises RuntimeError."""
    raise RuntimeError(f"no way to an engine for {guess.agent}")


def desk_of(settings: GatewaySettings, launch: Launch, router: RouterSeat) -> PolicyDesk:
    runtime = settings.config.runtime_settings()
    config = settings.config
    bounds = (config.running_requests, config.prefill_tokens)
    version = settings.version
    desk = PolicyDesk(runtime.policies, runtime.policy_failure_limit, *bounds, config.model.id, version, router=router)
    desk.ahead.launch = launch
    return desk


def api_error(refusal: Refusal) -> ApiError:
    headers: dict[str, str] = {}
    if refusal.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(refusal.retry_after_s)))
    return ApiError(refusal.status, refusal.message, param=refusal.param, code=refusal.code, headers=headers)
