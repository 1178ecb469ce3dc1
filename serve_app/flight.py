"""One request on its way: its place among those in flight, and what must be given back exactly once."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runtime_actor.messages import RequestAccepted
from serve_app.generation import Exchange
from serve_app.hints import HintReport
from serve_app.http.errors import overloaded
from serve_app.identity import Identity, Resolved
from serve_app.policies.ticket import NO_TICKET, Ticket
from serve_app.quotas import TenantQuotas
from serve_app.recognition.answers import AnswerText


class Admission:
    """At most `limit` requests in flight, and of a tenant what its quota allows; beyond it a 429 that says when
    to come back."""

    def __init__(self, limit: int, retry_after_s: int, quotas: TenantQuotas) -> None:
        self._limit = limit
        self._retry_after_s = retry_after_s
        self._quotas = quotas
        self.in_flight = 0
        self.refused = 0

    def admit(self, tenant: str) -> "Slot":
        """Raises ApiError 429."""
        if self.in_flight >= self._limit:
            self.refused += 1
            raise overloaded(self._retry_after_s)
        self._quotas.enter(tenant)
        self.in_flight += 1
        return Slot(lambda: self._release(tenant))

    def _release(self, tenant: str) -> None:
        self.in_flight -= 1
        self._quotas.leave(tenant)


class Seats:
    """At most `limit` calls at a time, of one tenant at most half of them, so that one alone can't take all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken: Counter[str] = Counter()

    def take(self, tenant: str) -> "Slot":
        """Raises ApiError 429."""
        if self._taken.total() >= self._limit or self._taken[tenant] >= max(1, self._limit // 2):
            raise overloaded(1)
        self._taken[tenant] += 1
        return Slot(lambda: self._leave(tenant))

    def _leave(self, tenant: str) -> None:
        self._taken[tenant] -= 1
        if not self._taken[tenant]:
            del self._taken[tenant]

    def __len__(self) -> int:
        return self._taken.total()


class Slot:
    """Held until `free`. A response that is never started is freed when it is collected."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def free(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()

    def __del__(self) -> None:
        self.free()


@dataclass(slots=True)
class Flight:
    """One request from its admission to its last byte. `view`: as chat completions have it; `started_s`: when its time
    limit began, monotonic."""

    slot: Slot
    identity: Identity
    resolved: Resolved
    report: HintReport
    arrived_s: float
    view: Mapping[str, Any]
    exchange: Exchange | None = None
    accepted: RequestAccepted | None = None
    announced: bool = False
    answer: AnswerText = field(default_factory=AnswerText)
    ticket: Ticket = NO_TICKET
    adapter: str = ""
    started_s: float = field(default_factory=time.monotonic)
