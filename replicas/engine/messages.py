"""What passes between a replica's server process and its engine process, as msgpack bytes.

Both ends are started from one code version, so these are plain typed dataclasses; decoding checks every
field's type.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import msgspec

from replicas.cache.anchor_finder import FoundAnchor
from replicas.cache.settings import ValueSettings
from replicas.cache.warm_ledger import WarmupOutcome
from runtime_actor.errors import ConfigurationError, MessageError
from runtime_actor.settings import AnyPolicySettings, RuntimeSettings

ADDITIONAL_CONFIG_KEY = "agent_runtime"
"""Key in vLLM's `additional_config` under which EngineSettings reach the engine process."""

WARMUP_DEADLINE_S = 60.0
"""A warm-up not hit for so long is wasted."""

ANSWER = b"\x00"
FAULT = b"\x01"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What a replica's scheduler is started with."""

    values: ValueSettings = field(default_factory=ValueSettings)
    warmup_deadline_s: float = WARMUP_DEADLINE_S
    policies: tuple[AnyPolicySettings, ...] = ()

    @classmethod
    def from_config(cls, config: Any) -> EngineSettings:
        """From `additional_config["agent_runtime"]`: the fields of ValueSettings, warmup_deadline_s, policies.

        Raises ConfigurationError for an unknown key or a value out of range.
        """
        if not isinstance(config, dict):
            raise ConfigurationError(f"{ADDITIONAL_CONFIG_KEY}: expected a mapping, got {config!r}")
        allowed = {f.name for f in fields(ValueSettings)}
        chosen = dict(config)
        policies = RuntimeSettings.from_dict({"policies": chosen.pop("policies", [])}).policies
        deadline_s = chosen.pop("warmup_deadline_s", WARMUP_DEADLINE_S)
        for key in chosen:
            if key not in allowed:
                known = ", ".join(sorted({*allowed, "policies", "warmup_deadline_s"}))
                raise ConfigurationError(f"{ADDITIONAL_CONFIG_KEY}.{key}: unknown key; known: {known}")
        try:
            return cls(msgspec.convert(chosen, ValueSettings), float(deadline_s), policies)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise ConfigurationError(f"{ADDITIONAL_CONFIG_KEY}: {error}") from error


@dataclass(frozen=True, slots=True)
class EngineTables:
    """Down. None leaves a setting as it is.

    tables: workload -> ReachTables bytes. ended: (workload, session). queue_policies: the policies that order the
    waiting queue, as a JSON list of their settings; JSON since options may hold numbers that msgpack can't.
    with_sessions asks for the live sessions, and for all anchors to be reported anew: what a new actor needs.
    with_anchors asks for the anchors alone: an answer that had some was lost.
    """

    tables: dict[str, bytes] = field(default_factory=dict)
    ended: list[tuple[str, str]] = field(default_factory=list)
    policy: str | None = None
    weight: float | None = None
    queue_policies: str | None = None
    with_sessions: bool = False
    with_anchors: bool = False


@dataclass(frozen=True, slots=True)
class EngineReport:
    """Up. Counters are totals since the engine's start; lists are what is new since the last report.

    resident: workload -> agent -> cached blocks; resident_anchors: of the shared part alone. evicted:
    cached blocks lost, by what they were (block_owner.KINDS). sessions: [workload, session, previous or
    "", current, t_s], if asked for. rejected: what of the last EngineTables was refused, and why.
    faults: times the value order gave up and fell back to stock order. policies: those that run here, as in
    GET /runtime/state; passed_over: times a request was, because of them. fallbacks: times stock order took over
    because it paid more than values.
    """

    t_s: float
    policy: str
    weight: float
    block_size: int
    total_blocks: int
    free_blocks: int
    cached_blocks: int
    running: int
    waiting: int
    requests: int
    prompt_tokens: int
    cached_tokens: int
    preemptions: int
    resident: dict[str, dict[str, int]]
    resident_anchors: dict[str, dict[str, int]]
    evicted: dict[str, int]
    anchors: list[FoundAnchor]
    warmups: list[WarmupOutcome]
    sessions: list[list[Any]]
    rejected: list[str]
    faults: int
    policies: list[dict[str, Any]] = field(default_factory=list)
    passed_over: int = 0
    fallbacks: int = 0

    @property
    def evicted_blocks(self) -> int:
        return sum(self.evicted.values())


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """How does an anchor stand here? `token_ids` as in FoundAnchor."""

    workload: str
    agent: str
    token_ids: bytes
    cache_salt: str | None = None
    lora_name: str | None = None


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """resident_tokens: leading tokens of the anchor in the cache. missing_blocks: to be computed.

    unvalued_blocks: how many of those would take a free block that nobody values. victim_value: highest
    value among the blocks that would be evicted, None if there is none of value; victim_value_sum over
    them all. anchor_value: the anchor's own. missing_fits: whether that many blocks are free at all.
    """

    resident_tokens: int
    missing_blocks: int
    unvalued_blocks: int
    victim_value: float | None
    victim_value_sum: float
    anchor_value: float
    missing_fits: bool


def encode(message: Any) -> bytes:
    return msgspec.msgpack.encode(message)


def decode(payload: bytes, kind: type[T]) -> T:
    """Raises MessageError that names the field."""
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError, TypeError) as error:
        raise MessageError(f"{kind.__name__}: {error}") from error


def open_answer(answer: bytes, kind: type[T]) -> T:
    """The engine's answer, or the fault it reports, as MessageError."""
    if not isinstance(answer, bytes) or not answer:
        raise MessageError(f"{kind.__name__}: the engine answered {type(answer).__name__}")
    if answer[:1] == FAULT:
        raise MessageError(f"{kind.__name__}: the engine answered: {answer[1:].decode(errors='replace')}")
    return decode(answer[1:], kind)
