"""Predictive routing: a request goes where its prefix is, or where its session's next agents are, unless it's busy.

    score = cached_weight * tokens expected in the cache there
          + reach_weight  * tokens there of the session's likely next agents, by probability
          - load_weight   * requests in flight there * what a request costs

all in prompt tokens. A replica that has `hot_requests` more in flight than the least busy one comes after all that
don't: following prefixes alone makes a hot spot. Ties go to the replica where the session was last, since what is
computed ahead for it is computed there; then to the one chosen longest ago, so a new one isn't drowned and an empty
cluster is filled evenly. Without a fresh view of the cluster only the session's own place counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from runtime_actor.policies.base import ROUTER, Ordered, ReplicaOffer
from runtime_actor.policies.own import OwnPolicy
from runtime_actor.settings import number


@dataclass(frozen=True, slots=True)
class RoutingOptions:
    cached_weight: float = number(1.0, 0.0, 100.0)
    reach_weight: float = number(0.5, 0.0, 100.0)
    load_weight: float = number(1.0, 0.0, 100.0)
    hot_requests: int = number(4, 1, 10_000)


class RoutingPolicy(OwnPolicy[RoutingOptions]):
    name: ClassVar[str] = "routing"
    seat: ClassVar[str] = ROUTER
    kind: ClassVar[type[Any]] = RoutingOptions

    def order(self, items: Sequence[Ordered]) -> Sequence[tuple[float, ...] | None]:
        offers = [item for item in items if isinstance(item, ReplicaOffer)]
        if len(offers) < len(items):
            return [None] * len(items)
        least = min((offer.load for offer in offers), default=0)
        if not all(offer.is_known for offer in offers):
            self._counts["without_view"] += 1
            return [(float(not (o.is_home and o.load - least < self.options.hot_requests)),) for o in offers]
        self._counts["ranked"] += 1
        keys = [self._key(offer, least) for offer in offers]
        best = min(range(len(offers)), key=keys.__getitem__, default=None)
        if best is not None:
            self._note(offers[best])
        return keys

    def _key(self, offer: ReplicaOffer, least: int) -> tuple[float, ...]:
        options = self.options
        score = (
            options.cached_weight * offer.cached_tokens
            + options.reach_weight * offer.reach_tokens
            - options.load_weight * offer.load * offer.cost_tokens
        )
        is_hot = offer.load - least >= options.hot_requests
        return float(is_hot), -score, float(offer.load), float(not offer.is_last), offer.chosen_s

    def _note(self, offer: ReplicaOffer) -> None:
        """Why the first one is the first, as far as one reason can be told."""
        reason = "by_cache" if offer.cached_tokens else "by_reach" if offer.reach_tokens else "by_load"
        self._counts[reason] += 1
