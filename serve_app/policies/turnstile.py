"""The gateway's queue in front of the engines: a bounded amount of work passes, in the policies' order.

Two things are bounded: the requests inside, and the prompt tokens that are to be computed there before a first output,
without those that are expected to be cached. An engine computes prompts in the order in which it took them, so what is
inside can't be ordered any more; two steps' worth of tokens are enough to keep it busy. Work conserving within these
bounds: whoever comes while there is room and nobody waits passes at once, and room that becomes free goes to a waiting
request at once. How many may wait is bounded by the requests in flight.

Where a policy asks for it, a tenant's only request inside leads: it goes before the others that the engines have taken
and not begun, and between two steps also before what they have begun (`replicas/scheduler.py`). One such prompt at a
time may be inside beyond the bound on tokens.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from runtime_actor.policies.base import RequestView

Order = Callable[[Sequence[RequestView]], Sequence[tuple[float, ...]]]
"""A key for each request, smallest first."""


@dataclass(order=True, slots=True)
class _Waiter:
    """Within one flow: the client's own priority, then its deadlines, then first come."""

    priority: int
    due_s: float
    number: int
    request: RequestView = field(compare=False)
    tokens: int = field(compare=False)
    turn: asyncio.Future[Pass] = field(compare=False)


class Pass:
    """One request's room inside; each part of it is given back once. `leads`: it goes first in the engines."""

    def __init__(self, gate: Turnstile, tenant: str, tokens: int, leads: bool) -> None:
        self._gate: Turnstile | None = gate
        self._tenant = tenant
        self._tokens = tokens
        self._is_computed = False
        self.leads = leads

    def has_output(self) -> None:
        """Its prompt is computed."""
        gate = self._gate
        if gate is not None and not self._is_computed:
            self._is_computed = True
            gate.computed(self._tokens, self.leads)
            gate.grant()

    def leave(self) -> None:
        gate, self._gate = self._gate, None
        if gate is not None:
            if not self._is_computed:
                gate.computed(self._tokens, self.leads)
            gate.left(self._tenant)
            gate.grant()


class Turnstile:
    """Flows are a tenant's agents: the policies order the flows' first requests, not every single one."""

    def __init__(
        self, places: int, prefill_tokens: int, order: Order, lets_lead: Callable[[], bool] = lambda: False
    ) -> None:
        self.places = places
        self.prefill_tokens = prefill_tokens
        self.prefilling = 0
        """Prompt tokens to be computed, of requests inside that have no output yet."""
        self.passed = 0
        self.waited = 0
        self.inside = 0
        self.led = 0
        """How many passed as leading."""
        self._leading = 0
        """Of them those that have no output yet."""
        self._inside_of: Counter[str] = Counter()
        self._order = order
        self._lets_lead = lets_lead
        self._numbers = itertools.count()
        self._flows: dict[tuple[str, str], list[_Waiter]] = {}

    @property
    def waiting(self) -> int:
        return sum(map(len, self._flows.values()))

    async def enter(self, request: RequestView, tokens: int) -> Pass:
        """Returns when it is this request's turn. `tokens` of its prompt are to be computed. Cancelled, it has left
        already."""
        if not self._flows and self._has_room(request, tokens):
            return self._let_in(request, tokens)
        waiter = self._queue(request, tokens)
        self.grant()
        try:
            return await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.done() and not waiter.turn.cancelled():
                waiter.turn.result().leave()
            else:
                self._drop(waiter)
            raise

    def grant(self) -> None:
        """Give room to those who are to go next."""
        while self._flows and self.inside < self.places:
            waiter = self._next()
            if waiter.turn.done():
                # Its client has left in this very turn of the loop.
                self._pop(waiter)
                continue
            if not self._has_room(waiter.request, waiter.tokens):
                return
            self._pop(waiter)
            waiter.turn.set_result(self._let_in(waiter.request, waiter.tokens))

    def computed(self, tokens: int, leads: bool) -> None:
        """A prompt inside has its first output, or has left without one."""
        self.prefilling -= tokens
        self._leading -= leads

    def left(self, tenant: str) -> None:
        self.inside -= 1
        self._inside_of[tenant] -= 1
        if not self._inside_of[tenant]:
            del self._inside_of[tenant]

    def _has_room(self, request: RequestView, tokens: int) -> bool:
        """A prompt longer than the bound goes alone, or leads."""
        fits = self.prefilling + tokens <= self.prefill_tokens or not self.prefilling
        return self.inside < self.places and (fits or (not self._leading and self._leads(request)))

    def _leads(self, request: RequestView) -> bool:
        return bool(self._inside_of) and request.tenant not in self._inside_of and self._lets_lead()

    def _let_in(self, request: RequestView, tokens: int) -> Pass:
        leads = self._leads(request)
        self.led += leads
        self._leading += leads
        self.inside += 1
        self._inside_of[request.tenant] += 1
        self.passed += 1
        self.prefilling += tokens
        return Pass(self, request.tenant, tokens, leads)

    def _queue(self, request: RequestView, tokens: int) -> _Waiter:
        slo_s = request.ttft_slo_s
        due_s = request.arrived_s + slo_s if slo_s is not None else float("inf")
        turn = asyncio.get_running_loop().create_future()
        waiter = _Waiter(request.priority, due_s, next(self._numbers), request, tokens, turn)
        heapq.heappush(self._flows.setdefault((request.tenant, request.agent), []), waiter)
        self.waited += 1
        return waiter

    def _next(self) -> _Waiter:
        heads = [flow[0] for flow in self._flows.values()]
        keys = self._order([head.request for head in heads]) if len(heads) > 1 else [()]
        best = min(range(len(heads)), key=lambda i: (keys[i], heads[i].priority, heads[i].number))
        return heads[best]

    def _pop(self, head: _Waiter) -> None:
        flow = self._flows[head.request.tenant, head.request.agent]
        heapq.heappop(flow)
        if not flow:
            del self._flows[head.request.tenant, head.request.agent]

    def _drop(self, waiter: _Waiter) -> None:
        key = (waiter.request.tenant, waiter.request.agent)
        left = [other for other in self._flows.get(key, ()) if other is not waiter]
        heapq.heapify(left)
        if left:
            self._flows[key] = left
        else:
            self._flows.pop(key, None)
