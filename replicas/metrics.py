"""A replica's counters, and their way into Ray's metrics (dashboard and Prometheus).

Labels are bounded: the replica, an outcome out of three, a refusal's reason out of a fixed list.
"""

from __future__ import annotations

import dataclasses
from collections import Counter as Tally
from dataclasses import dataclass, field

from ray.util.metrics import Counter, Gauge

PREFETCH_REASONS = (
    "hit",
    "missed",
    "unused",
    "overflow",
    "resident",
    "outbid",
    "crowded",
    "evicted",
    "displaced",
    "overtaken",
    "late",
    "full",
    "duplicate",
    "disabled",
    "short",
    "unknown",
    "malformed",
    "busy",
    "failed",
    "shutdown",
)

_PREFIX = "agent_runtime_replica_"


@dataclass(slots=True)
class ReplicaStats:
    """Totals since the replica's start, and a few values of now (`*_now`)."""

    requests: int = 0
    aborted_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    evicted_blocks: int = 0
    passed_over: int = 0
    fallbacks: int = 0
    dropped_events: int = 0
    exchanges: int = 0
    exchange_failures: int = 0
    engine_busy_calls: int = 0
    bad_messages: int = 0
    engine_refusals: int = 0
    loop_failures: int = 0
    warmed_tokens: int = 0
    prefetches: Tally[tuple[str, str]] = field(default_factory=Tally)
    """(outcome, reason) -> actions ended."""
    exchange_age_s_now: float = 0.0
    in_flight_now: int = 0
    free_blocks_now: int = 0

    @property
    def hit_rate(self) -> float:
        """Cached share of all prompt tokens; 0 before the first request."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


_COUNTERS = {
    "requests": "Requests of clients that ended",
    "aborted_requests": "Requests that their client gave up",
    "prompt_tokens": "Prompt tokens of clients' requests",
    "cached_tokens": "Prompt tokens that were found in the KV cache",
    "completion_tokens": "Tokens generated for clients",
    "evicted_blocks": "KV cache blocks that lost their content",
    "passed_over": "Times a waiting request was passed over by one with a cached anchor",
    "fallbacks": "Times stock order took over because it paid more than values",
    "dropped_events": "Events dropped because the actor was away too long",
    "exchanges": "Exchanges with the runtime actor",
    "exchange_failures": "Exchanges that the runtime actor did not answer",
    "engine_busy_calls": "Calls that the engine did not answer in time",
    "bad_messages": "Messages from the runtime actor that were left out",
    "engine_refusals": "Tables and policies that the engine refused",
    "loop_failures": "Background loops that failed and were started again",
    "warmed_tokens": "Tokens computed by warm-ups",
}

_GAUGES = {
    "hit_rate": ("hit_rate", "Cached share of prompt tokens since the replica's start"),
    "exchange_age_s": ("exchange_age_s_now", "Seconds since the runtime actor's last answer"),
    "in_flight": ("in_flight_now", "Requests of clients in flight"),
    "free_blocks": ("free_blocks_now", "KV cache blocks that no request holds"),
}


class MetricsPublisher:
    """Hands the difference since the last call to Ray's counters; call it about once a second."""

    def __init__(self, replica: str) -> None:
        self._tags = {"replica": replica}
        self._counters = {
            name: Counter(f"{_PREFIX}{name}", description=text, tag_keys=("replica",))
            for name, text in _COUNTERS.items()
        }
        self._gauges = {
            name: Gauge(f"{_PREFIX}{name}", description=text, tag_keys=("replica",))
            for name, (_, text) in _GAUGES.items()
        }
        self._prefetches = Counter(
            f"{_PREFIX}prefetches",
            description="Warm-ups by how they ended",
            tag_keys=("replica", "outcome", "reason"),
        )
        self._published = ReplicaStats()

    def publish(self, stats: ReplicaStats) -> None:
        for name, counter in self._counters.items():
            increase = getattr(stats, name) - getattr(self._published, name)
            if increase > 0:
                counter.inc(increase, tags=self._tags)
        for name, gauge in self._gauges.items():
            gauge.set(float(getattr(stats, _GAUGES[name][0])), tags=self._tags)
        for (outcome, reason), count in stats.prefetches.items():
            increase = count - self._published.prefetches[outcome, reason]
            if increase > 0:
                label = reason if reason in PREFETCH_REASONS else "other"
                self._prefetches.inc(increase, tags={**self._tags, "outcome": outcome, "reason": label})
        self._published = dataclasses.replace(stats, prefetches=Tally(stats.prefetches))
