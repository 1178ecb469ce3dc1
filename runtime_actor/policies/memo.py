"""Tool-result memoization: which calls may be answered from an earlier one, under which key, and until when.

Observes the tools that come back; predicts which calls a session makes next (`runtime_actor.next_calls`); acts by
asking for results to be dropped that such a return made void. The results themselves are elsewhere
(`runtime_actor.memo_store`, in an actor of its own).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from runtime_actor.ahead_account import AheadBounds
from runtime_actor.errors import ConfigurationError
from runtime_actor.messages import ToolReturned
from runtime_actor.next_calls import NextCalls, ToolCall
from runtime_actor.policies.base import GATEWAY, Clock, InvalidateSuggestion, Observation
from runtime_actor.policies.own import OwnPolicy
from runtime_actor.settings import AnyPolicySettings, number

MAX_TOOLS = 1024
MAX_PENDING = 1024
ALL = ("", "")
"""Tenant and tool of an invalidation of everything."""
MAX_ARGUMENT_CHARS = 256 * 1024


@dataclass(frozen=True, slots=True)
class AllowedTool:
    """`version` None allows any, and each has results of its own. `ignored` arguments (of the top level) don't
    tell calls apart. `tenants` empty: all. `invalidated_by` names tools and events that make its results void.
    `sample` is the share of hits that are run again to see whether the result still holds. `lease_s` is how
    long a caller may take before another one is told to run the tool. `read_only`: running it changes nothing
    anywhere. `run_ahead`: a predicted call of it may be run before anybody asks, which only `read_only` tools may."""

    tool: str
    version: str | None = None
    ttl_s: float = number(300.0, 0.001, 30 * 86_400.0)
    ignored: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    invalidated_by: tuple[str, ...] = ()
    sample: float = number(0.0, 0.0, 1.0)
    lease_s: float = number(60.0, 0.1, 3600.0)
    max_value_bytes: int = number(1 << 20, 1, 1 << 28)
    read_only: bool = False
    run_ahead: bool = False


@dataclass(frozen=True, slots=True)
class RunAheadOptions:
    """Of a tenant: `at_once` runs at a time; none while more than `max_waste` of all were not asked for. A call is
    predicted by what was right `min_support` times and in `min_confidence` of its attempts."""

    at_once: int = number(8, 1, 256)
    max_waste: float = number(0.5, 0.0, 1.0)
    min_support: int = number(2, 1, 64)
    min_confidence: float = number(0.4, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class MemoOptions:
    """Bytes are of stored results in all, and of one tenant's."""

    max_bytes: int = number(64 << 20, 1024, 1 << 34)
    max_bytes_per_tenant: int = number(16 << 20, 1024, 1 << 34)
    run_ahead: RunAheadOptions = field(default=RunAheadOptions())
    tools: tuple[AllowedTool, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class MemoKey:
    """A call that may be memoized. `digest` is the same for calls that may share a result."""

    tenant: str
    tool: str
    digest: str
    allowed: AllowedTool


class MemoPolicy(OwnPolicy[MemoOptions]):
    """Invalidations wait for the next `act`, at most MAX_PENDING; beyond it all results of everybody are dropped, since
    one that were lost would be a wrong answer."""

    name: ClassVar[str] = "memo"
    seat: ClassVar[str] = GATEWAY
    kind: ClassVar[type[Any]] = MemoOptions

    def __init__(self, settings: AnyPolicySettings, substrate: Clock) -> None:
        super().__init__(settings, substrate)
        if len(self.options.tools) > MAX_TOOLS:
            raise ConfigurationError(
                f"policies.memo.options.tools: {len(self.options.tools)} are not allowed; allowed: at most {MAX_TOOLS}"
            )
        for index, tool in enumerate(self.options.tools):
            if tool.run_ahead and not tool.read_only:
                raise ConfigurationError(
                    f"policies.memo.options.tools[{index}].run_ahead: True is not allowed; allowed: only with "
                    "`read_only: true`, since nobody has asked for such a run"
                )
        ahead = self.options.run_ahead
        self.ahead_bounds = AheadBounds(ahead.at_once, ahead.max_waste)
        self._learns = any(tool.run_ahead for tool in self.options.tools)
        self._next = NextCalls(self._identify, ahead.min_support, ahead.min_confidence)
        self._tools: dict[str, list[AllowedTool]] = {}
        self._voids: dict[str, set[str]] = {}
        for tool in self.options.tools:
            self._tools.setdefault(tool.tool, []).append(tool)
            for event in tool.invalidated_by:
                self._voids.setdefault(event, set()).add(tool.tool)
        self._pending: dict[tuple[str, str], None] = {}

    def observe(self, event: Observation) -> None:
        if isinstance(event, ToolReturned):
            self.happened(event.tenant, event.tool)

    def happened(self, tenant: str, event: str) -> None:
        """A tool returned, or an event of that name happened: what it makes void is dropped at the next act."""
        if ALL in self._pending:
            return
        for tool in self._voids.get(event, ()):
            self._pending[tenant, tool] = None
        if len(self._pending) > MAX_PENDING:
            self._pending = {ALL: None}
            self._counts["dropped_all"] += 1

    def keeps(self, tool: str) -> bool:
        """Whether results of a tool of that name may be kept, of whatever version and tenant."""
        return tool in self._tools

    def act(self) -> list[InvalidateSuggestion]:
        pending, self._pending = self._pending, {}
        return [InvalidateSuggestion(self.name, tenant, tool) for tenant, tool in pending]

    def key(self, tenant: str, tool: str, version: str | None, arguments: Mapping[str, Any]) -> MemoKey | None:
        """None: this call must be run and its result not kept."""
        allowed = self._allowed(tenant, tool, version)
        if allowed is None:
            self._counts["not_allowed"] += 1
            return None
        digest = _digest(allowed, version, arguments)
        self._counts["too_long" if digest is None else "asked"] += 1
        return MemoKey(tenant, tool, digest, allowed) if digest is not None else None

    def key_ahead(self, tenant: str, tool: str, version: str | None, arguments: Mapping[str, Any]) -> MemoKey | None:
        """None: this call must not be run before somebody makes it."""
        call = self._identify(tenant, tool, version, arguments)
        allowed = self._allowed(tenant, tool, version)
        if call is None or allowed is None or not call.may_run_ahead:
            self._counts["ahead_not_allowed"] += 1
            return None
        return MemoKey(tenant, tool, call.digest, allowed)

    # --- predict ----------------------------------------------------------------------------------------

    def called(self, session: str, key: MemoKey, version: str | None, arguments: Mapping[str, Any]) -> list[ToolCall]:
        """The session makes this call: which ones it will probably make next, likeliest first."""
        if not self._learns:
            return []
        return self._next.called(key.tenant, session, _tool_call(key.allowed, version, arguments, key.digest))

    def returned(self, tenant: str, session: str, digest: str, value: bytes) -> list[ToolCall]:
        """A call of the session has this result (JSON): which calls will probably follow from it."""
        return self._next.returned(tenant, session, digest, value) if self._learns else []

    def _identify(self, tenant: str, tool: str, version: str | None, arguments: Mapping[str, Any]) -> ToolCall | None:
        allowed = self._allowed(tenant, tool, version)
        digest = _digest(allowed, version, arguments) if allowed is not None else None
        return _tool_call(allowed, version, arguments, digest) if allowed is not None and digest is not None else None

    def forget(self, workload: str) -> None:
        self._next.forget(workload)

    def _allowed(self, tenant: str, tool: str, version: str | None) -> AllowedTool | None:
        for entry in self._tools.get(tool, ()):
            if entry.version in (None, version) and (not entry.tenants or tenant in entry.tenants):
                return entry
        return None

    def counters(self) -> Mapping[str, int]:
        return {**self._counts, **self._next.counts}


def _digest(allowed: AllowedTool, version: str | None, arguments: Mapping[str, Any]) -> str | None:
    """None if the arguments are too long."""
    told = {name: value for name, value in arguments.items() if name not in allowed.ignored}
    text = json.dumps([allowed.tool, version, told], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    if len(text) > MAX_ARGUMENT_CHARS:
        return None
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _tool_call(allowed: AllowedTool, version: str | None, arguments: Mapping[str, Any], digest: str) -> ToolCall:
    may = allowed.run_ahead and allowed.read_only
    return ToolCall(allowed.tool, version, arguments, digest, allowed.ignored, may)
