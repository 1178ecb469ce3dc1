"""Which tool call follows which within a session, with what arguments, learnt from the calls themselves.

A call is foretold in two ways: as it was, after the same call as then (tool and arguments); or by a template over
an earlier call of the session, whose arguments or result hold the next one's arguments. Each way is judged by what
comes, whether or not anybody ran the call. Pure; what tenants taught is apart.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runtime_actor.call_places import Place, Template, places, result_places, template
from runtime_actor.fair_map import FairMap

MAX_SESSIONS = 1024
"""Sessions whose last calls are known; shared fairly, longest silent first."""
MAX_RECENT = 8
"""Calls of a session that the next one's arguments may come from."""
MAX_SESSION_PLACES = 256
"""Values of those calls in all; the oldest call is forgotten first."""
MAX_DIGESTS = 64
"""Calls of a session that count as made, and as many that are foretold."""
MAX_TRIGGERS = 2048
"""Calls and tools that something follows; shared fairly, longest unused first."""
MAX_RULES = 8
"""What follows one of them; beyond it the one that was right least often is forgotten."""
MAX_ARGUMENT_CHARS = 1024
"""As JSON; a call with longer ones is never foretold."""
WINDOW = 64
"""Attempts of one rule after which both its counts are halved."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`digest` is the same for calls that may share a result. `may_run_ahead`: its tool's settings allow it."""

    tool: str
    version: str | None
    arguments: Mapping[str, Any]
    digest: str
    ignored: tuple[str, ...] = ()
    may_run_ahead: bool = False


Identify = Callable[[str, str, str | None, Mapping[str, Any]], ToolCall | None]
"""(tenant, tool, version, arguments) -> the call; None if it can't be memoized."""


@dataclass(slots=True)
class Rule:
    """`tool` of `version` follows, as `how` says: a template, or the arguments themselves. `rest` has the arguments
    that don't tell calls apart, as they last were. `tries` has those that are still waited for."""

    tool: str
    version: str | None
    how: Template | dict[str, Any]
    rest: dict[str, Any]
    hits: int = 1
    tries: int = 1

    @property
    def confidence(self) -> float:
        return min(1.0, self.hits / self.tries)

    def tried(self, count: int) -> None:
        self.tries += count
        if self.tries > WINDOW:
            self.hits, self.tries = self.hits // 2, self.tries // 2


RuleKey = tuple[str, str | None, Template | str]
"""(tool, version, template or digest)."""
Trigger = tuple[str, str]
"""("tool", its name) or ("call", its digest)."""


@dataclass(slots=True)
class _Seen:
    tool: str
    digest: str
    found: list[Place]
    has_result: bool = False


@dataclass(slots=True)
class _Session:
    recent: deque[_Seen] = field(default_factory=deque)
    made: OrderedDict[str, None] = field(default_factory=OrderedDict)
    foretold: OrderedDict[str, list[Rule]] = field(default_factory=OrderedDict)

    def add(self, seen: _Seen) -> None:
        self.made[seen.digest] = None
        self.made.move_to_end(seen.digest)
        if len(self.made) > MAX_DIGESTS:
            self.made.popitem(last=False)
        self.recent.append(seen)
        self.shorten()

    def shorten(self) -> None:
        while len(self.recent) > MAX_RECENT or (
            len(self.recent) > 1 and sum(len(seen.found) for seen in self.recent) > MAX_SESSION_PLACES
        ):
            self.recent.popleft()


class NextCalls:
    """A call is foretold by a rule that was right `min_support` times and in `min_confidence` of its attempts."""

    def __init__(self, identify: Identify, min_support: int, min_confidence: float) -> None:
        self.counts: Counter[str] = Counter()
        self._identify = identify
        self._min_support = min_support
        self._min_confidence = min_confidence
        self._sessions: FairMap[str, _Session] = FairMap(MAX_SESSIONS)
        self._rules: FairMap[Trigger, dict[RuleKey, Rule]] = FairMap(MAX_TRIGGERS)

    def called(self, tenant: str, session: str, call: ToolCall) -> list[ToolCall]:
        """The call is made now: what probably follows, by what is known without its result."""
        state = self._session(tenant, session)
        right = state.foretold.pop(call.digest, [])
        for rule in right:
            rule.hits += 1
        self.counts["foretold_right"] += bool(right)
        if call.may_run_ahead:
            self._learn(tenant, state, call, right)
        seen = _Seen(call.tool, call.digest, places("arguments", call.arguments))
        state.add(seen)
        return self._foretell(tenant, state, seen, with_result=False)

    def returned(self, tenant: str, session: str, digest: str, encoded: bytes) -> list[ToolCall]:
        """The call's result, as JSON, is known: what probably follows, where that takes the result."""
        state = self._session(tenant, session)
        seen = next((one for one in reversed(state.recent) if one.digest == digest), None)
        if seen is None or seen.has_result:
            return []
        seen.has_result = True
        seen.found = seen.found + result_places(encoded)
        state.shorten()
        return self._foretell(tenant, state, seen, with_result=True)

    # --- learning ---------------------------------------------------------------------------------------

    def _learn(self, tenant: str, state: _Session, call: ToolCall, right: list[Rule]) -> None:
        if len(json.dumps(call.arguments)) > MAX_ARGUMENT_CHARS:
            return
        if state.recent and state.recent[-1].digest != call.digest:
            self._credit(tenant, ("call", state.recent[-1].digest), call, None, right)
        if call.digest in state.made:
            return
        best: tuple[int, str, Template] | None = None
        for seen in reversed(state.recent):
            made = template(call.arguments, call.ignored, seen.found)
            if made is not None and (best is None or len(made.linked) > best[0]):
                best = (len(made.linked), seen.tool, made)
        if best is not None:
            self._credit(tenant, ("tool", best[1]), call, best[2], right)

    def _credit(self, tenant: str, trigger: Trigger, call: ToolCall, made: Template | None, right: list[Rule]) -> None:
        """Count what wasn't foretold by that rule; what was is counted already."""
        part = self._rules.part(tenant)
        rules = part.setdefault(trigger, {})
        part.move_to_end(trigger)
        key = (call.tool, call.version, made or call.digest)
        rest = {name: value for name, value in call.arguments.items() if name in call.ignored}
        rule = rules.get(key)
        if rule is None:
            if len(rules) >= MAX_RULES:
                del rules[min(rules, key=lambda other: rules[other].hits)]
            told = {name: value for name, value in call.arguments.items() if name not in call.ignored}
            rules[key] = Rule(call.tool, call.version, made or told, rest)
            self._rules.trim(tenant)
            return
        rule.rest = rest
        if not any(rule is other for other in right):
            rule.hits += 1
            rule.tried(1)

    # --- foretelling ------------------------------------------------------------------------------------

    def _foretell(self, tenant: str, state: _Session, seen: _Seen, with_result: bool) -> list[ToolCall]:
        """The likeliest first."""
        likely: dict[str, tuple[float, ToolCall]] = {}
        for rule in self._following(tenant, seen, with_result):
            calls = self._calls(tenant, state, seen, rule)
            is_likely = rule.hits >= self._min_support and rule.confidence >= self._min_confidence
            for call in calls:
                if is_likely and rule.confidence > likely.get(call.digest, (0.0,))[0]:
                    likely[call.digest] = (rule.confidence, call)
                state.foretold.setdefault(call.digest, []).append(rule)
                del state.foretold[call.digest][:-MAX_RULES]
                if len(state.foretold) > MAX_DIGESTS:
                    state.foretold.popitem(last=False)
            rule.tried(len(calls))
        self.counts["foretold"] += len(likely)
        return [call for _, call in sorted(likely.values(), key=lambda pair: -pair[0])]

    def _following(self, tenant: str, seen: _Seen, with_result: bool) -> list[Rule]:
        triggers: list[Trigger] = [("tool", seen.tool)]
        if not with_result:
            triggers.append(("call", seen.digest))
        rules = [rule for at in triggers for rule in (self._rules.get(tenant, at) or {}).values()]
        return [rule for rule in rules if (isinstance(rule.how, Template) and rule.how.needs_result) == with_result]

    def _calls(self, tenant: str, state: _Session, seen: _Seen, rule: Rule) -> list[ToolCall]:
        """What the rule says, without what it said already, and for templates without what the session has done."""
        is_template = isinstance(rule.how, Template)
        told = rule.how.fill(seen.found) if isinstance(rule.how, Template) else [rule.how]
        calls: dict[str, ToolCall] = {}
        for arguments in told:
            call = self._identify(tenant, rule.tool, rule.version, {**rule.rest, **arguments})
            if call is None or not call.may_run_ahead or (is_template and call.digest in state.made):
                continue
            if not any(rule is other for other in state.foretold.get(call.digest, ())):
                calls[call.digest] = call
        return list(calls.values())

    # --- the whole --------------------------------------------------------------------------------------

    def _session(self, tenant: str, session: str) -> _Session:
        part = self._sessions.part(tenant)
        state = part.get(session)
        if state is None:
            state = part[session] = _Session()
            self._sessions.trim(tenant)
        else:
            part.move_to_end(session)
        return state

    def forget(self, tenant: str) -> None:
        self._sessions.drop(tenant)
        self._rules.drop(tenant)

    def check_invariants(self) -> None:
        """Raises AssertionError with what doesn't hold."""
        assert len(self._sessions) <= MAX_SESSIONS and len(self._rules) <= MAX_TRIGGERS, "entries"
        for _, sessions in self._sessions:
            for state in sessions.values():
                assert len(state.recent) <= MAX_RECENT, "calls of a session"
                assert len(state.made) <= MAX_DIGESTS and len(state.foretold) <= MAX_DIGESTS, "digests of a session"
                few = sum(len(seen.found) for seen in state.recent) <= MAX_SESSION_PLACES
                assert few or len(state.recent) == 1, "places of a session"
        for _, triggers in self._rules:
            for rules in triggers.values():
                assert 0 < len(rules) <= MAX_RULES, "rules of a trigger"
                assert all(0 <= rule.tries <= WINDOW for rule in rules.values()), "attempts"
