"""Tool-result memoization: which calls may be answered from an earlier one, under which key, and until when.

Observes the tools that come back; acts by asking for results to be dropped that such a return made void. The
results themselves are elsewhere (`runtime_actor.memo_store`, in an actor of its own).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from runtime_actor.errors import ConfigurationError
from runtime_actor.messages import ToolReturned
from runtime_actor.policies.base import GATEWAY, Clock, InvalidateSuggestion, Observation, Policy
from runtime_actor.settings import AnyPolicySettings, number

MAX_TOOLS = 1024
MAX_PENDING = 1024
MAX_ARGUMENT_CHARS = 256 * 1024


@dataclass(frozen=True, slots=True)
class AllowedTool:
    """`version` None allows any, and each has results of its own. `ignored` arguments (of the top level) don't
    tell calls apart. `tenants` empty: all. `invalidated_by` names tools and events that make its results void.
    `sample` is the share of hits that are run again to see whether the result still holds. `lease_s` is how
    long a caller may take before another one is told to run the tool."""

    tool: str
    version: str | None = None
    ttl_s: float = number(300.0, 0.001, 30 * 86_400.0)
    ignored: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    invalidated_by: tuple[str, ...] = ()
    sample: float = number(0.0, 0.0, 1.0)
    lease_s: float = number(60.0, 0.1, 3600.0)
    max_value_bytes: int = number(1 << 20, 1, 1 << 28)


@dataclass(frozen=True, slots=True)
class MemoOptions:
    """Bytes are of stored results in all, and of one tenant's."""

    max_bytes: int = number(64 << 20, 1024, 1 << 34)
    max_bytes_per_tenant: int = number(16 << 20, 1024, 1 << 34)
    tools: tuple[AllowedTool, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class MemoKey:
    """A call that may be memoized. `digest` is the same for calls that may share a result."""

    tenant: str
    tool: str
    digest: str
    allowed: AllowedTool


class MemoPolicy(Policy):
    """Invalidations wait for the next `act`, at most MAX_PENDING; beyond it the oldest is lost and counted."""

    name: ClassVar[str] = "memo"
    seat: ClassVar[str] = GATEWAY
    in_place: ClassVar[bool] = True

    def __init__(self, settings: AnyPolicySettings, substrate: Clock) -> None:
        super().__init__(settings, substrate)
        self.options = self.options_as(MemoOptions)
        if len(self.options.tools) > MAX_TOOLS:
            raise ConfigurationError(
                f"policies.memo.options.tools: {len(self.options.tools)} are not allowed; allowed: at most {MAX_TOOLS}"
            )
        self._tools: dict[str, list[AllowedTool]] = {}
        self._voids: dict[str, set[str]] = {}
        for tool in self.options.tools:
            self._tools.setdefault(tool.tool, []).append(tool)
            for event in tool.invalidated_by:
                self._voids.setdefault(event, set()).add(tool.tool)
        self._pending: dict[tuple[str, str], None] = {}
        self._counts: Counter[str] = Counter()

    def observe(self, event: Observation) -> None:
        if isinstance(event, ToolReturned):
            self.happened(event.tenant, event.tool)

    def happened(self, tenant: str, event: str) -> None:
        """A tool returned, or an event of that name happened: what it makes void is dropped at the next act."""
        for tool in self._voids.get(event, ()):
            self._pending[tenant, tool] = None
            if len(self._pending) > MAX_PENDING:
                del self._pending[next(iter(self._pending))]
                self._counts["invalidations_lost"] += 1

    def act(self) -> list[InvalidateSuggestion]:
        pending, self._pending = self._pending, {}
        return [InvalidateSuggestion(self.name, tenant, tool) for tenant, tool in pending]

    def key(self, tenant: str, tool: str, version: str | None, arguments: Mapping[str, Any]) -> MemoKey | None:
        """None: this call must be run and its result not kept."""
        allowed = self._allowed(tenant, tool, version)
        if allowed is None:
            self._counts["not_allowed"] += 1
            return None
        told = {name: value for name, value in arguments.items() if name not in allowed.ignored}
        text = json.dumps([tool, version, told], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        if len(text) > MAX_ARGUMENT_CHARS:
            self._counts["too_long"] += 1
            return None
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        self._counts["asked"] += 1
        return MemoKey(tenant, tool, digest, allowed)

    def _allowed(self, tenant: str, tool: str, version: str | None) -> AllowedTool | None:
        for entry in self._tools.get(tool, ()):
            if entry.version in (None, version) and (not entry.tenants or tenant in entry.tenants):
                return entry
        return None

    def counters(self) -> Mapping[str, int]:
        return dict(self._counts)
