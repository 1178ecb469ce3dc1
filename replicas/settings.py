"""What a replica's runtime side can be told; plain values, checked where they enter the process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from runtime_actor.settings import from_dict, number


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """One call to the actor in flight; `min_gap_s` between two, `away_retry_s` while it is away.

    `engine_wait_s`: how long a call waits for a fresh engine report before it goes with the last one.
    At `buffer_events` or `buffer_bytes` the oldest event is dropped and counted.
    """

    min_gap_s: float = number(0.1, 0.0, 60.0)
    max_gap_s: float = number(5.0, 0.01, 600.0)
    away_retry_s: float = number(1.0, 0.01, 600.0)
    engine_wait_s: float = number(0.05, 0.0, 10.0)
    engine_timeout_s: float = number(10.0, 0.01, 600.0)
    buffer_events: int = number(4096, 1, 1 << 20)
    buffer_bytes: int = number(8 << 20, 1024, 1 << 32)
    batch_events: int = number(512, 1, 65536)


@dataclass(frozen=True, slots=True)
class PrefetchSettings:
    """`idle_requests`: warm-ups run only while at most this many demand requests are in flight.

    A warm-up counts as useful if its agent's request finds it within `use_window_s` after it ended.
    """

    enabled: bool = True
    slice_tokens: int = number(256, 16, 256)
    min_tokens: int = number(32, 1, 1 << 20)
    idle_requests: int = number(0, 0, 4096)
    max_pending: int = number(32, 1, 4096)
    max_awaiting_use: int = number(64, 1, 4096)
    use_window_s: float = number(60.0, 0.01, 3600.0)


@dataclass(frozen=True, slots=True)
class WatchdogSettings:
    """`stuck_after_s` must be far above the longest engine step (a 512-token step on CPU: 1-2 s)."""

    poll_s: float = number(0.2, 0.01, 60.0)
    stuck_after_s: float = number(120.0, 1.0, 86400.0)


@dataclass(frozen=True, slots=True)
class AnchorSettings:
    """At `cap_bytes` of token ids the least recently used anchor is forgotten."""

    cap_bytes: int = number(16 << 20, 1024, 1 << 34)
    max_anchors: int = number(1024, 1, 65536)


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """All of a replica's own settings."""

    exchange: ExchangeSettings = field(default_factory=ExchangeSettings)
    prefetch: PrefetchSettings = field(default_factory=PrefetchSettings)
    watchdog: WatchdogSettings = field(default_factory=WatchdogSettings)
    anchors: AnchorSettings = field(default_factory=AnchorSettings)

    @classmethod
    def from_dict(cls, values: dict[str, Any] | None) -> Self:
        """Raises ConfigurationError that names the key, the value and what is allowed."""
        return from_dict(cls, values or {}, "replica")
