"""Safety: what each agent may ask for, and what may go in and come out.

Looks at models, offered tools, the order of tool calls, who comes after whom in a session, rates, and patterns
in prompts and answers. Each decision is a line in the audit log, which holds names and never content.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

from runtime_actor.fair_map import FairMap
from runtime_actor.messages import RequestArrived, SessionEnded
from runtime_actor.policies.base import (
    GATEWAY,
    Clock,
    Observation,
    OutputFilter,
    Refusal,
    RequestServed,
    RequestView,
    Rewrite,
    Verdict,
)
from runtime_actor.policies.own import OwnPolicy
from runtime_actor.policies.patterns import Scan, ScanTimeout, StreamScanner
from runtime_actor.policies.prompt_texts import mapped_texts, read, unreadable
from runtime_actor.policies.safety_rules import (
    Budgets,
    Compiled,
    SafetyOptions,
    called_tools,
    compile_rules,
    contains_sequence,
    offered_tools,
)
from runtime_actor.settings import AnyPolicySettings

MAX_SESSIONS = 8192
MAX_EDGES = 16_384
"""Transitions that are remembered. Both are shared fairly by tenants; beyond a bound the one unused for longest is
forgotten, and what follows a forgotten agent is no surprise."""

audit_log = logging.getLogger("agent_runtime.audit")


class SafetyPolicy(OwnPolicy[SafetyOptions]):
    """A request that can't be judged (token ids where a pattern is to be looked for, a search that doesn't end
    in time) is refused if the policy fails closed, and flagged otherwise."""

    name: ClassVar[str] = "safety"
    seat: ClassVar[str] = GATEWAY
    kind: ClassVar[type[Any]] = SafetyOptions

    def __init__(self, settings: AnyPolicySettings, substrate: Clock) -> None:
        super().__init__(settings, substrate)
        self._rules = compile_rules(self.options)
        self._fails_closed = bool(getattr(settings, "fail_closed", False))
        self._budgets = Budgets()
        self._last: FairMap[str, str] = FairMap(MAX_SESSIONS)
        self._edges: FairMap[tuple[str, str], int] = FairMap(MAX_EDGES)
        """A workload's transitions: (agent before, agent) -> how often."""
        self._left: Counter[tuple[str, str]] = Counter()
        """How often a session went on after (workload, agent), since a transition of it was last forgotten."""
        self._once: Counter[tuple[str, str]] = Counter()
        """How many have come after (workload, agent) exactly once; where there are none there is no entry."""

    # --- observe ------------------------------------------------------------------------------------

    def observe(self, event: Observation) -> None:
        if isinstance(event, RequestArrived):
            self._moved(event.workload, event.session, event.agent)
        elif isinstance(event, SessionEnded):
            self._last.pop(event.workload, event.session)
        elif isinstance(event, RequestServed):
            self._charge(event)

    def _moved(self, workload: str, session: str, agent: str) -> None:
        sessions = self._last.part(workload)
        before = sessions.get(session)
        sessions[session] = agent
        sessions.move_to_end(session)
        self._last.trim(workload)
        if before is None:
            return
        self._left[workload, before] += 1
        edges = self._edges.part(workload)
        times = edges[before, agent] = edges.get((before, agent), 0) + 1
        edges.move_to_end((before, agent))
        if times <= 2:
            self._count_once((workload, before), 1 if times == 1 else -1)
        while len(self._edges) > MAX_EDGES:
            owner, edge = self._edges.oldest(workload)
            if self._edges.pop(owner, edge) == 1:
                self._count_once((owner, edge[0]), -1)
            del self._left[owner, edge[0]]

    def _count_once(self, key: tuple[str, str], change: int) -> None:
        self._once[key] += change
        if not self._once[key]:
            del self._once[key]

    def forget(self, workload: str) -> None:
        self._last.drop(workload)
        self._edges.drop(workload)
        for counter in (self._left, self._once):
            for key in [key for key in counter if key[0] == workload]:
                del counter[key]

    def _charge(self, event: RequestServed) -> None:
        request = event.request
        rule = self._rule(request)
        limit = rule.rule.tokens_per_minute if rule is not None else None
        if limit is not None:
            rest = event.prompt_tokens + event.output_tokens - request.prompt_tokens
            self._budgets.debit((*_who(request), "tokens"), limit, rest, self.substrate.now_s)

    # --- act: requests ------------------------------------------------------------------------------

    def admit(self, request: RequestView) -> Verdict | None:
        rule = self._rule(request)
        if rule is None:
            if self.options.default == "allow":
                return None
            return self._refuse(request, "agent_not_allowed", "no rule allows this agent", 403)
        return (
            self._check_names(request, rule)
            or self._check_transition(request, rule)
            or self._check_budgets(request, rule)
            or self._check_prompt(request, rule)
        )

    def _rule(self, request: RequestView) -> Compiled | None:
        return next((rule for rule in self._rules if rule.rule.fits(request.tenant, request.agent)), None)

    def _check_names(self, request: RequestView, compiled: Compiled) -> Refusal | None:
        rule = compiled.rule
        if rule.models is not None and request.model not in rule.models:
            return self._refuse(request, "model_not_allowed", "this agent may not use this model", 403, "model")
        if rule.tools is not None and any(tool not in rule.tools for tool in offered_tools(request.fields)):
            return self._refuse(
                request, "tool_not_allowed", "this agent may not be offered one of these tools", 403, "tools"
            )
        if rule.tools is not None or rule.forbidden_sequences:
            called = called_tools(request.fields)
            if rule.tools is not None and any(tool not in rule.tools for tool in called):
                return self._refuse(
                    request, "tool_not_allowed", "this agent may not use one of these tools", 403, "messages"
                )
            if any(contains_sequence(called, sequence) for sequence in rule.forbidden_sequences):
                return self._refuse(
                    request, "sequence_not_allowed", "these tools may not follow each other", 403, "messages"
                )
        return None

    def _check_transition(self, request: RequestView, compiled: Compiled) -> Refusal | None:
        if compiled.rule.transitions == "off":
            return None
        before = self._last.get(request.workload, request.session)
        if before is None:
            return None
        # Good and Turing: what comes next is new about as often as what came was seen once.
        key = request.workload, before
        if self._left[key] < compiled.rule.min_seen * (1 + self._once[key]):
            return None
        if self._edges.get(request.workload, (before, request.agent)):
            return None
        if compiled.rule.transitions == "refuse":
            return self._refuse(request, "unknown_transition", "this agent has never come after the last one", 403)
        self._note(request, "flagged", "unknown_transition")
        return None

    def _check_budgets(self, request: RequestView, compiled: Compiled) -> Refusal | None:
        rule, now_s = compiled.rule, self.substrate.now_s
        wanted = (
            ("requests", rule.requests_per_minute, 1.0),
            ("tokens", rule.tokens_per_minute, float(request.prompt_tokens)),
        )
        for kind, limit, amount in wanted:
            wait_s = self._budgets.wait_s((*_who(request), kind), limit, amount, now_s) if limit is not None else 0.0
            if wait_s > 0.0:
                why = f"this agent's {kind} of the minute are used up"
                return self._refuse(request, "budget_exceeded", why, 429, retry_after_s=wait_s)
        for kind, limit, amount in wanted:
            if limit is not None:
                self._budgets.debit((*_who(request), kind), limit, amount, now_s)
        return None

    def _check_prompt(self, request: RequestView, compiled: Compiled) -> Verdict | None:
        if not compiled.prompt:
            return None
        if unreadable(request.fields):
            return self._unjudged(request, "unreadable_prompt")
        scan = Scan()
        prompt = read(request.fields)
        try:
            for pattern in compiled.prompt:
                # A name can't be replaced: others refer to it.
                looked_at = (*prompt.names, *prompt.texts) if pattern.refuses else prompt.names
                if any(scan.search(pattern, text) for text in looked_at):
                    return self._refuse(request, "content_not_allowed", f"`{pattern.name}` matches the prompt", 403)
            return self._redacted(request, compiled, scan)
        except ScanTimeout:
            return self._unjudged(request, "scan_timeout")

    def _redacted(self, request: RequestView, compiled: Compiled, scan: Scan) -> Rewrite | None:
        """Raises ScanTimeout."""
        replaced = 0

        def clean(text: str) -> str:
            nonlocal replaced
            for pattern in compiled.prompt:
                if not pattern.refuses:
                    text, count = scan.redacted(pattern, text)
                    replaced += count
            return text

        fields = mapped_texts(request.fields, clean)
        if not replaced:
            return None
        self._note(request, "redacted", "prompt")
        return Rewrite(fields)

    # --- act: answers -------------------------------------------------------------------------------

    def output(self, request: RequestView) -> OutputFilter | None:
        rule = self._rule(request)
        return _Filter(self, request, StreamScanner(rule.output)) if rule is not None and rule.output else None

    # --- tell ---------------------------------------------------------------------------------------

    def _unjudged(self, request: RequestView, why: str) -> Refusal | None:
        if self._fails_closed:
            return self._refuse(request, why, "this request can't be judged", 403)
        self._note(request, "flagged", why)
        return None

    def _refuse(
        self,
        request: RequestView,
        code: str,
        why: str,
        status: int,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> Refusal:
        self._note(request, "refused", code)
        return Refusal(status, code, f"Refused by the safety policy: {why}.", param, retry_after_s)

    def _note(self, request: RequestView, action: str, rule: str) -> None:
        self._counts[action] += 1
        entry = {
            "t_s": round(self.substrate.now_s, 3),
            "action": action,
            "rule": rule,
            "tenant": request.tenant,
            "agent": request.agent,
            "session": request.session,
        }
        line = json.dumps(entry)
        audit_log.warning("%s", line)
        if self.options.audit_file is not None:
            self._put_on_record(Path(self.options.audit_file), line)

    def _put_on_record(self, path: Path, line: str) -> None:
        """Raises OSError where the policy fails closed: a decision that can't be put on record is then a failure of
        the policy. Else the decision stands, since a full disk must not be a way round the rules."""
        try:
            self._write(path, line)
        except OSError as error:
            if self._fails_closed:
                raise
            self._counts["unrecorded"] += 1
            if self._counts["unrecorded"] == 1:
                audit_log.error("the audit file can't be written: %s", error.strerror)

    def _write(self, path: Path, line: str) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            size = file.tell()
        if size >= self.options.audit_bytes:
            path.replace(path.with_name(path.name + ".1"))


class _Filter:
    """Tells the policy what was found in an answer, once a pattern."""

    def __init__(self, policy: SafetyPolicy, request: RequestView, scanner: StreamScanner) -> None:
        self._policy = policy
        self._request = request
        self._scanner = scanner
        self._told = 0

    def feed(self, text: str) -> str:
        return self._noted(self._scanner.feed(text))

    def end(self) -> str:
        return self._noted(self._scanner.end())

    def _noted(self, text: str) -> str:
        hits = self._scanner.hits
        if len(hits) > self._told:
            self._told = len(hits)
            self._policy._note(
                self._request, "withheld" if self._scanner.is_ended else "redacted", f"output: {hits[-1]}"
            )
        return text


def _who(request: RequestView) -> tuple[str, str]:
    return request.tenant, request.agent
