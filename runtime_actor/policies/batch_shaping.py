"""Batch shaping: prefills that begin with one anchor go together, while the cache holds it.

Runs in the engine, over the requests in its waiting queue. The queue, not this policy, bounds how often
a request may be passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from runtime_actor.policies.base import ENGINE, Ordered, QueuedPrefill
from runtime_actor.policies.own import OwnPolicy
from runtime_actor.settings import number

AT_ONCE = (0.0,)
RESIDENT = (1.0,)
REST = (2.0,)


@dataclass(frozen=True, slots=True)
class BatchShapingOptions:
    """`window`: how many of the queue, from its front, are looked at. `max_passed_over`: after so many others
    have gone first, a request is passed over no more."""

    window: int = number(32, 2, 1024)
    max_passed_over: int = number(8, 1, 10_000)


class BatchShapingPolicy(OwnPolicy[BatchShapingOptions]):
    """First those of the group that went last, if its anchor is in the cache, then others whose anchor is,
    then the rest, each in the queue's own order. Where no anchor is known or cached that is the own order."""

    name: ClassVar[str] = "batch_shaping"
    seat: ClassVar[str] = ENGINE
    kind: ClassVar[type[Any]] = BatchShapingOptions

    def order(self, items: Sequence[Ordered]) -> Sequence[tuple[float, ...] | None]:
        self._counts["ordered"] += 1
        return [self._key(item) for item in items]

    def _key(self, item: Ordered) -> tuple[float, ...] | None:
        if not isinstance(item, QueuedPrefill):
            return None
        if not item.is_resident:
            return REST
        return AT_ONCE if item.follows else RESIDENT
