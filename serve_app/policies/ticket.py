"""One request as the policies see it, from its admission to its last byte."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

from runtime_actor.messages import RequestAccepted
from runtime_actor.policies.base import (
    RequestRefused,
    RequestSent,
    RequestServed,
    RequestView,
)
from runtime_actor.policies.host import PolicyHost
from runtime_actor.policies.speculation import SpeculationPolicy
from serve_app.generation import Call
from serve_app.http.field_checks import RESPONSES
from serve_app.policies.ahead import Ahead, Guess, HedgedCall, JoinedCall
from serve_app.policies.answer_reader import AnswerReader
from serve_app.policies.answers import AnswerFilter
from serve_app.policies.estimates import PrefillEstimates
from serve_app.policies.response_filter import ResponseFilter
from serve_app.policies.turnstile import Pass, Turnstile

Send = Callable[[bool], Call]
"""Sends the request to a replica; True: to another one than the time before."""


class Desk(Protocol):
    """What a ticket needs of its desk."""

    host: PolicyHost
    turnstile: Turnstile | None
    ahead: Ahead
    prefills: PrefillEstimates
    open: int
    reads_answers: bool

    @property
    def now_s(self) -> float: ...

    @property
    def speculation(self) -> SpeculationPolicy | None: ...

    def has(self, hook: str) -> bool: ...

    def start_guesses(self) -> None: ...


class Ticket:
    """A request that no policy looks at."""

    fields: Mapping[str, Any] | None = None
    """What goes to the engine in the place of the client's own fields; None: those."""

    @property
    def leads(self) -> bool:
        """Whether it goes before others that the engines have."""
        return False

    def accepted(self, accepted: RequestAccepted | None, is_stream: bool) -> None:
        """The engine took the request, and its first content is here."""

    def has_output(self) -> None:
        """The engine has computed the prompt."""

    def call(self, send: Send) -> Call:
        """The call to the engine, or to what was started before."""
        return send(False)

    def content(self, body: dict[str, Any]) -> None:
        """Filter a whole answer in place. Raises ApiError."""

    def stream(self, events: AsyncIterator[str]) -> AsyncIterator[str]:
        return events

    def leave(self) -> None:
        """The request is over; called once."""


NO_TICKET = Ticket()


class PolicyTicket(Ticket):
    """A request that the policies look at."""

    def __init__(self, desk: Desk, request: RequestView, fields: Mapping[str, Any] | None) -> None:
        self.fields = fields
        self._desk = desk
        self._request = request
        self._pass: Pass | None = None
        self._guess = desk.ahead.take(request)
        self._was_ahead = False
        self._sent_s = 0.0
        self._hedged: HedgedCall | None = None
        self._ttft_s: float | None = None
        self._waited_s = 0.0
        self._accepted: RequestAccepted | None = None
        self._output_tokens = 0
        self._answer = AnswerReader() if desk.reads_answers else None
        desk.open += 1

    async def wait(self) -> None:
        """Its turn; a request that runs already needs none."""
        gate = self._desk.turnstile
        if gate is not None and self._guess is None:
            try:
                request = self._request
                tokens = self._desk.prefills.expected(request.tenant, request.agent, request.prompt_tokens)
                self._pass = await gate.enter(request, tokens)
            except BaseException:
                self._desk.open -= 1
                self._desk.host.observe(RequestRefused(self._request))
                raise
        self._sent_s = self._desk.now_s
        self._waited_s = max(0.0, self._sent_s - self._request.arrived_s)
        self._desk.host.observe(RequestSent(self._request, self._waited_s))

    @property
    def leads(self) -> bool:
        return self._pass is not None and self._pass.leads

    def accepted(self, accepted: RequestAccepted | None, is_stream: bool) -> None:
        self._accepted = accepted
        if accepted is not None and accepted.prompt_tokens and not self._was_ahead:
            request, computed = self._request, accepted.prompt_tokens - accepted.cached_tokens
            self._desk.prefills.note(request.tenant, request.agent, request.prompt_tokens, computed)
        if accepted is not None and is_stream:
            self._ttft_s = max(0.0, self._desk.now_s - self._request.arrived_s)

    def call(self, send: Send) -> Call:
        guess, self._guess = self._guess, None
        if guess is not None:
            return JoinedCall(guess, lambda: send(False), lambda is_joined: self._joined(guess, is_joined))
        policy = self._desk.speculation
        after_s = policy.hedge_after_s(self._request) if policy is not None else None
        if policy is None or after_s is None:
            return WatchedCall(send(False), self.has_output)
        self._hedged = HedgedCall(send, after_s, policy)
        return WatchedCall(self._hedged, self.has_output)

    def _joined(self, guess: Guess, is_joined: bool) -> None:
        self._was_ahead = is_joined
        self._desk.ahead.joined(guess, is_joined)

    def has_output(self) -> None:
        """The engine has computed the prompt."""
        if self._pass is not None:
            self._pass.has_output()
        policy = self._desk.speculation
        if policy is not None:
            waited_s = self._hedged.waited_s if self._hedged is not None else 0.0
            policy.began(max(0.0, self._desk.now_s - self._sent_s - waited_s))

    def content(self, body: dict[str, Any]) -> None:
        usage = body.get("usage")
        if isinstance(usage, dict):
            self._output_tokens = int(usage.get("completion_tokens") or usage.get("output_tokens") or 0)
        answer = self._filter()
        if answer is not None:
            answer.content(body)
        if self._answer is not None:
            self._answer.whole(body)

    async def stream(self, events: AsyncIterator[str]) -> AsyncIterator[str]:
        answer = self._filter()
        counted = self._counted(events)
        async for event in answer.stream(counted) if answer is not None else counted:
            if self._answer is not None:
                self._answer.feed(event)
            yield event

    async def _counted(self, events: AsyncIterator[str]) -> AsyncIterator[str]:
        """An event is about a token: streams aren't batched."""
        async for event in events:
            self._output_tokens += event.count("data: ")
            yield event

    def _filter(self) -> AnswerFilter | ResponseFilter | None:
        if not self._desk.has("output"):
            return None
        kind = ResponseFilter if self._request.method == RESPONSES else AnswerFilter
        return kind(lambda: self._desk.host.outputs(self._request))

    def leave(self) -> None:
        self._desk.open -= 1
        if self._pass is not None:
            self._pass.leave()
        if self._guess is not None:
            # Its client left before it was asked for.
            self._guess.cancel()
            self._desk.ahead.joined(self._guess, False)
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
                was_ahead=self._was_ahead,
                answer=self._answer.text if self._answer is not None else None,
            )
        )
        self._desk.start_guesses()


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
