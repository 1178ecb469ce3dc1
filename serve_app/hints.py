"""A client's hints are advice: read, clipped to limits, replaced by the gateway's own values, and reported (pure).

Salt, priority, placement, ids and transfer parameters of the engine's request come from the gateway,
never from a client. `x-agent-runtime-hints` tells what became of each hint: accepted, clipped or rejected.
"""

import hashlib
import hmac
import itertools
import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runtime_actor.messages import AVOID_XARG, OWNER_XARG, OwnerTag
from serve_app.identity import (
    AGENT_FIELDS,
    AGENT_HEADERS,
    FINAL_FIELDS,
    FINAL_HEADERS,
    SESSION_FIELDS,
    SESSION_HEADERS,
    declared_value,
)

ACCEPTED = "accepted"
CLIPPED = "clipped"
REJECTED = "rejected"

MAX_REPORT_CHARS = 512
"""Length of the `x-agent-runtime-hints` header; hints beyond it are counted, not named."""

MAX_NOTED = 64
"""Hints of one request that are looked at one by one; a body may hold a million."""

MAX_PRIORITY = 10
"""A client may put its own request back by up to this much (lower is earlier), never ahead of others."""

LEAD = 1
"""By how much a request goes before its own priority that is to lead in the engines: no client can say so."""

AHEAD_PRIORITY = MAX_PRIORITY + 1
"""Of requests that nobody has asked for yet."""

FORWARDED_HEADERS = frozenset({"content-type", "user-agent", "accept", "traceparent", "tracestate"})
"""The only headers that reach a replica; vLLM lets others override the body (`x-vllm-priority`)."""

REJECTED_HEADERS = (
    "x-vllm-priority",
    "x-data-parallel-rank",
    "x-gateway-inference-fairness-id",
    "x-slo-ttft-ms",
    "x-parent-session-id",
    "x-dynamo-parent-session-id",
)
REJECTED_FIELDS = (
    "cache_salt",
    "request_id",
    "kv_transfer_params",
    "ec_transfer_params",
    "prompt_cache_key",
    "data_parallel_rank",
)
REPLACED_FIELDS = frozenset({*REJECTED_FIELDS, "priority", "vllm_xargs", "session_id", "nvext", "agent_hints"})
"""Taken out of the body before it goes to the engine; what belongs there is set by `engine_fields`."""

_NVEXT_READ = frozenset({"nvext.agent_hints", "nvext.agent_context"})


@dataclass(slots=True)
class HintReport:
    """What became of each hint, in the order they were read."""

    outcomes: dict[str, str] = field(default_factory=dict)

    def note(self, name: str, outcome: str) -> None:
        self.outcomes[name] = outcome

    def header(self) -> str:
        """`name=outcome` pairs within `MAX_REPORT_CHARS`; "none" where there was no hint."""
        text = ""
        for index, (name, outcome) in enumerate(self.outcomes.items()):
            pair = f"{name}={outcome}"
            if len(text) + len(pair) + 16 > MAX_REPORT_CHARS:
                return f"{text}, and {len(self.outcomes) - index} more"
            text += f", {pair}" if text else pair
        return text or "none"


def read_hints(headers: Mapping[str, str], body: Mapping[str, Any]) -> tuple[int, HintReport]:
    """The priority to give the request, and the report. `headers` as of `fold_headers`."""
    report = HintReport()
    _note_ids(headers, body, report)
    _note_final(headers, body, report)
    for name in REJECTED_HEADERS:
        if headers.get(name, "").strip():
            report.note(name, REJECTED)
    for name in REJECTED_FIELDS:
        if body.get(name) is not None:
            report.note(name, REJECTED)
    _note_xargs(body, report)
    _note_context(body, report)
    return _priority(body, report), report


def engine_fields(tag: OwnerTag, salt: str, priority: int, avoid: str | None = None) -> dict[str, Any]:
    """The fields of the engine's request that only the gateway sets. The request id is fresh. `avoid` names a
    request whose replica is to be taken last."""
    return {
        "vllm_xargs": {OWNER_XARG: tag.encode(), **({AVOID_XARG: avoid} if avoid is not None else {})},
        "cache_salt": salt,
        "priority": priority,
        "session_id": tag.session,
        "request_id": uuid.uuid4().hex,
    }


def cache_salt(secret: bytes, tenant: str) -> str:
    """The tenant's own prefix cache: nobody without the secret can hit or probe it."""
    return hmac.new(secret, b"cache-salt:" + tenant.encode(), hashlib.sha256).hexdigest()[:43]


def forwarded_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name in FORWARDED_HEADERS}


def _note_ids(headers: Mapping[str, str], body: Mapping[str, Any], report: HintReport) -> None:
    """An id that says something is accepted or, next to a more trusted one, rejected."""
    for header_names, fields in (
        (SESSION_HEADERS, SESSION_FIELDS),
        (AGENT_HEADERS, AGENT_FIELDS),
    ):
        winner: str | None = None
        for name in header_names:
            winner = _note_id(name, headers.get(name), winner, report)
        for path in fields:
            winner = _note_id(".".join(path), _lookup(body, path), winner, report)


def _note_final(headers: Mapping[str, str], body: Mapping[str, Any], report: HintReport) -> None:
    """A session's end is a yes or a no; any other word is read as nothing."""
    for name in FINAL_HEADERS:
        said = headers.get(name, "").strip().lower()
        if said:
            report.note(name, ACCEPTED if said in ("true", "1", "false", "0") else REJECTED)
    for path in FINAL_FIELDS:
        value = _lookup(body, path)
        if value is not None:
            report.note(".".join(path), ACCEPTED if isinstance(value, bool) else REJECTED)


def _note_context(body: Mapping[str, Any], report: HintReport) -> None:
    """What `nvext` holds besides ids and hints: nobody here reads it."""
    for path in ("nvext",), ("nvext", "agent_context"):
        _note_unread(".".join(path), _lookup(body, path), report)


def _note_unread(prefix: str, fields: Any, report: HintReport) -> None:
    """Of an object's fields those that nobody reads, by the object's name where their own can't be repeated."""
    if not isinstance(fields, Mapping):
        if fields is not None:
            report.note(prefix, REJECTED)
        return
    for name, value in itertools.islice(fields.items(), MAX_NOTED):
        is_read = f"{prefix}.{name}" in _NVEXT_READ
        path = f"{prefix}.{name}" if _is_name(name) else prefix
        if value is not None and not is_read and path not in report.outcomes:
            report.note(path, REJECTED)


def _is_name(name: str) -> bool:
    """Only what looks like a field is repeated in the report."""
    return len(name) <= 64 and name.isascii() and name.isidentifier()


def _note_id(name: str, value: Any, winner: str | None, report: HintReport) -> str | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return winner
    said = declared_value(value)
    report.note(name, ACCEPTED if said is not None and winner in (None, said) else REJECTED)
    return winner if winner is not None else said


def _note_xargs(body: Mapping[str, Any], report: HintReport) -> None:
    xargs = body.get("vllm_xargs")
    if isinstance(xargs, Mapping) and any(name != "session_id" for name in xargs):
        report.note("vllm_xargs", REJECTED)


def _priority(body: Mapping[str, Any], report: HintReport) -> int:
    """vLLM's own field (lower is earlier) before `agent_hints.priority` (higher is better)."""
    priority = 0
    for prefix, hints in (
        ("agent_hints", body.get("agent_hints")),
        ("nvext.agent_hints", _lookup(body, ("nvext", "agent_hints"))),
    ):
        if isinstance(hints, Mapping) and hints.get("priority") is not None:
            priority = _clip_priority(f"{prefix}.priority", hints["priority"], -1, report)
        _note_unread(prefix, hints, report)
    if body.get("priority") is not None:
        priority = _clip_priority("priority", body["priority"], 1, report)
    return priority


def _clip_priority(path: str, value: Any, sign: int, report: HintReport) -> int:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # Not `isfinite` alone: JSON has whole numbers that no float can hold.
    if not is_number or (isinstance(value, float) and not math.isfinite(value)):
        report.note(path, REJECTED)
        return 0
    wanted = sign * int(value)
    clipped = min(max(wanted, 0), MAX_PRIORITY)
    report.note(path, ACCEPTED if clipped == wanted else CLIPPED)
    return clipped


def _lookup(body: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = body
    for part in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value
