"""A client's requests as a replica sees them: begun, accepted by the engine, finished.

The engine's own output stream is observed, not the text that goes to the client, so a client's
`stream_options` stay as they are. A request with n > 1 or several prompts is one request.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from replicas.clock import Clock
from runtime_actor.messages import DEMAND, OwnerTag, RequestFinished

ABORT = "abort"
ERROR = "error"


@dataclass(slots=True)
class RequestRecord:
    """One request of a client; `tag` is None where the gateway named no owner."""

    number: int
    tag: OwnerTag | None
    started_s: float
    accepted: asyncio.Event = field(default_factory=asyncio.Event)
    first_output_s: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str | None = None
    model: str = ""


CURRENT_REQUEST: ContextVar[RequestRecord | None] = ContextVar("current_request", default=None)
"""The request on whose behalf code runs; what an engine generates for it is counted there."""


class RequestLedger:
    """The requests in flight and what became of them; bounded by the replica's ongoing-request limit.

    `on_begin` is called when a request comes in, before the engine has it; `on_accepted` at the first
    output; `on_finish` with each RequestFinished. Requests that never were accepted by the engine and
    were not given up by their client (refusals) leave no trace.
    """

    def __init__(
        self,
        *,
        replica: str,
        clock: Clock,
        next_event_id: Callable[[], str],
        on_begin: Callable[[RequestRecord], None],
        on_accepted: Callable[[RequestRecord], None],
        on_finish: Callable[[RequestRecord, RequestFinished | None], None],
    ) -> None:
        self._replica = replica
        self._clock = clock
        self._next_event_id = next_event_id
        self._on_begin = on_begin
        self._on_accepted = on_accepted
        self._on_finish = on_finish
        self._numbers = itertools.count()
        self._in_flight: set[int] = set()
        self.last_output_s = clock.monotonic_s()

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    def begin(self, request: Any) -> RequestRecord:
        model = getattr(request, "model", None)
        record = RequestRecord(
            number=next(self._numbers),
            tag=owner_of(request),
            started_s=self._clock.monotonic_s(),
            model=model if isinstance(model, str) else "",
        )
        self._in_flight.add(record.number)
        self._on_begin(record)
        return record

    def prompt_seen(self, record: RequestRecord, *, prompt_tokens: int, cached_tokens: int) -> None:
        """The engine's first output for one of the request's prompts."""
        self.last_output_s = self._clock.monotonic_s()
        record.prompt_tokens += prompt_tokens
        record.cached_tokens += cached_tokens
        if record.first_output_s is None:
            record.first_output_s = self.last_output_s
            record.accepted.set()
            self._on_accepted(record)

    def tokens_seen(self, record: RequestRecord, *, new_tokens: int, finish_reason: str | None) -> None:
        self.last_output_s = self._clock.monotonic_s()
        record.completion_tokens += new_tokens
        if finish_reason is not None:
            record.finish_reason = finish_reason

    def finish(self, record: RequestRecord, *, failed: str | None) -> None:
        """The request is over, `failed` (ABORT or ERROR) unless its response came to its end."""
        if record.number not in self._in_flight:
            return
        self._in_flight.discard(record.number)
        refused = record.first_output_s is None and failed != ABORT
        event = None if refused or record.tag is None else self._event(record, record.tag, failed)
        self._on_finish(record, event)

    def _event(self, record: RequestRecord, tag: OwnerTag, failed: str | None) -> RequestFinished:
        first_s = record.first_output_s
        return RequestFinished(
            event_id=self._next_event_id(),
            t_s=self._clock.wall_s(),
            tenant=tag.workload,
            workload=tag.workload,
            session=tag.session,
            agent=tag.agent,
            replica=self._replica,
            prompt_tokens=record.prompt_tokens,
            cached_tokens=record.cached_tokens,
            completion_tokens=record.completion_tokens,
            finish_reason=failed or record.finish_reason or ERROR,
            ttft_s=None if first_s is None else first_s - record.started_s,
            e2e_s=self._clock.monotonic_s() - record.started_s,
        )


def owner_of(request: Any) -> OwnerTag | None:
    """The gateway's tag; None without one, with a malformed one, or with one that isn't a demand's."""
    tag = OwnerTag.of(getattr(request, "vllm_xargs", None))
    return tag if tag is not None and tag.request_kind == DEMAND else None
