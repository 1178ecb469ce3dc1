"""Settings of the runtime core, checked where a plain dict becomes a dataclass.

The actor outlives a redeploy and is configured by a method, so settings cross a process as a plain dict:
`to_dict` and `from_dict` are inverse to each other.
"""

from __future__ import annotations

import dataclasses
import difflib
import typing
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from runtime_actor.errors import ConfigurationError

KV_CACHE_MODES = ("reach", "lru", "anchors", "cachesage", "cachescout", "ttl")
KV_CACHE = "kv_cache"
MAX_NAME_CHARS = 64

T = TypeVar("T")


def number(default: float | None, low: float, high: float) -> Any:
    """A field holding an int or float within [low, high]; None only where the field's type has it."""
    return field(default=default, metadata={"low": low, "high": high})


def choice(default: str, allowed: tuple[str, ...]) -> Any:
    """A field holding one of `allowed`."""
    return field(default=default, metadata={"allowed": allowed})


@dataclass(frozen=True, slots=True)
class PrefetchSettings:
    """When a warm-up is proposed. Rates and caps are per replica."""

    enabled: bool = True
    min_probability: float = number(0.3, 0.0, 1.0)
    min_predictability: float = number(0.2, 0.0, 1.0)
    horizon: int = number(1, 1, 16)
    max_per_s: float = number(2.0, 0.0, 100.0)
    max_outstanding: int = number(4, 1, 64)
    cooldown_s: float = number(5.0, 0.0, 600.0)
    busy_requests: int = number(4, 1, 4096)


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The KV-cache policy in the list. `weight` 0 means that the neighbour keeps its own order.

    `gamma` discounts a mean gap between two requests of a session; `horizon` cuts the value after so many
    steps (None: no cut).
    """

    name: str = choice(KV_CACHE, (KV_CACHE,))
    enabled: bool = True
    mode: str = choice("reach", KV_CACHE_MODES)
    weight: float = number(1.0, 0.0, 1.0)
    gamma: float = number(0.7, 0.01, 0.999)
    horizon: int | None = number(None, 1, 1024)
    prefetch: PrefetchSettings = field(default_factory=PrefetchSettings)


@dataclass(frozen=True, slots=True)
class PluggedSettings:
    """Any other policy in the list. `path` ("module:Class") names one that isn't among the project's own;
    `options` are the policy's, which checks them itself; `fail_closed` refuses requests that it can't judge."""

    name: str
    enabled: bool = True
    weight: float = number(1.0, 0.0, 1.0)
    path: str | None = None
    fail_closed: bool = False
    options: dict[str, Any] = field(default_factory=dict)


AnyPolicySettings = PolicySettings | PluggedSettings


def _kind_of_policy(entry: Any) -> type[AnyPolicySettings]:
    name = entry.get("name", KV_CACHE) if isinstance(entry, dict) else KV_CACHE
    return PolicySettings if name == KV_CACHE else PluggedSettings


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """Bounds and times of the core. Counts of agents and sessions are per workload."""

    window: int = number(4096, 16, 65536)
    max_agents: int = number(64, 2, 64)
    max_known_agents: int = number(512, 2, 65536)
    max_sessions: int = number(4096, 1, 65536)
    max_workloads: int = number(128, 1, 4096)
    max_replicas: int = number(512, 1, 4096)
    max_anchors: int = number(1024, 1, 65536)
    max_anchor_bytes: int = number(64 * 1024 * 1024, 1024, 1 << 34)
    max_event_ids: int = number(16384, 16, 1 << 20)
    max_log_events: int = number(8192, 16, 1 << 20)
    max_ended: int = number(4096, 16, 65536)
    max_horizon: int = number(64, 1, 1024)
    session_idle_s: float = number(1800.0, 1.0, 7 * 86400.0)
    table_interval_s: float = number(0.25, 0.0, 60.0)
    replica_timeout_s: float = number(30.0, 1.0, 3600.0)
    max_calls_per_s: float = number(1000.0, 1.0, 100000.0)
    idle_call_s: float = number(0.5, 0.05, 60.0)
    policy_failure_limit: int = number(16, 1, 100000)
    checkpoint_dir: str | None = None
    checkpoint_interval_s: float = number(1.0, 0.05, 3600.0)
    call_timeout_s: float = number(2.0, 0.05, 600.0)
    policies: tuple[AnyPolicySettings, ...] = field(
        default_factory=lambda: (PolicySettings(),), metadata={"kind_of": _kind_of_policy}
    )

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Raises ConfigurationError naming the key, the value and what is allowed."""
        settings = from_dict(cls, values, "runtime")
        names = [policy.name for policy in settings.policies]
        for name in names:
            if not 0 < len(name) <= MAX_NAME_CHARS or not name.replace("_", "a").isalnum():
                raise ConfigurationError(
                    f"runtime.policies: name {name[:80]!r} is not allowed; allowed: 1 to {MAX_NAME_CHARS} letters, "
                    "digits and _"
                )
            if names.count(name) > 1:
                raise ConfigurationError(f"runtime.policies: {name!r} is listed twice; allowed: once each")
        return settings

    def to_dict(self) -> dict[str, Any]:
        return to_dict(self)


def to_dict(settings: Any) -> dict[str, Any]:
    """Plain dicts, lists and scalars, whatever `from_dict` of the same class accepts."""
    values = dataclasses.asdict(settings)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def from_dict(cls: type[T], values: Any, path: str) -> T:
    """Build `cls` from a plain dict; unnamed keys keep their defaults.

    Raises:
        ConfigurationError: an unknown key, a wrong type or a value out of range.
    """
    if not isinstance(values, dict):
        raise ConfigurationError(f"{path}: {values!r} is not allowed; allowed: a mapping")
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key, value in values.items():
        if key not in fields:
            raise ConfigurationError(_unknown_key(f"{path}.{key}", value, str(key), sorted(fields)))
    return cls(
        **{key: _value(f"{path}.{key}", value, hints[key], fields[key].metadata) for key, value in values.items()}
    )


def _unknown_key(path: str, value: Any, key: str, allowed: list[str]) -> str:
    near = difflib.get_close_matches(key, allowed, n=1, cutoff=0.7)
    hint = f"did you mean {near[0]!r}? " if near else ""
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return f"{path}: unknown key (value {shown}); {hint}allowed: {', '.join(allowed)}"


def replace_checked(settings: T, changes: Any, path: str) -> T:
    """A copy with some fields changed, checked like `from_dict`; nested mappings are merged."""
    if not isinstance(changes, dict):
        raise ConfigurationError(f"{path}: {changes!r} is not allowed; allowed: a mapping")
    merged = to_dict(settings)
    for key, value in changes.items():
        nested = isinstance(merged.get(key), dict) and isinstance(value, dict)
        merged[key] = {**merged[key], **value} if nested else value
    return from_dict(type(settings), merged, path)


def _value(path: str, value: Any, hint: Any, metadata: Any) -> Any:
    lists = [part for part in typing.get_args(hint) if typing.get_origin(part) is tuple]
    if lists and typing.get_origin(hint) is not tuple:
        # A list or null.
        if value is None:
            return None
        hint = lists[0]
    if dataclasses.is_dataclass(hint):
        return from_dict(typing.cast(type, hint), value, path)
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigurationError(f"{path}: {value!r} is not allowed; allowed: a list")
        kind_of = metadata.get("kind_of", lambda _: typing.get_args(hint)[0])
        return tuple(_value(f"{path}[{i}]", entry, kind_of(entry), {}) for i, entry in enumerate(value))
    if "low" in metadata:
        return _number(path, value, hint, metadata["low"], metadata["high"])
    if "allowed" in metadata:
        if not isinstance(value, str) or value not in metadata["allowed"]:
            raise ConfigurationError(f"{path}: {value!r} is not allowed; allowed: {', '.join(metadata['allowed'])}")
        return value
    allowed = (typing.get_origin(hint),) if typing.get_origin(hint) is dict else typing.get_args(hint) or (hint,)
    if not isinstance(value, allowed):
        names = " or ".join("null" if t is type(None) else t.__name__ for t in allowed)
        raise ConfigurationError(f"{path}: {value!r} is not allowed; allowed: {names}")
    return value


def _number(path: str, value: Any, hint: Any, low: float, high: float) -> int | float | None:
    types = typing.get_args(hint) or (hint,)
    if value is None and type(None) in types:
        return None
    whole = float not in types
    bad_type = isinstance(value, bool) or not isinstance(value, int if whole else (int, float))
    if bad_type or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        raise ConfigurationError(f"{path}: {value!r} is not allowed; allowed: {kind} from {low:g} to {high:g}")
    return int(value) if whole else float(value)
