"""Runs the policies so that a fault in one of them stays there, and combines what they say.

The rules of composition are in `policies.base`. A policy whose settings have `fail_closed` and that can't judge
a request (it failed, or was switched off for its failures) has the request refused with 503; one that is
switched off on purpose has no say.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from runtime_actor.policies.base import (
    AdapterSuggestion,
    CacheOwner,
    GuessSuggestion,
    InvalidateSuggestion,
    Observation,
    Ordered,
    OutputFilter,
    Policy,
    PrefetchSuggestion,
    Refusal,
    RequestView,
    Rewrite,
    Suggestion,
)
from runtime_actor.policies.guard import Guard, Hosted, PolicyFailed
from runtime_actor.settings import PolicySettings
from runtime_actor.tables import ReachTables

T = TypeVar("T")
P = TypeVar("P", bound=Policy)
S = TypeVar("S", PrefetchSuggestion, InvalidateSuggestion, GuessSuggestion, AdapterSuggestion)

MAX_OPEN = 4096
"""Suggestions of one kind that nobody has asked for; beyond it the oldest is dropped."""
CALL_LIMIT_S = 2.0
"""What a call into a policy may take, unless its host allows less."""
LAST = (math.inf,)


class PolicyHost:
    """The policies of one seat in configured order."""

    def __init__(self, policies: Sequence[Policy], failure_limit: int, limit_s: float = CALL_LIMIT_S) -> None:
        self._hosted = [Hosted(policy) for policy in policies]
        self._guard = Guard(failure_limit, limit_s)
        self._open: dict[type[Suggestion], deque[Suggestion]] = {}

    @property
    def policies(self) -> Sequence[Hosted]:
        return self._hosted

    # --- observe ------------------------------------------------------------------------------------

    def observe(self, event: Observation) -> None:
        self.observe_all((event,))

    def observe_all(self, events: Sequence[Observation]) -> None:
        """A policy that raises at one of them has still seen the others. One on a thread of its own sees them before
        its next call of any kind, since handing each over would cost as much as that call."""
        for hosted in self._hosted:
            if not _has(hosted, "observe"):
                continue
            for event in events:
                if hosted.policy.in_place:
                    self._ask(hosted, "observe", functools.partial(_observe, event))
                else:
                    self._guard.defer(hosted, event)

    def forget(self, workload: str) -> None:
        for hosted in self._hosted:
            hosted.decisions.pop(workload, None)
            self._ask(hosted, "observe", lambda policy: policy.forget(workload))

    # --- score --------------------------------------------------------------------------------------

    def score(self, item: CacheOwner) -> float | None:
        total = weights = 0.0
        for hosted in self._hosted:
            value = self._ask(hosted, "score", lambda policy: _probability(policy.score(item)))
            if value is not None:
                total += hosted.policy.settings.weight * value
                weights += hosted.policy.settings.weight
        return total / weights if weights > 0.0 else None

    def score_tables(self) -> dict[str, ReachTables]:
        merged: dict[str, ReachTables] = {}
        for hosted in self._hosted:
            tables = self._ask(hosted, "score", lambda policy: _tables(policy.score_tables())) or {}
            for workload in tables:
                hosted.decisions[workload] += 1
            merged = {**tables, **merged}
        return merged

    def order(self, items: Sequence[Ordered]) -> list[tuple[float, ...]]:
        """A key for each item, smallest first; all equal where no policy has an opinion."""
        keys: list[tuple[float, ...]] = [()] * len(items)
        for hosted in self._hosted:
            if not _has(hosted, "order"):
                continue
            own = self._ask(hosted, "order", lambda policy: _keys(policy.order(items), len(items)))
            if own is not None:
                length = max((len(key) for key in own if key is not None), default=0)
                keys = [key + (more or LAST * length) for key, more in zip(keys, own, strict=True)]
        return keys

    # --- predict ------------------------------------------------------------------------------------

    def predict(self, workload: str, session: str, horizon: int) -> Mapping[str, float] | None:
        for hosted in self._hosted:
            forecast = self._ask(
                hosted, "predict", lambda policy: _forecast(policy.predict(workload, session, horizon))
            )
            if forecast is not None:
                hosted.decisions[workload] += 1
                return forecast
        return None

    # --- act ----------------------------------------------------------------------------------------

    def act(self) -> list[PrefetchSuggestion]:
        """Prefetches, highest value first."""
        found: dict[tuple[str, str, str], PrefetchSuggestion] = {}
        for suggestion in self.suggestions(PrefetchSuggestion):
            found.setdefault((suggestion.replica, suggestion.workload, suggestion.agent), suggestion)
        return sorted(found.values(), key=lambda s: -s.value)

    def invalidations(self) -> list[InvalidateSuggestion]:
        return self.suggestions(InvalidateSuggestion)

    def guesses(self) -> list[GuessSuggestion]:
        return self.suggestions(GuessSuggestion)

    def suggestions(self, kind: type[S]) -> list[S]:
        """Those of that kind since the last call; what else came up is kept for who asks for it."""
        self._collect()
        return [s for s in self._open.pop(kind, ()) if isinstance(s, kind)]

    def _collect(self) -> None:
        for hosted in self._hosted:
            if not _has(hosted, "act"):
                continue
            for suggestion in self._ask(hosted, "act", lambda policy: _suggestions(policy.act())) or ():
                if isinstance(suggestion, (PrefetchSuggestion, GuessSuggestion)):
                    hosted.decisions[suggestion.workload] += 1
                named = dataclasses.replace(suggestion, policy=hosted.name)
                self._open.setdefault(type(named), deque(maxlen=MAX_OPEN)).append(named)

    def admit(self, request: RequestView) -> tuple[RequestView, Refusal | None]:
        """The request as it is to go on, and why it must not."""
        for hosted in self._hosted:
            if hosted.enabled and not _has(hosted, "admit"):
                continue
            try:
                verdict = self._guard.call(hosted, "admit", functools.partial(_admit, request))
            except PolicyFailed:
                if hosted.fails_closed:
                    return request, unjudged(hosted.name)
                continue
            if verdict is None:
                continue
            hosted.decisions[request.workload] += 1
            if isinstance(verdict, Refusal):
                return request, verdict
            request = dataclasses.replace(request, fields=verdict.fields)
        return request, None

    def outputs(self, request: RequestView) -> list[HostedFilter]:
        """The filters for one choice of the answer. Raises PolicyFailed where one fails closed."""
        filters = []
        for hosted in self._hosted:
            if hosted.enabled and not _has(hosted, "output"):
                continue
            try:
                made = self._guard.call(hosted, "output", lambda policy: policy.output(request))
            except PolicyFailed:
                if hosted.fails_closed:
                    raise
                continue
            if made is not None:
                hosted.decisions[request.workload] += 1
                filters.append(HostedFilter(self._guard, hosted, made))
        return filters

    def ask(self, name: str, primitive: str, job: Callable[[Policy], T]) -> T | None:
        """What the policy of that name says beyond the common hooks; None when it is off, fails or isn't there."""
        hosted = self.get(name)
        return self._ask(hosted, primitive, job) if hosted is not None else None

    def _ask(self, hosted: Hosted, primitive: str, job: Callable[[Policy], T]) -> T | None:
        """The policy's answer, or None when it is off or fails."""
        if not hosted.enabled:
            return None
        try:
            return self._guard.call(hosted, primitive, job)
        except PolicyFailed:
            return None

    # --- the whole ----------------------------------------------------------------------------------

    def has(self, hook: str) -> bool:
        """Whether a policy that is on has something to say there."""
        return any(hosted.enabled and _has(hosted, hook) for hosted in self._hosted)

    def running(self, kind: type[P]) -> P | None:
        """The policy of that kind, if there is one and it is on."""
        found = (hosted.policy for hosted in self._hosted if hosted.enabled)
        return next((policy for policy in found if isinstance(policy, kind)), None)

    def get(self, name: str) -> Hosted | None:
        return next((h for h in self._hosted if h.policy.settings.name == name), None)

    def replace(self, name: str, policy: Policy) -> None:
        """Put `policy` in the place of the one of that name; the old one's failures are forgiven."""
        hosted = self.get(name)
        if hosted is not None:
            hosted.replace(policy)

    def go_on_with(self, made: Sequence[Policy], failure_limit: int, limit_s: float) -> PolicyHost:
        """A host of these policies in the place of this one, which ends; one whose settings are the same here goes on
        itself, with what it knows."""
        policies = []
        for policy in made:
            known = self.get(policy.settings.name)
            is_same = known is not None and known.policy.settings == policy.settings
            policies.append(known.policy if known is not None and is_same else policy)
        successor = PolicyHost(policies, failure_limit, limit_s)
        successor.take_over(self)
        self.close_others(successor)
        return successor

    def take_over(self, former: PolicyHost) -> None:
        """Go on with what `former` has counted, and with what its policies have asked for and nobody has carried out;
        failures of a policy that isn't the same object are forgiven."""
        former._collect()
        self._open, former._open = former._open, {}
        known = {hosted.name: hosted for hosted in former.policies}
        for index, hosted in enumerate(self._hosted):
            before = known.get(hosted.name)
            if before is not None:
                self._hosted[index] = before if before.policy is hosted.policy else before.succeeded_by(hosted.policy)

    def close(self) -> None:
        for hosted in self._hosted:
            hosted.close()

    def close_others(self, successor: PolicyHost) -> None:
        """Close those that `successor` didn't take over."""
        for hosted in self._hosted:
            if not any(hosted is kept for kept in successor.policies):
                hosted.close()

    def as_state(self, workloads: set[str] | None) -> list[dict[str, Any]]:
        """The policies' entries in GET /runtime/state; decisions of `workloads` only. None: all, and the
        policies' own counters, which are of all tenants together."""
        return [self._row(hosted, workloads) for hosted in self._hosted]

    def _row(self, hosted: Hosted, workloads: set[str] | None) -> dict[str, Any]:
        settings = hosted.policy.settings
        row: dict[str, Any] = {"name": settings.name, "seat": hosted.policy.seat, "enabled": hosted.enabled}
        row["weight"] = settings.weight
        if isinstance(settings, PolicySettings):
            row |= {"mode": settings.mode, "prefetch": dataclasses.asdict(settings.prefetch)}
        if workloads is None:
            row["counters"] = self._ask(hosted, "counters", lambda policy: _counts(policy.counters())) or {}
        return row | {
            "decisions": sum(n for w, n in hosted.decisions.items() if workloads is None or w in workloads),
            "failures": hosted.failures,
            "slow": hosted.slow,
            "switched_off": hosted.switched_off,
        }


class HostedFilter:
    """A policy's filter for one choice of one answer; once it fails, text passes or (fail closed) ends."""

    def __init__(self, guard: Guard, hosted: Hosted, made: OutputFilter) -> None:
        self._guard = guard
        self._hosted = hosted
        self._filter: OutputFilter | None = made

    def feed(self, text: str) -> str:
        """Raises PolicyFailed where the policy fails closed."""
        return self._pass(text, lambda made: made.feed(text))

    def end(self) -> str:
        """Raises PolicyFailed where the policy fails closed."""
        return self._pass("", lambda made: made.end())

    def _pass(self, text: str, job: Callable[[OutputFilter], str]) -> str:
        made = self._filter
        if made is None:
            return text
        try:
            return self._guard.call(self._hosted, "output", lambda _: _text(job(made)))
        except PolicyFailed:
            if self._hosted.fails_closed:
                raise
            self._filter = None
            return text


def _has(hosted: Hosted, hook: str) -> bool:
    """Whether the policy has something to say there: what it left out is no opinion, and needs no call."""
    policy = hosted.policy
    return getattr(type(policy), hook) is not getattr(Policy, hook) or hook in vars(policy)


def unjudged(name: str | None) -> Refusal:
    """None: it is the request or its answer that can't be judged, by any policy."""
    told = f"The policy `{name}` can't judge this request now." if name else "This answer can't be judged."
    return Refusal(503, "policy_unavailable", told, retry_after_s=1.0)


def _observe(event: Observation, policy: Policy) -> None:
    policy.observe(event)


def _admit(request: RequestView, policy: Policy) -> Refusal | Rewrite | None:
    return _verdict(policy.admit(request))


# --- what is no nonsense: each raises ValueError or TypeError ------------------------------------------


def _probability(value: float | None) -> float | None:
    if value is not None and not 0.0 <= value <= 1.0:
        raise ValueError(f"{value!r} is not within [0, 1]")
    return value


def _forecast(forecast: Mapping[str, float] | None) -> Mapping[str, float] | None:
    for agent, probability in (forecast or {}).items():
        if not isinstance(agent, str) or not -1e-9 <= probability <= 1.0 + 1e-9:
            raise ValueError(f"{agent!r}: {probability!r} is no agent and its probability")
    return forecast


def _tables(tables: Mapping[str, ReachTables]) -> Mapping[str, ReachTables]:
    if not all(isinstance(table, ReachTables) for table in tables.values()):
        raise TypeError("score_tables: something else than ReachTables")
    return tables


def _keys(keys: Sequence[tuple[float, ...] | None], count: int) -> Sequence[tuple[float, ...] | None]:
    """What isn't a tuple of numbers could not be compared with other policies' keys."""
    lengths = {len(key) for key in keys if key is not None}
    if len(keys) != count or len(lengths) > 1 or 0 in lengths:
        raise ValueError(f"order: {len(keys)} keys of lengths {sorted(lengths)} for {count} items")
    if any(not isinstance(part, (int, float)) or part != part for key in keys if key is not None for part in key):
        raise ValueError("order: a key that isn't a number")
    return [key if key is None else tuple(key) for key in keys]


def _suggestions(suggestions: Sequence[Suggestion]) -> Sequence[Suggestion]:
    for suggestion in suggestions:
        is_prefetch = isinstance(suggestion, PrefetchSuggestion) and math.isfinite(suggestion.value)
        if not is_prefetch and not isinstance(suggestion, (InvalidateSuggestion, GuessSuggestion, AdapterSuggestion)):
            raise TypeError(f"act: {type(suggestion).__name__} is no suggestion with a finite value")
        if isinstance(suggestion, GuessSuggestion) and not 0.0 <= suggestion.wait_s < math.inf:
            raise ValueError(f"act: a guess that waits for {suggestion.wait_s!r} s")
        if not isinstance(getattr(suggestion, "workload", ""), str):
            raise TypeError("act: a workload that is no text")
    return suggestions


def _verdict(verdict: Refusal | Rewrite | None) -> Refusal | Rewrite | None:
    if verdict is None or (isinstance(verdict, Rewrite) and isinstance(verdict.fields, Mapping)):
        return verdict
    if isinstance(verdict, Refusal) and isinstance(verdict.status, int) and 400 <= verdict.status < 600:
        texts = (verdict.code, verdict.message, verdict.param or "")
        later_s = verdict.retry_after_s
        is_told = all(isinstance(text, str) for text in texts)
        if is_told and (later_s is None or (isinstance(later_s, (int, float)) and 0.0 <= later_s < math.inf)):
            return verdict
    raise TypeError(f"admit: {type(verdict).__name__} is no verdict")


def _text(value: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"output: {type(value).__name__} is no text")
    return value


def _counts(counters: Mapping[str, int]) -> dict[str, int]:
    return {str(name): int(value) for name, value in list(counters.items())[:64]}
