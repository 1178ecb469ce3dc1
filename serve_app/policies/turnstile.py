"""The gateway's queue in front of the engines: a bounded number of requests pass, in the policies' order.

Work conserving: whoever comes while a place is free and nobody waits passes at once, and a place that becomes
free goes to a waiting request at once. How many may wait is bounded by the requests in flight.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
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
    turn: asyncio.Future[None] = field(compare=False)


class Turnstile:
    """Flows are a tenant's agents: the policies order the flows' first requests, not every single one."""

    def __init__(self, places: int, order: Order) -> None:
        self.places = places
        self.passed = 0
        self.waited = 0
        self.inside = 0
        self._order = order
        self._numbers = itertools.count()
        self._flows: dict[tuple[str, str], list[_Waiter]] = {}

    @property
    def waiting(self) -> int:
        return sum(map(len, self._flows.values()))

    async def enter(self, request: RequestView) -> None:
        """Returns when it is this request's turn; `leave` must follow. Cancelled, it has left already."""
        if self.inside < self.places and not self._flows:
            self.inside += 1
            self.passed += 1
            return
        waiter = self._queue(request)
        self.grant()
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.done() and not waiter.turn.cancelled():
                self.leave()
            else:
                self._drop(waiter)
            raise

    def leave(self) -> None:
        self.inside -= 1
        self.grant()

    def grant(self) -> None:
        """Give free places to those who are to go next."""
        while self.inside < self.places and self._flows:
            waiter = self._next()
            if waiter.turn.done():
                # Its client has left in this very turn of the loop.
                continue
            self.inside += 1
            self.passed += 1
            waiter.turn.set_result(None)

    def _queue(self, request: RequestView) -> _Waiter:
        slo_s = request.ttft_slo_s
        due_s = request.arrived_s + slo_s if slo_s is not None else float("inf")
        turn = asyncio.get_running_loop().create_future()
        waiter = _Waiter(request.priority, due_s, next(self._numbers), request, turn)
        heapq.heappush(self._flows.setdefault((request.tenant, request.agent), []), waiter)
        self.waited += 1
        return waiter

    def _next(self) -> _Waiter:
        heads = [flow[0] for flow in self._flows.values()]
        keys = self._order([head.request for head in heads]) if len(heads) > 1 else [()]
        best = min(range(len(heads)), key=lambda i: (keys[i], heads[i].priority, heads[i].number))
        waiter = heads[best]
        flow = self._flows[waiter.request.tenant, waiter.request.agent]
        heapq.heappop(flow)
        if not flow:
            del self._flows[waiter.request.tenant, waiter.request.agent]
        return waiter

    def _drop(self, waiter: _Waiter) -> None:
        key = (waiter.request.tenant, waiter.request.agent)
        left = [other for other in self._flows.get(key, ()) if other is not waiter]
        heapq.heapify(left)
        if left:
            self._flows[key] = left
        else:
            self._flows.pop(key, None)
