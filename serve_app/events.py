"""Events on their way to the actor: bounded, oldest dropped and counted (pure)."""

import itertools
from collections import deque

from runtime_actor.messages import Message

MAX_EVENTS = 4096
"""About a minute of a busy gateway; the actor away for longer costs the oldest events."""


class EventBuffer:
    """One loop's own; `take` and `put_back` keep the order."""

    def __init__(self, name: str, max_events: int = MAX_EVENTS) -> None:
        self._name = name
        self._max_events = max_events
        self._events: deque[Message] = deque()
        self._numbers = itertools.count()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._events)

    def next_id(self) -> str:
        """Unique over all gateways and their restarts, if the name is."""
        return f"{self._name}:{next(self._numbers)}"

    def add(self, event: Message) -> None:
        self._events.append(event)
        self._trim()

    def take(self, limit: int) -> list[Message]:
        return [self._events.popleft() for _ in range(min(limit, len(self._events)))]

    def put_back(self, events: list[Message]) -> None:
        """What could not be delivered goes to the front again."""
        self._events.extendleft(reversed(events))
        self._trim()

    def _trim(self) -> None:
        while len(self._events) > self._max_events:
            self._events.popleft()
            self.dropped += 1
