"""Messages that cross a process, grouped by their receiver.

A message travels as a plain dict (`to_wire`) with a `kind` and a protocol version, never as a pickled
class: the actor outlives a redeploy, so the two ends may run different code. `from_wire` checks every
field and raises `MessageError` with the message, the field, the value's type and what is allowed.
Times `t_s` are wall-clock seconds since the epoch; durations and ages are seconds.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from runtime_actor.errors import MessageError

PROTOCOL_VERSION = 1

OWNER_XARG = "agent_runtime_owner"
"""Key of the owner tag in `vllm_xargs`; the gateway overwrites whatever a client put there."""

AVOID_XARG = "agent_runtime_avoid"
"""Key of the engine's id of a request whose replica the router takes last; the gateway's own, like the tag."""

MAX_REPORTED_AGENTS = 512
"""Agents of one workload that a replica's report names, each for `resident` and `anchors`; a longer one is refused."""

MAX_NUMBER = 2**53
"""Greatest number in a message: up to it all whole ones are floats, and JavaScript's."""

TOKEN_BYTES = 4
"""Token ids travel as little-endian int32."""

USEFUL = "useful"
WASTED = "wasted"
REFUSED = "refused"
"""How a warm-up ends."""

DEMAND = "demand"
WARMUP = "warmup"


class Message:
    """Base of all messages: dict in, dict out, checked."""

    kind: ClassVar[str]

    def to_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {"kind": self.kind, "protocol": PROTOCOL_VERSION}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            wire[field.name] = getattr(self, field.name)
        return wire

    @classmethod
    def from_wire(cls, wire: Any) -> Self:
        """Rebuild a message; unknown fields are ignored (a newer sender), missing ones need a default.

        Raises:
            MessageError: not a dict, another kind or protocol, a missing field or a wrong type.
        """
        if not isinstance(wire, dict):
            raise MessageError(f"{cls.kind}: expected a dict, got {type(wire).__name__}")
        if wire.get("kind") != cls.kind:
            raise MessageError(f"{cls.kind}: got a message of kind {wire.get('kind')!r}")
        if wire.get("protocol") != PROTOCOL_VERSION:
            raise MessageError(
                f"{cls.kind}: protocol {wire.get('protocol')!r} is not supported, only {PROTOCOL_VERSION}"
            )
        values: dict[str, Any] = {}
        for name, allowed, required in _schema(cls):
            if name in wire:
                values[name] = _checked(cls.kind, name, wire[name], allowed)
            elif required:
                raise MessageError(f"{cls.kind}: field {name!r} is missing")
        return cls(**values)


_SCHEMAS: dict[type, list[tuple[str, tuple[type, ...], bool]]] = {}


def _schema(cls: type) -> list[tuple[str, tuple[type, ...], bool]]:
    """(name, allowed types, required) for each field, worked out once a class."""
    if cls not in _SCHEMAS:
        hints = typing.get_type_hints(cls)
        rows = []
        for field in dataclasses.fields(cls):
            hint = hints[field.name]
            parts = typing.get_args(hint) if typing.get_origin(hint) not in (dict, list) else (hint,)
            allowed = tuple(typing.get_origin(part) or part for part in (parts or (hint,)))
            required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            rows.append((field.name, allowed, required))
        _SCHEMAS[cls] = rows
    return _SCHEMAS[cls]


def _checked(kind: str, name: str, value: Any, allowed: tuple[type, ...]) -> Any:
    if float in allowed and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise MessageError(f"{kind}: field {name!r} is too large for a float") from error
    if list in allowed and isinstance(value, tuple):
        return list(value)
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        names = " or ".join(sorted(t.__name__ for t in allowed))
        raise MessageError(f"{kind}: field {name!r} must be {names}, got {type(value).__name__}")
    return value


# --- to the engine ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnerTag:
    """Who a request belongs to; travels in `vllm_xargs[OWNER_XARG]` as a list of strings.

    `request_kind` is DEMAND for a client's request and WARMUP for a prefetch.
    """

    workload: str
    agent: str
    session: str
    request_kind: str = DEMAND

    def encode(self) -> list[str]:
        return [self.workload, self.agent, self.session, self.request_kind]

    @classmethod
    def decode(cls, value: Any) -> OwnerTag:
        """Raises MessageError unless `value` is a list of four strings with a known kind."""
        if (
            not isinstance(value, (list, tuple))
            or len(value) != 4
            or not all(isinstance(part, str) for part in value)
            or value[3] not in (DEMAND, WARMUP)
        ):
            raise MessageError(f"{OWNER_XARG}: expected [workload, agent, session, kind]")
        return cls(*value)

    @classmethod
    def of(cls, xargs: Any) -> OwnerTag | None:
        """A request's owner, by its `vllm_xargs`; one without a tag, or with a bad one, is nobody's."""
        if not isinstance(xargs, dict) or OWNER_XARG not in xargs:
            return None
        try:
            return cls.decode(xargs[OWNER_XARG])
        except MessageError:
            return None


# --- to the actor: events ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestArrived(Message):
    """A gateway's request was accepted by a replica. `t_s` is its arrival at the gateway."""

    kind: ClassVar[str] = "request_arrived"
    event_id: str
    t_s: float
    tenant: str
    workload: str
    session: str
    agent: str
    label: str
    replica: str
    starts_session: bool = False
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class RequestFinished(Message):
    """A replica is done with a request: length | stop | tool_calls | abort | error."""

    kind: ClassVar[str] = "request_finished"
    event_id: str
    t_s: float
    tenant: str
    workload: str
    session: str
    agent: str
    replica: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish_reason: str
    ttft_s: float | None
    e2e_s: float


@dataclass(frozen=True, slots=True)
class ToolReturned(Message):
    """A framework says that a session's tool call came back."""

    kind: ClassVar[str] = "tool_returned"
    event_id: str
    t_s: float
    tenant: str
    workload: str
    session: str
    tool: str
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class SessionEnded(Message):
    """A framework or a header says that a session is over; its KV is worth nothing from now on."""

    kind: ClassVar[str] = "session_ended"
    event_id: str
    t_s: float
    tenant: str
    workload: str
    session: str


@dataclass(frozen=True, slots=True)
class PrefetchFinished(Message):
    """A warm-up got its final outcome: useful | wasted | refused. `reason` is one word."""

    kind: ClassVar[str] = "prefetch_finished"
    event_id: str
    t_s: float
    replica: str
    workload: str
    agent: str
    action_id: str
    outcome: str
    reason: str
    tokens: int


@dataclass(frozen=True, slots=True)
class AnchorRecorded(Message):
    """A replica's engine found the shared prefix of an agent; its token ids allow a warm-up elsewhere.

    `token_ids` are little-endian int32. `cache_salt` and `lora_name` are those of the real requests.
    """

    kind: ClassVar[str] = "anchor_recorded"
    event_id: str
    t_s: float
    replica: str
    workload: str
    agent: str
    digest: str
    token_ids: bytes
    cache_salt: str | None
    lora_name: str | None


EVENTS: dict[str, type[Message]] = {
    cls.kind: cls
    for cls in (
        RequestArrived,
        RequestFinished,
        ToolReturned,
        SessionEnded,
        PrefetchFinished,
        AnchorRecorded,
    )
}


def event_from_wire(wire: Any) -> Message:
    """Raises MessageError for an unknown kind or a bad field."""
    kind = wire.get("kind") if isinstance(wire, dict) else None
    if not isinstance(kind, str) or kind not in EVENTS:
        raise MessageError(f"event: unknown kind {kind!r}; known: {', '.join(sorted(EVENTS))}")
    return EVENTS[kind].from_wire(wire)


# --- to the actor: the exchange ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReplicaReport(Message):
    """What a replica's engine holds and does now; the newest one replaces the older.

    `resident` maps workload -> agent -> blocks in the prefix cache. `anchors` maps workload -> agent ->
    [digest, tokens] for the anchors whose token ids this replica can warm by itself. `sessions` lists
    [workload, session, previous agent or "", current agent, t_s]: sent when the actor's epoch changed.
    Counters are totals since the replica's start. `policies` has a row for each that runs in the engine.
    `silent_s`: how long the engine has had work and said nothing.
    """

    kind: ClassVar[str] = "replica_report"
    replica: str
    node: str
    t_s: float
    policy: str
    block_size: int
    total_blocks: int
    free_blocks: int
    running: int
    waiting: int
    resident: dict[str, dict[str, int]]
    anchors: dict[str, dict[str, list[Any]]]
    sessions: list[list[Any]]
    prompt_tokens: int
    cached_tokens: int
    evicted_blocks: int
    dropped_events: int
    policies: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ExchangeRequest(Message):
    """One call: events up, the newest tables and actions down. `caller_kind` is replica | gateway."""

    kind: ClassVar[str] = "exchange_request"
    caller: str
    caller_kind: str
    epoch: int
    version: int
    events: list[dict[str, Any]]
    report: dict[str, Any] | None = None


# --- to replicas and gateways -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrefetchAction(Message):
    """Warm `agent`'s anchor on the receiving replica before `deadline_s` seconds have passed.

    `value` is the anchor's reach value there, to be compared with what would be evicted. `token_ids` is
    empty where the replica's report listed the digest.
    """

    kind: ClassVar[str] = "prefetch_action"
    action_id: str
    workload: str
    agent: str
    session: str
    digest: str
    deadline_s: float
    value: float
    token_ids: bytes
    cache_salt: str | None
    lora_name: str | None


@dataclass(frozen=True, slots=True)
class ExchangeReply(Message):
    """`tables` maps workload -> ReachTables bytes, only those that changed since the caller's version.

    `ended` lists [workload, session]. `cluster` is for gateways only: what routing needs (None for
    replicas). `next_call_s` is when the actor wants to hear from the caller again at the latest, and
    `min_gap_s` the least time it wants between two calls even if there is news. `policy` says how a
    replica orders its cache now: {"mode": str, "weight": float, "prefetch": bool}. `policies` are the
    settings of those policies that run in gateways and engines, of configuration `config_version`. `adapters` is
    adapter -> probability that it is needed on this replica soon.
    """

    kind: ClassVar[str] = "exchange_reply"
    epoch: int
    version: int
    tables: dict[str, bytes]
    actions: list[dict[str, Any]]
    ended: list[list[str]]
    next_call_s: float
    need_sessions: bool = False
    cluster: dict[str, Any] | None = None
    policy: dict[str, Any] = dataclasses.field(default_factory=dict)
    min_gap_s: float = 0.1
    policies: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    config_version: int = 0
    adapters: dict[str, float] = dataclasses.field(default_factory=dict)


# --- to the gateway ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestAccepted(Message):
    """First item of every replica response: the engine took the request and knows what it has cached."""

    kind: ClassVar[str] = "request_accepted"
    replica: str
    prompt_tokens: int
    cached_tokens: int
