"""Events on their way in: decoding, content checks, duplicates, order, and the log that replays."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from runtime_actor.errors import MessageError
from runtime_actor.ledger import IssuedAction
from runtime_actor.messages import MAX_NUMBER, AnchorRecorded, Message, RequestFinished, event_from_wire

MAX_ID_CHARACTERS = 256
MAX_EVENTS_PER_CALL = 4096
ALLOWED_CLOCK_SKEW_S = 5.0


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events of one call, without duplicates, oldest first."""

    now_s: float
    events: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Registration:
    """Where a replica says that its sessions stand: [workload, session, previous, current, t_s]."""

    now_s: float
    replica: str
    rows: tuple[tuple[str, str, str, str, float], ...]


@dataclass(frozen=True, slots=True)
class ActionsIssued:
    """Prefetches that were handed to their replica."""

    now_s: float
    actions: tuple[IssuedAction, ...]


@dataclass(frozen=True, slots=True)
class ReplicasLost:
    """Replicas that stopped reporting."""

    now_s: float
    replicas: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Something was due: an idle session or an unanswered prefetch."""

    now_s: float


Entry = EventBatch | Registration | ActionsIssued | ReplicasLost | TimePassed


class EventLog:
    """Entries applied since `base` (None: since the beginning); replaying them on it gives the state at hand.

    A new base is a state that was read out anyhow, for a checkpoint. If none comes within `cap` events the log is given
    up until the next one: reading a large state out takes a while in which nobody is answered.
    """

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._entries: deque[Entry] = deque()
        self._size = 0
        self.base: dict[str, Any] | None = None
        self.is_whole = True
        """Whether nothing was left out since `base`."""

    def append(self, entry: Entry) -> None:
        if not self.is_whole:
            return
        self._entries.append(entry)
        self._size += 1
        if isinstance(entry, EventBatch):
            self._size += len(entry.events)
        elif isinstance(entry, Registration):
            self._size += len(entry.rows)
        if self._size > self._cap:
            self._empty()
            self.base, self.is_whole = None, False

    def rebase(self, base: dict[str, Any]) -> None:
        """Begin anew from a state that nobody changes."""
        self._empty()
        self.base, self.is_whole = base, True

    def _empty(self) -> None:
        self._entries.clear()
        self._size = 0

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def __len__(self) -> int:
        return self._size


class SeenIds:
    """Event ids seen, at most `cap`, oldest forgotten first: an event told again later counts again."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._ids: OrderedDict[str, None] = OrderedDict()

    def add(self, event_id: str) -> bool:
        """False if it was there already."""
        if event_id in self._ids:
            return False
        self._ids[event_id] = None
        if len(self._ids) > self._cap:
            self._ids.popitem(last=False)
        return True

    def __contains__(self, event_id: str) -> bool:
        return event_id in self._ids

    def dump(self) -> list[str]:
        return list(self._ids)

    def restore(self, ids: Iterable[str]) -> None:
        self._ids = OrderedDict((str(i), None) for i in list(ids)[-self._cap :])

    def __len__(self) -> int:
        return len(self._ids)


def decode(wire: Any, now_s: float) -> Message:
    """An event whose content is sane; a time ahead of this side's clock becomes now.

    Raises:
        MessageError: unknown kind, wrong type, a value that is negative, not finite or too long.
    """
    event = event_from_wire(wire)
    for part in dataclasses.fields(event):  # type: ignore[arg-type]
        value = getattr(event, part.name)
        if isinstance(value, str) and len(value) > MAX_ID_CHARACTERS:
            raise MessageError(f"{event.kind}: field {part.name!r} is longer than {MAX_ID_CHARACTERS}")
        if isinstance(value, (int, float)) and not 0 <= value <= MAX_NUMBER:
            raise MessageError(f"{event.kind}: field {part.name!r} must be from 0 to {MAX_NUMBER:g}")
    if isinstance(event, RequestFinished) and event.cached_tokens > event.prompt_tokens:
        raise MessageError(f"{event.kind}: field 'cached_tokens' is larger than 'prompt_tokens'")
    if isinstance(event, AnchorRecorded) or event.t_s <= now_s + ALLOWED_CLOCK_SKEW_S:  # type: ignore[attr-defined]
        return event
    return dataclasses.replace(event, t_s=now_s)  # type: ignore[type-var]
