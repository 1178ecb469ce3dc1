"""vLLM's waiting queue with policies that may put a request before others of its priority.

Bound: each time a request is taken from behind others, each of those has been passed over once more, and
nothing is ever taken from behind one that was passed over `max_passed_over` times. So a request waits for at
most that many more than were before it. A preempted request is never passed over: its blocks are kept for it.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from vllm.v1.core.sched.request_queue import RequestQueue, SchedulingPolicy
from vllm.v1.request import Request, RequestStatus

from runtime_actor.policies.base import QueuedPrefill
from runtime_actor.policies.host import PolicyHost

GroupOf = Callable[[Request], tuple[str, bytes | None]]
"""(group, the hash that is cached while its anchor is); ("", None) where none is known."""


@dataclass(frozen=True, slots=True)
class QueueBounds:
    window: int = 32
    max_passed_over: int = 8


class ShapedQueue(RequestQueue):
    """In the order of vLLM's own queue of that policy, but for what `host` puts first.

    What `peek_request` showed is what the next `pop_request` takes, unless the queue changes in between.
    """

    def __init__(
        self,
        policy: SchedulingPolicy,
        host: PolicyHost,
        bounds: QueueBounds,
        group_of: GroupOf,
        is_cached: Callable[[bytes], bool],
    ) -> None:
        self.bounds = bounds
        self.passed_over = 0
        self._by_priority = policy == SchedulingPolicy.PRIORITY
        self._host = host
        self._group_of = group_of
        self._is_cached = is_cached
        self._requests: list[Request] = []
        self._passed: dict[str, int] = {}
        self._groups: dict[str, tuple[str, bytes | None]] = {}
        self._last_group = ""
        self._head: int | None = None

    @property
    def passed(self) -> Mapping[str, int]:
        """Request id -> how often it was passed over, of those that were and still wait."""
        return self._passed

    def fill(self, requests: Iterable[Request], passed: Mapping[str, int]) -> None:
        """Take over an empty queue's first requests, in vLLM's own order; `passed` as of an earlier queue."""
        for request in requests:
            self.add_request(request)
        known = ((request.request_id, passed.get(request.request_id, 0)) for request in self._requests)
        self._passed = {request_id: times for request_id, times in known if times}

    def change(self, host: PolicyHost, bounds: QueueBounds) -> None:
        """Go on with other policies or bounds; who was passed over keeps its count."""
        self._host, self.bounds = host, bounds
        self._head = None

    # --- vLLM's interface ---------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        self._head = None
        if self._by_priority:
            bisect.insort(self._requests, request)
        else:
            self._requests.append(request)

    def prepend_request(self, request: Request) -> None:
        self._head = None
        if self._by_priority:
            bisect.insort(self._requests, request)
        else:
            self._requests.insert(0, request)

    def prepend_requests(self, requests: RequestQueue) -> None:
        for request in requests:
            self.prepend_request(request)

    def peek_request(self) -> Request:
        return self._requests[self._head_index()]

    def pop_request(self) -> Request:
        index = self._head_index()
        for passed in self._requests[:index]:
            self._passed[passed.request_id] = self._passed.get(passed.request_id, 0) + 1
        self.passed_over += index
        request = self._requests.pop(index)
        self._last_group = self._group(request)[0]
        self._forget(request)
        return request

    def remove_request(self, request: Request) -> None:
        self._requests.remove(request)
        self._forget(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        gone = set(requests)
        for request in gone:
            self._forget(request)
        self._requests = [request for request in self._requests if request not in gone]

    def __bool__(self) -> bool:
        return bool(self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """In vLLM's own order."""
        return iter(tuple(self._requests))

    # --- who is next --------------------------------------------------------------------------------

    def refresh(self) -> None:
        """The cache may hold other anchors now."""
        self._head = None

    def _head_index(self) -> int:
        """Raises IndexError for an empty queue, as vLLM's do."""
        if not self._requests:
            raise IndexError("peek from an empty queue")
        if self._head is None or self._head >= len(self._requests):
            self._head = self._chosen()
        return self._head

    def _chosen(self) -> int:
        open_to = self._open_to()
        if open_to < 2:
            return 0
        cached: dict[str, bool] = {}
        items = [self._item(request, cached) for request in self._requests[:open_to]]
        keys = self._host.order(items)
        return min(range(open_to), key=lambda index: (keys[index], index))

    def _open_to(self) -> int:
        """How many from the front may be taken next."""
        first = self._requests[0]
        most = self.bounds.max_passed_over
        for index, request in enumerate(self._requests[: self.bounds.window]):
            if self._by_priority and request.priority != first.priority:
                return index
            if self._passed.get(request.request_id, 0) >= most or request.status == RequestStatus.PREEMPTED:
                return index + 1
        return min(len(self._requests), self.bounds.window)

    def _item(self, request: Request, cached: dict[str, bool]) -> QueuedPrefill:
        group, anchor = self._group(request)
        if group not in cached:
            cached[group] = anchor is not None and self._is_cached(anchor)
        return QueuedPrefill(group, cached[group], bool(group) and group == self._last_group)

    def _group(self, request: Request) -> tuple[str, bytes | None]:
        known = self._groups.get(request.request_id)
        if known is None:
            known = self._groups[request.request_id] = self._group_of(request)
        return known

    def _forget(self, request: Request) -> None:
        self._head = None
        self._passed.pop(request.request_id, None)
        self._groups.pop(request.request_id, None)
