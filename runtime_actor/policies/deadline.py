"""Admission by deadline and priority: earliest deadline first, and no wait for what can't be in time.

A client says with `x-slo-ttft-ms` how long its first token may take. The estimate of what a request needs comes
from those served before: seconds a prompt token to be computed, and how much of a prompt an agent finds cached.
A request whose estimate, behind what is due before it, exceeds its deadline by the margin is refused at once
with 429 `deadline_unreachable`, rather than served too late at the cost of others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from runtime_actor.fair_map import FairMap
from runtime_actor.policies.base import (
    GATEWAY,
    Clock,
    Observation,
    Ordered,
    Refusal,
    RequestRefused,
    RequestSent,
    RequestServed,
    RequestView,
)
from runtime_actor.policies.own import OwnPolicy
from runtime_actor.settings import AnyPolicySettings, number

MAX_AGENTS = 4096
"""With a mean of what they find cached; shared fairly by tenants, longest unseen first."""
MAX_REQUESTS = 100_000
MEMORY = 0.1
"""Weight of the newest request in the running means."""
MIN_SERVED = 8
"""Requests with a measured first token before anything is refused: a guess is no reason."""


@dataclass(frozen=True, slots=True)
class DeadlineOptions:
    """`default_slo_s` is what requests that say nothing are ordered by; they are never refused. `shed` false
    only orders. `margin`: refused is what would take longer than so many times its deadline. Each step of a
    client's own priority (0 to 10, lower is earlier) puts a request back by `priority_step_s`, and leaves its
    session's cached KV `cache_share` of its value; 1 keeps all alike."""

    default_slo_s: float = number(30.0, 0.001, 3600.0)
    priority_step_s: float = number(10.0, 0.0, 3600.0)
    margin: float = number(1.2, 0.1, 100.0)
    shed: bool = True
    cache_share: float = number(0.8, 0.01, 1.0)


class Mean:
    """A running mean that follows changes; its first values count in full."""

    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += (value - self.value) * max(MEMORY, 1.0 / self.count)


class DeadlinePolicy(OwnPolicy[DeadlineOptions]):
    """What waits and is due earlier, divided by the rate at which prompts were served lately, is the queue
    ahead of a request; its own prompt comes on top."""

    name: ClassVar[str] = "deadline"
    seat: ClassVar[str] = GATEWAY
    kind: ClassVar[type[Any]] = DeadlineOptions
    reads_ttft_slo: ClassVar[bool] = True

    def __init__(self, settings: AnyPolicySettings, substrate: Clock) -> None:
        super().__init__(settings, substrate)
        self._seconds_per_token = Mean()
        self._gap_s = Mean()
        self._served_s = -math.inf
        self._cached: FairMap[str, Mean] = FairMap(MAX_AGENTS)
        self._waiting: dict[int, float] = {}

    def due_s(self, request: RequestView) -> float:
        """When its first token is due, its priority taken into account."""
        slo_s = request.ttft_slo_s if request.ttft_slo_s is not None else self.options.default_slo_s
        return request.arrived_s + slo_s + self.options.priority_step_s * request.priority

    def estimate_s(self, request: RequestView) -> float | None:
        """Seconds until the first token if it is queued now; None before enough was seen."""
        if self._seconds_per_token.count < MIN_SERVED:
            return None
        due_s = self.due_s(request)
        ahead = sum(1 for other_s in self._waiting.values() if other_s <= due_s)
        cached = self._cached.get(request.workload, request.agent)
        computed = request.prompt_tokens * (1.0 - (cached.value if cached is not None else 0.0))
        return ahead * self._gap_s.value + computed * self._seconds_per_token.value

    def admit(self, request: RequestView) -> Refusal | None:
        slo_s = request.ttft_slo_s
        estimate_s = self.estimate_s(request) if slo_s is not None and self.options.shed else None
        if slo_s is not None and estimate_s is not None and estimate_s > slo_s * self.options.margin:
            self._counts["shed"] += 1
            message = f"The first token would take about {estimate_s:.3g} s; `x-slo-ttft-ms` allows {slo_s:g} s."
            return Refusal(429, "deadline_unreachable", message, "x-slo-ttft-ms", retry_after_s=estimate_s)
        if len(self._waiting) < MAX_REQUESTS:
            self._waiting[request.request_id] = self.due_s(request)
        return None

    def order(self, items: Sequence[Ordered]) -> Sequence[tuple[float, ...] | None]:
        return [(self.due_s(item),) if isinstance(item, RequestView) else None for item in items]

    def observe(self, event: Observation) -> None:
        if isinstance(event, RequestSent):
            if self._waiting.pop(event.request.request_id, None) is not None:
                self._sent()
        elif isinstance(event, RequestRefused):
            self._waiting.pop(event.request.request_id, None)
        elif isinstance(event, RequestServed):
            self._waiting.pop(event.request.request_id, None)
            self._served(event)

    def _sent(self) -> None:
        """The gap between two that leave the queue counts only while others wait: else nobody was there."""
        now_s = self.substrate.now_s
        if self._waiting and math.isfinite(self._served_s):
            self._gap_s.add(max(0.0, now_s - self._served_s))
        self._served_s = now_s

    def _served(self, event: RequestServed) -> None:
        request = event.request
        if event.prompt_tokens <= 0:
            return
        agents = self._cached.part(request.workload)
        agents.setdefault(request.agent, Mean()).add(event.cached_tokens / event.prompt_tokens)
        agents.move_to_end(request.agent)
        self._cached.trim(request.workload)
        if event.ttft_s is None:
            return
        computed = max(1, event.prompt_tokens - event.cached_tokens)
        if not event.was_ahead:
            in_engine_s = max(0.0, event.ttft_s - event.waited_s)
            self._seconds_per_token.add(in_engine_s / computed)
        if request.ttft_slo_s is not None:
            self._counts["met" if event.ttft_s <= request.ttft_slo_s else "missed"] += 1

    def counters(self) -> Mapping[str, int]:
        return {**self._counts, "waiting": len(self._waiting)}
