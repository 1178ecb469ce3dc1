"""What a replica's runtime side can be told; plain values, checked where they enter the process."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, TypeVar

from runtime_actor.errors import ConfigurationError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """One call to the actor in flight; `min_gap_s` between two calls, `away_retry_s` while it is away.

    `engine_wait_s`: how long a call waits for a fresh engine report before it goes with the last one.
    At `buffer_events` or `buffer_bytes` the oldest event is dropped and counted.
    """

    min_gap_s: float = 0.1
    max_gap_s: float = 5.0
    away_retry_s: float = 1.0
    engine_wait_s: float = 0.05
    buffer_events: int = 4096
    buffer_bytes: int = 8 << 20
    batch_events: int = 512


@dataclass(frozen=True, slots=True)
class PrefetchSettings:
    """`idle_requests`: warm-ups run only while at most this many demand requests are in flight.

    A warm-up counts as useful if its agent's request finds it within `use_window_s` after it ended.
    """

    enabled: bool = True
    slice_tokens: int = 256
    min_tokens: int = 32
    idle_requests: int = 0
    max_pending: int = 32
    max_awaiting_use: int = 64
    use_window_s: float = 60.0


@dataclass(frozen=True, slots=True)
class WatchdogSettings:
    """`stuck_after_s` must be far above the longest engine step (a 512-token step on CPU: 1-2 s)."""

    poll_s: float = 0.2
    stuck_after_s: float = 120.0


@dataclass(frozen=True, slots=True)
class AnchorSettings:
    """At `cap_bytes` of token ids the least recently used anchor is forgotten."""

    cap_bytes: int = 16 << 20
    max_anchors: int = 1024


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """`runtime` is handed to the actor's client as it is."""

    exchange: ExchangeSettings = field(default_factory=ExchangeSettings)
    prefetch: PrefetchSettings = field(default_factory=PrefetchSettings)
    watchdog: WatchdogSettings = field(default_factory=WatchdogSettings)
    anchors: AnchorSettings = field(default_factory=AnchorSettings)
    runtime: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, values: dict[str, Any] | None) -> ReplicaSettings:
        """Raises ConfigurationError that names the key, the value and what is allowed."""
        values = dict(values or {})
        runtime = values.pop("runtime", {})
        if not isinstance(runtime, dict):
            raise ConfigurationError(f"replica.runtime={runtime!r}: must be a mapping")
        parts: dict[str, Any] = {"runtime": runtime}
        for name, part in _PARTS.items():
            parts[name] = _checked_part(part, f"replica.{name}", values.pop(name, {}))
        if values:
            key = sorted(values)[0]
            allowed = ", ".join([*_PARTS, "runtime"])
            raise ConfigurationError(f"replica.{key}={values[key]!r}: unknown key; allowed: {allowed}")
        return cls(**parts)


_PARTS: dict[str, type] = {
    "exchange": ExchangeSettings,
    "prefetch": PrefetchSettings,
    "watchdog": WatchdogSettings,
    "anchors": AnchorSettings,
}


def _checked_part(part: type[T], path: str, values: Any) -> T:
    if not isinstance(values, dict):
        raise ConfigurationError(f"{path}={values!r}: must be a mapping")
    defaults = {f.name: f.default for f in dataclasses.fields(part)}  # type: ignore[arg-type]
    for key, value in values.items():
        if key not in defaults:
            allowed = ", ".join(sorted(defaults))
            raise ConfigurationError(f"{path}.{key}={value!r}: unknown key; allowed: {allowed}")
        default = defaults[key]
        if isinstance(default, bool) != isinstance(value, bool):
            raise ConfigurationError(f"{path}.{key}={value!r}: must be {type(default).__name__}")
        if isinstance(default, int) and not isinstance(value, int):
            raise ConfigurationError(f"{path}.{key}={value!r}: must be a whole number")
        if not isinstance(value, (int, float)) or value < 0:
            raise ConfigurationError(f"{path}.{key}={value!r}: must be a number >= 0")
    return part(**values)
