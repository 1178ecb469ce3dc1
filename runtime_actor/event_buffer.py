"""The bounded buffer between a request path and the loop that exchanges with the actor."""

from __future__ import annotations

import asyncio
from collections import deque

from runtime_actor.messages import Message

_EVENT_OVERHEAD_BYTES = 512
"""Flat charge for an event's small fields; token ids are counted as they are."""


class EventBuffer:
    """First in, first out; at its cap the oldest event is dropped and counted. Never blocks."""

    def __init__(self, *, max_events: int, max_bytes: int) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._events: deque[tuple[Message, int]] = deque()
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
        size = _EVENT_OVERHEAD_BYTES + len(getattr(event, "token_ids", b""))
        self._events.append((event, size))
        self._bytes += size
        self._trim()
        self._signal()

    def take(self, max_events: int) -> list[Message]:
        """Remove and return the oldest events."""
        taken: list[Message] = []
        while self._events and len(taken) < max_events:
            event, size = self._events.popleft()
            self._bytes -= size
            taken.append(event)
        self._signal()
        return taken

    def put_back(self, events: list[Message]) -> None:
        """Return events that could not be sent; they are the oldest, so the first to go at the cap."""
        for event in reversed(events):
            size = _EVENT_OVERHEAD_BYTES + len(getattr(event, "token_ids", b""))
            self._events.appendleft((event, size))
            self._bytes += size
        self._trim()
        self._signal()

    def _trim(self) -> None:
        while self._events and (len(self._events) > self._max_events or self._bytes > self._max_bytes):
            _, size = self._events.popleft()
            self._bytes -= size
            self.dropped += 1

    def _signal(self) -> None:
        if self._events:
            self.filled.set()
        else:
            self.filled.clear()
