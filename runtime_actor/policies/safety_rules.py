"""What an agent may do, as configured: rules, their checks, and the budgets they hold (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime_actor.errors import ConfigurationError
from runtime_actor.fair_map import FairMap
from runtime_actor.policies.patterns import Pattern, compiled
from runtime_actor.settings import choice, number

ANY = "*"
MAX_RULES = 256
MAX_PATTERNS = 64
MAX_BUDGETS = 8192
"""Agents with a budget that are remembered, shared fairly by tenants; the one unused for longest is forgotten, and
starts with a full one."""


@dataclass(frozen=True, slots=True)
class PatternRule:
    """`action` refuse: a prompt with a match is refused, an answer ends there. `where` it is looked for."""

    pattern: str
    name: str = ""
    action: str = choice("refuse", ("refuse", "redact"))
    where: str = choice("both", ("prompt", "output", "both"))
    replacement: str = "[redacted]"


@dataclass(frozen=True, slots=True)
class AgentRule:
    """The first rule whose tenant and agent fit counts; "*" fits all. Agents are named by the id in
    `x-agent-runtime-agent`. None: no limit. `forbidden_sequences`: tools called in this order, with others
    between them or not. `transitions`: what happens to a request whose agent never came after the session's
    last one, although that was followed `min_seen` times by others, and as often again for each that came only once."""

    tenant: str = ANY
    agent: str = ANY
    models: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    forbidden_sequences: tuple[tuple[str, ...], ...] = ()
    transitions: str = choice("off", ("off", "flag", "refuse"))
    min_seen: int = number(50, 1, 1_000_000)
    requests_per_minute: int | None = number(None, 1, 1_000_000)
    tokens_per_minute: int | None = number(None, 1, 1_000_000_000)
    patterns: tuple[PatternRule, ...] = ()

    def fits(self, tenant: str, agent: str) -> bool:
        return self.tenant in (ANY, tenant) and self.agent in (ANY, agent)


@dataclass(frozen=True, slots=True)
class SafetyOptions:
    """`default` is for agents that no rule fits. `audit_file` gets a line of JSON for each decision, at most
    `audit_bytes` and as many in one older file beside it."""

    default: str = choice("allow", ("allow", "deny"))
    rules: tuple[AgentRule, ...] = field(default=())
    audit_file: str | None = None
    audit_bytes: int = number(10 << 20, 1024, 1 << 34)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A rule with its patterns ready."""

    rule: AgentRule
    prompt: tuple[Pattern, ...]
    output: tuple[Pattern, ...]


def compile_rules(options: SafetyOptions) -> list[Compiled]:
    """Raises ConfigurationError naming the rule."""
    if len(options.rules) > MAX_RULES:
        raise ConfigurationError(
            f"policies.safety.options.rules: {len(options.rules)} are not allowed; allowed: at most {MAX_RULES}"
        )
    return [_compile(rule, f"policies.safety.options.rules[{index}]") for index, rule in enumerate(options.rules)]


def _compile(rule: AgentRule, path: str) -> Compiled:
    if len(rule.patterns) > MAX_PATTERNS:
        raise ConfigurationError(
            f"{path}.patterns: {len(rule.patterns)} are not allowed; allowed: at most {MAX_PATTERNS}"
        )
    made = []
    for index, entry in enumerate(rule.patterns):
        where = f"{path}.patterns[{index}]"
        name = entry.name or f"pattern {index}"
        made.append(
            (
                entry.where,
                compiled(f"{where}.pattern", name, entry.pattern, entry.action == "refuse", entry.replacement),
            )
        )
    prompt, output = (tuple(p for where, p in made if where in (place, "both")) for place in ("prompt", "output"))
    return Compiled(rule, prompt, output)


# --- what a request holds ------------------------------------------------------------------------------


def offered_tools(fields: Mapping[str, Any]) -> Iterator[str]:
    """By name, in the form of chat completions or of Responses, where a namespace holds others."""
    waiting = list(_objects(fields.get("tools")))
    while waiting:
        tool = waiting.pop()
        function = tool.get("function")
        if isinstance(function, Mapping):
            yield str(function.get("name"))
        elif "name" in tool and tool.get("type") != "namespace":
            yield str(tool["name"])
        waiting += _objects(tool.get("tools"))


def called_tools(fields: Mapping[str, Any]) -> list[str]:
    """Names of all tool calls in the history, in order; in Responses they are items of the input."""
    called = [
        str(call["function"].get("name"))
        for message in _objects(fields.get("messages"))
        for call in _objects(message.get("tool_calls"))
        if isinstance(call.get("function"), Mapping)
    ]
    items = _objects(fields.get("input"))
    return called + [str(item.get("name")) for item in items if item.get("type") == "function_call"]


def contains_sequence(called: Sequence[str], sequence: Sequence[str]) -> bool:
    """Whether `sequence` was called in order, others between or not."""
    left = iter(called)
    return all(name in left for name in sequence)


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    yield from (item for item in value or () if isinstance(item, Mapping)) if isinstance(value, (list, tuple)) else ()


# --- budgets -------------------------------------------------------------------------------------------


class Budgets:
    """Buckets that refill within a minute, by key, which begins with the tenant. `debit` may overdraw one: what an
    answer took is only known afterwards, and is paid back before the next request."""

    def __init__(self) -> None:
        self._left: FairMap[tuple[str, ...], tuple[float, float]] = FairMap(MAX_BUDGETS)

    def wait_s(self, key: tuple[str, ...], limit: int, amount: float, now_s: float) -> float:
        """0 if `amount` is there (or the bucket is full: nothing could ever be larger), else how long until."""
        left = self._now(key, limit, now_s)
        wanted = min(amount, float(limit))
        return 0.0 if left >= wanted else (wanted - left) * 60.0 / limit

    def debit(self, key: tuple[str, ...], limit: int, amount: float, now_s: float) -> None:
        left = self._now(key, limit, now_s) - amount
        part = self._left.part(key[0])
        part[key] = (left, now_s)
        part.move_to_end(key)
        self._left.trim(key[0])

    def _now(self, key: tuple[str, ...], limit: int, now_s: float) -> float:
        left, since_s = self._left.get(key[0], key) or (float(limit), now_s)
        return min(float(limit), left + max(0.0, now_s - since_s) * limit / 60.0)
