"""The bounded buffer between a request path and the loop that exchanges with the actor."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import OrderedDict

from runtime_actor.fair_map import FairMap
from runtime_actor.messages import Message

_EVENT_OVERHEAD_BYTES = 512
"""Flat charge for an event's small fields; token ids are counted as they are."""


class EventBuffer:
    """First in, first out. Never blocks. At its cap an event is dropped and counted: the oldest of the tenant who adds
    if that one holds more than its share, else of the one who holds most."""

    def __init__(self, *, max_events: int, max_bytes: int) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._events: FairMap[int, Message] = FairMap(max_events)
        self._numbers = itertools.count()
        self._first = 0
        """Numbers below 0 are of events that were put back."""
        self._bytes = 0
        self.dropped = 0
        self.filled = asyncio.Event()
        """Set while there is something to send; the exchange loop waits on it."""

    def __len__(self) -> int:
        return len(self._events)

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def add(self, event: Message) -> None:
        owner = _owner(event)
        self._events.part(owner)[next(self._numbers)] = event
        self._bytes += _size(event)
        self._trim(owner)
        self._signal()

    def take(self, max_events: int) -> list[Message]:
        """Remove and return the oldest events."""
        oldest = heapq.nsmallest(max_events, ((n, owner) for owner, part in self._events for n in part))
        taken: list[Message] = []
        for number, owner in oldest:
            event = self._events.pop(owner, number)
            if event is not None:
                self._bytes -= _size(event)
                taken.append(event)
        self._signal()
        return taken

    def put_back(self, events: list[Message]) -> None:
        """Return events that could not be sent; they are the oldest, so the first to go at the cap."""
        for event in reversed(events):
            self._first -= 1
            part: OrderedDict[int, Message] = self._events.part(_owner(event))
            part[self._first] = event
            part.move_to_end(self._first, last=False)
            self._bytes += _size(event)
        for owner in {_owner(event) for event in events}:
            self._trim(owner)
        self._signal()

    def _trim(self, owner: str) -> None:
        while len(self._events) > self._max_events or (self._bytes > self._max_bytes and len(self._events)):
            event = self._events.pop(*self._events.oldest(owner))
            self._bytes -= _size(event) if event is not None else 0
            self.dropped += 1

    def _signal(self) -> None:
        if len(self._events):
            self.filled.set()
        else:
            self.filled.clear()


def _owner(event: Message) -> str:
    return str(getattr(event, "workload", ""))


def _size(event: Message) -> int:
    return _EVENT_OVERHEAD_BYTES + len(getattr(event, "token_ids", b""))
