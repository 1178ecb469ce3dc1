"""Runs the policies so that a fault in one of them stays there, and combines what they say."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from runtime_actor.messages import Message
from runtime_actor.policies.base import CacheOwner, Policy, PrefetchSuggestion
from runtime_actor.tables import ReachTables

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True)
class Hosted:
    """A policy and how it behaves. `switched_off` is set once it failed too often."""

    policy: Policy
    calls: Counter[str] = field(default_factory=Counter)
    decisions: Counter[str] = field(default_factory=Counter)
    failures: int = 0
    switched_off: bool = False

    @property
    def enabled(self) -> bool:
        return self.policy.settings.enabled and not self.switched_off


class PolicyHost:
    """The policies in configured order. See `policies.base` for the rules of composition."""

    def __init__(self, policies: Sequence[Policy], failure_limit: int) -> None:
        self._hosted = [Hosted(policy) for policy in policies]
        self._failure_limit = failure_limit

    def observe(self, event: Message) -> None:
        for hosted in self._hosted:
            self._guarded(hosted, "observe", lambda policy: policy.observe(event))

    def score(self, item: CacheOwner) -> float | None:
        total = weights = 0.0
        for hosted in self._hosted:
            value = self._guarded(hosted, "score", lambda policy: policy.score(item))
            if value is not None:
                total += hosted.policy.settings.weight * value
                weights += hosted.policy.settings.weight
        return total / weights if weights > 0.0 else None

    def score_tables(self) -> dict[str, ReachTables]:
        merged: dict[str, ReachTables] = {}
        for hosted in self._hosted:
            tables = self._guarded(hosted, "score", lambda policy: policy.score_tables()) or {}
            for workload in tables:
                hosted.decisions[workload] += 1
            merged = {**tables, **merged}
        return merged

    def predict(self, workload: str, session: str, horizon: int) -> Mapping[str, float] | None:
        for hosted in self._hosted:
            forecast = self._guarded(hosted, "predict", lambda policy: policy.predict(workload, session, horizon))
            if forecast is not None:
                hosted.decisions[workload] += 1
                return forecast
        return None

    def act(self) -> list[PrefetchSuggestion]:
        found: dict[tuple[str, str, str], PrefetchSuggestion] = {}
        for hosted in self._hosted:
            for suggestion in self._guarded(hosted, "act", lambda policy: policy.act()) or []:
                hosted.decisions[suggestion.workload] += 1
                found.setdefault((suggestion.replica, suggestion.workload, suggestion.agent), suggestion)
        return sorted(found.values(), key=lambda s: -s.value)

    def _guarded(self, hosted: Hosted, primitive: str, call: Callable[[Policy], T]) -> T | None:
        """The policy's answer, or None when it is off or raises."""
        if not hosted.enabled:
            return None
        hosted.calls[primitive] += 1
        try:
            return call(hosted.policy)
        except Exception:
            hosted.failures += 1
            if hosted.failures == 1:
                logger.exception("policy %s failed in %s", hosted.policy.name, primitive)
            if hosted.failures >= self._failure_limit:
                hosted.switched_off = True
                logger.error("policy %s switched off after %d failures", hosted.policy.name, hosted.failures)
            return None

    # --- the whole ----------------------------------------------------------------------------------

    def get(self, name: str) -> Hosted | None:
        return next((h for h in self._hosted if h.policy.name == name), None)

    def replace(self, name: str, policy: Policy) -> None:
        """Put `policy` in the place of the one of that name; the old one's failures are forgiven."""
        for hosted in self._hosted:
            if hosted.policy.name == name:
                hosted.policy = policy
                hosted.failures = 0
                hosted.switched_off = False

    def forget(self, workload: str) -> None:
        for hosted in self._hosted:
            hosted.decisions.pop(workload, None)
            self._guarded(hosted, "observe", lambda policy: policy.forget(workload))

    def as_state(self, workloads: set[str] | None) -> list[dict[str, Any]]:
        """The policies' entries in GET /runtime/state; decisions of `workloads` only (None: all)."""
        return [
            {
                "name": hosted.policy.name,
                "enabled": hosted.enabled,
                "mode": hosted.policy.settings.mode,
                "weight": hosted.policy.settings.weight,
                "prefetch": dataclasses.asdict(hosted.policy.settings.prefetch),
                "decisions": sum(n for w, n in hosted.decisions.items() if workloads is None or w in workloads),
                "failures": hosted.failures,
                "switched_off": hosted.switched_off,
            }
            for hosted in self._hosted
        ]
