"""Safety rules: names, sequences, transitions, budgets, patterns in prompts and in streams, the audit log."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runtime_actor.errors import ConfigurationError
from runtime_actor.messages import RequestAccepted, RequestArrived
from runtime_actor.policies import safety, safety_rules
from runtime_actor.policies.base import Refusal, RequestServed, Rewrite
from runtime_actor.policies.patterns import SCAN_LIMIT_S, Pattern, Scan, ScanTimeout, StreamScanner, compiled
from runtime_actor.policies.safety import SafetyPolicy
from tests.unit.gateway_bench import DONE, Bench
from tests.unit.policy_kit import ManualClock, settings, view

KEY = r"sk-[a-z0-9]{8,}"
SLOW = r"(?:.*,){20}z"
LONG = "1," * 3000


def made(rule: dict[str, Any] | None = None, fail_closed: bool = False, **options: Any) -> SafetyPolicy:
    rules = [rule] if rule is not None else []
    return SafetyPolicy(settings(SafetyPolicy, fail_closed=fail_closed, rules=rules, **options), ManualClock())


def code(verdict: Any) -> str | None:
    return verdict.code if isinstance(verdict, Refusal) else None


def chat(*texts: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text} for text in texts], **fields}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "does something"}}


def nested(text: str, depth: int) -> dict[str, Any]:
    """A tool whose schema has the text so many levels down."""
    made: Any = {"title": text}
    for _ in range(depth):
        made = {"items": made}
    return {"function": {"name": "f", "parameters": made}}


def calls(*names: str) -> dict[str, Any]:
    said = [{"role": "assistant", "tool_calls": [{"function": {"name": n, "arguments": "{}"}}]} for n in names]
    return {"messages": said}


def test_deny_by_default_and_the_first_rule_that_fits() -> None:
    rules = [{"agent": "a-1", "models": ["m"]}, {"tenant": "u"}]
    policy = SafetyPolicy(settings(SafetyPolicy, rules=rules, default="deny"), ManualClock())
    assert policy.admit(view(agent="a-1", model="m")) is None
    assert code(policy.admit(view(agent="a-1", model="other"))) == "model_not_allowed"
    assert code(policy.admit(view(agent="a-2"))) == "agent_not_allowed"
    assert policy.admit(view("u", "a-2")) is None
    assert made().admit(view()) is None, "allowed by default"


def test_tools_offered_and_called() -> None:
    policy = made({"tools": ["read"]})
    assert policy.admit(view(fields={"tools": [tool("read")], **calls("read")})) is None
    assert code(policy.admit(view(fields={"tools": [tool("read"), tool("drop")]}))) == "tool_not_allowed"
    assert code(policy.admit(view(fields=calls("read", "drop")))) == "tool_not_allowed"
    assert code(made({"tools": []}).admit(view(fields={"tools": [tool("x")]}))) == "tool_not_allowed"


@pytest.mark.parametrize(
    ("called", "refused"),
    [(["secret", "send"], True), (["secret", "read", "send"], True), (["send", "secret"], False), (["secret"], False)],
)
def test_sequences(called: list[str], refused: bool) -> None:
    policy = made({"forbidden_sequences": [["secret", "send"]]})
    assert code(policy.admit(view(fields=calls(*called)))) == ("sequence_not_allowed" if refused else None)


def learn(policy: SafetyPolicy, chain: Sequence[str], session: str, workload: str = "t") -> None:
    for agent in chain:
        policy.observe(RequestArrived("e", 0.0, workload, workload, session, agent, "", "r"))


def test_a_tenant_that_floods_takes_no_rule_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where a session stands, nor what may follow, nor what of a budget is used up."""
    monkeypatch.setattr(safety, "MAX_SESSIONS", 64)
    monkeypatch.setattr(safety, "MAX_EDGES", 64)
    monkeypatch.setattr(safety_rules, "MAX_BUDGETS", 64)
    policy = made({"transitions": "refuse", "min_seen": 20, "requests_per_minute": 2})
    for number in range(20):
        learn(policy, "ab", f"taught{number}")
    learn(policy, "a", "s")
    assert [code(policy.admit(view(agent="b"))) for _ in range(2)] == [None, None]
    for number in range(500):
        learn(policy, "xyz"[number % 3] + f"{number}", f"loud{number}", "loud")
        learn(policy, [f"a{number}", f"b{number}"], f"louder{number}", "loud")
        policy.admit(view("loud", f"a{number}"))
    assert code(policy.admit(view(agent="c"))) == "unknown_transition"
    assert code(policy.admit(view(agent="b"))) == "budget_exceeded"
    assert len(policy._edges) <= 64 and len(policy._last) <= 64
    assert {workload for workload, _ in policy._left} == {"t", "loud"} and len(policy._left) <= 65
    policy.forget("loud")
    assert {workload for workload, _ in policy._left} == {"t"} and not policy._edges.part("loud")


CALLS = [{"type": "function_call", "name": name, "arguments": "{}", "call_id": name} for name in ("read", "send")]
SPOKEN = [{"role": "user", "content": [{"type": "input_text", "text": "my sk-abcdefgh1"}]}]


@pytest.mark.parametrize(
    ("rule", "fields", "wanted"),
    [
        ({"tools": ["x"]}, {"input": "hi", "tools": [{"type": "function", "name": "pay"}]}, "tool_not_allowed"),
        (
            {"tools": ["x"]},
            {"input": "hi", "tools": [{"type": "namespace", "name": "x", "tools": [{"name": "pay"}]}]},
            "tool_not_allowed",
        ),
        ({"tools": ["x"]}, {"input": CALLS}, "tool_not_allowed"),
        ({"forbidden_sequences": [["read", "send"]]}, {"input": CALLS}, "sequence_not_allowed"),
        ({"patterns": [{"pattern": KEY}]}, {"input": "sk-abcdefgh1"}, "content_not_allowed"),
        ({"patterns": [{"pattern": KEY}]}, {"input": "hi", "instructions": "sk-abcdefgh1"}, "content_not_allowed"),
        ({"patterns": [{"pattern": KEY}]}, {"input": SPOKEN}, "content_not_allowed"),
        (
            {"patterns": [{"pattern": KEY}]},
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "sk-abcdefgh1"}]},
            "content_not_allowed",
        ),
    ],
)
def test_responses_are_read_like_chats(rule: dict[str, Any], fields: dict[str, Any], wanted: str) -> None:
    assert code(made(rule).admit(view(fields=fields, method="responses"))) == wanted
    allowed = {"tools": ["x", "read", "send", "pay"]}
    assert made(allowed).admit(view(fields=fields, method="responses")) is None


def test_a_prompt_of_responses_is_redacted() -> None:
    policy = made({"patterns": [{"pattern": KEY, "action": "redact"}]})
    verdict = policy.admit(view(fields={"input": SPOKEN, "instructions": "no sk-abcdefgh1"}, method="responses"))
    assert isinstance(verdict, Rewrite)
    assert "sk-" not in str(verdict.fields) and str(verdict.fields).count("[redacted]") == 2


def test_budgets() -> None:
    policy = made({"requests_per_minute": 2, "tokens_per_minute": 1000})
    clock = policy.substrate
    assert isinstance(clock, ManualClock)
    assert [code(policy.admit(view(prompt_tokens=10))) for _ in range(3)] == [None, None, "budget_exceeded"]
    assert policy.admit(view(agent="other", prompt_tokens=10)) is None
    clock.now_s += 30.0
    request = view(prompt_tokens=900)
    assert policy.admit(request) is None
    policy.observe(RequestServed(request, 950, 0, 550, None, 0.0, 1.0))
    clock.now_s += 30.0
    refusal = policy.admit(view(prompt_tokens=100))
    assert isinstance(refusal, Refusal) and (refusal.status, refusal.code) == (429, "budget_exceeded")
    assert refusal.retry_after_s is not None and 0.0 < refusal.retry_after_s <= 6.0
    clock.now_s += refusal.retry_after_s
    assert policy.admit(view(prompt_tokens=100)) is None


def test_prompts_are_refused_or_redacted_wherever_the_text_is() -> None:
    key = "sk-abcdefgh1"
    redacting = made({"patterns": [{"pattern": KEY, "action": "redact", "where": "prompt"}]})
    refusing = made({"patterns": [{"pattern": KEY, "name": "a key"}]})
    property_ = {"type": "string", "enum": ["x", key]}
    places: list[dict[str, Any]] = [
        chat(f"use {key}"),
        {"messages": [{"role": "user", "content": ["two plain strings", key]}]},
        {"messages": [], "documents": [{"title": "t", "body": key}]},
        {"messages": [], "chat_template_kwargs": {"facts": {"deep": [key]}}},
        {"messages": [], "tools": [{"function": {"name": "f", "parameters": {"properties": {"p": property_}}}}]},
        {"messages": [], "tools": [nested(key, 200)]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": key}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": f'"{key}"'}}]}]},
        {"messages": [], "tools": [{"function": {"name": "f", "description": key}}]},
        {"prompt": f"x {key}"},
        {"prompt": ["x", key]},
    ]
    for fields in places:
        before = json.dumps(fields)
        verdict = redacting.admit(view(fields=fields))
        assert isinstance(verdict, Rewrite)
        assert key not in json.dumps(verdict.fields) and "[redacted]" in json.dumps(verdict.fields)
        assert json.dumps(fields) == before, "what was handed over is not changed"
        refusal = refusing.admit(view(fields=fields))
        assert isinstance(refusal, Refusal) and refusal.code == "content_not_allowed"
        assert key not in refusal.message and "a key" in refusal.message
    assert redacting.admit(view(fields=chat("nothing here"))) is None


def test_what_stands_in_a_name_is_refused_since_it_can_not_be_replaced() -> None:
    key = "sk-abcdefgh1"
    places: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "name": key, "content": "hi"}]},
        {"messages": [{"role": "tool", "tool_call_id": key, "content": "hi"}]},
        {"messages": [], "tools": [{"function": {"name": key}}]},
        {"messages": [], "tools": [{"function": {"parameters": {"properties": {key: {"type": "string"}}}}}]},
        {"messages": [], "tools": [{"function": {"parameters": {"required": [key]}}}]},
    ]
    for fields in places:
        for action in ("refuse", "redact"):
            policy = made({"patterns": [{"pattern": KEY, "action": action}]})
            assert code(policy.admit(view(fields=fields))) == "content_not_allowed", fields


def test_what_cannot_be_judged() -> None:
    ids, vectors = {"prompt": [1, 2, 3]}, {"prompt": "hi", "prompt_embeds": "AA=="}
    slow = chat(LONG)
    cases = ((KEY, ids, "unreadable_prompt"), (KEY, vectors, "unreadable_prompt"), (SLOW, slow, "scan_timeout"))
    for pattern, fields, why in cases:
        rule = {"patterns": [{"pattern": pattern}]}
        assert code(made(rule, fail_closed=True).admit(view(fields=fields))) == why
        open_ = made(rule)
        assert open_.admit(view(fields=fields)) is None and open_.counters() == {"flagged": 1}


def scan(pieces: list[str], pattern: str = KEY, refuses: bool = False) -> tuple[list[str], StreamScanner]:
    scanner = StreamScanner([compiled("p", "key", pattern, refuses, "[x]")])
    return [*(scanner.feed(piece) for piece in pieces), scanner.end()], scanner


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_cut_anywhere_is_as_the_whole(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choice(["sk-", "abcdefgh", "12345678", " ", "s", "é", "sk-abcdefgh99 "]) for _ in range(60))
    (whole, *_), _ = scan([text])
    pieces = []
    while text:
        size = rng.randrange(1, 9)
        pieces.append(text[:size])
        text = text[size:]
    expected, _ = scan(["".join(pieces)])
    assert "".join(scan(pieces)[0]) == "".join(expected)
    assert whole in "".join(expected)


def test_no_more_is_held_back_than_may_match() -> None:
    out, _ = scan(["hello s", "o far, sk-abc", " and sk-abcdefgh", "ijk.", " done"])
    assert out == ["hello ", "so far, ", "sk-abc and ", "[x].", " done", ""]


def test_an_answer_ends_where_a_refused_pattern_begins() -> None:
    out, scanner = scan(["fine sk-abcdef", "gh1 secret", " more"], refuses=True)
    assert "".join(out) == "fine [withheld]" and scanner.is_ended
    out, scanner = scan(["sk-" + "a" * 5000, "b"])
    assert "".join(out) == "[withheld]", "a match without an end isn't held for ever"


def test_a_match_of_nothing_goes_on() -> None:
    out, _ = scan(["one two"], r"\b")
    assert "".join(out).replace("[x]", "") == "one two"


def test_a_search_without_an_end_withholds_the_answer() -> None:
    out, scanner = scan([LONG], SLOW)
    assert scanner.is_ended and "".join(out) == "[withheld]" and SCAN_LIMIT_S < 0.25


class Starved:
    """A pattern whose searches the clock ends `times` before one gets a core."""

    def __init__(self, times: int) -> None:
        self.times = times

    def search(self, *_: Any, timeout: float, **__: Any) -> None:
        assert timeout > 0.0
        self.times -= 1
        if self.times >= 0:
            raise TimeoutError

    def subn(self, _: Any, text: str, **options: Any) -> tuple[str, int]:
        self.search(**options)
        return text, 0


@pytest.mark.parametrize("times", [0, 1, 20])
def test_waiting_for_a_core_is_no_fault_of_a_pattern(times: int) -> None:
    """Else answers end with a word about nothing whenever the machine is busy."""
    assert Scan().search(Pattern("p", Starved(times), True, ""), "text") is None
    assert Scan().redacted(Pattern("p", Starved(times), False, ""), "text") == ("text", 0)
    with pytest.raises(ScanTimeout):
        Scan().search(Pattern("p", Starved(10**9), True, ""), "text")


def test_through_the_gateway_with_an_audit_log(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    rule = {"patterns": [{"pattern": KEY, "action": "redact"}, {"pattern": "forbidden"}], "requests_per_minute": 50}
    options = {"rules": [rule], "audit_file": str(audit)}
    bench = Bench(policies=[{"name": "safety", "fail_closed": True, "options": options}])
    chunks = [
        f'data: {{"choices":[{{"index":0,"delta":{{"content":"{t}"}}}}]}}\n\n' for t in ("is sk-abc", "defgh9", "!")
    ]
    bench.handle.items = [RequestAccepted("r1", 40, 0).to_wire(), *chunks, DONE]
    answer = bench.ask(
        "POST", "/v1/chat/completions", json=chat("my sk-abcdefgh1", stream=True), headers={"x-session-id": "s"}
    )
    assert answer.status_code == 200
    request, _ = bench.handle.requests[0]
    assert request.messages[0]["content"] == "my [redacted]"
    said = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: {")]
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in said if event.get("choices"))
    assert text == "is [redacted]!"
    refused = bench.ask("POST", "/v1/chat/completions", json=chat("forbidden words"))
    assert refused.status_code == 403 and refused.json()["error"]["code"] == "content_not_allowed"
    assert len(bench.handle.requests) == 1 and bench.gateway._admission.in_flight == 0
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["action"], line["rule"]) for line in lines] == [
        ("redacted", "prompt"),
        ("redacted", "output: pattern 0"),
        ("refused", "content_not_allowed"),
    ]
    assert "abcdefgh" not in audit.read_text() and "forbidden" not in audit.read_text()


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_other_routes_are_no_way_round_it(path: str) -> None:
    options = {"rules": [{"patterns": [{"pattern": "forbidden"}]}]}
    bench = Bench(policies=[{"name": "safety", "fail_closed": True, "options": options}])
    asked = (
        {"messages": chat("forbidden")["messages"], "max_tokens": 5} if "messages" in path else {"input": "forbidden"}
    )
    assert bench.ask("POST", path, json={"model": "m", **asked}).status_code == 403
    assert not bench.handle.requests


def test_a_record_that_cannot_be_written_fails_closed(tmp_path: Path) -> None:
    options = {"rules": [{"models": ["other"]}], "audit_file": str(tmp_path / "missing" / "audit.jsonl")}
    bench = Bench(policies=[{"name": "safety", "fail_closed": True, "options": options}])
    answer = bench.chat()
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "policy_unavailable"


def test_a_full_disk_is_no_way_round_the_rules(tmp_path: Path) -> None:
    """Where the policy doesn't fail closed its decisions stand, in requests and in answers, and it stays on."""
    rule = {"patterns": [{"pattern": KEY, "where": "prompt"}, {"pattern": KEY, "action": "redact", "where": "output"}]}
    options = {"rules": [rule], "audit_file": str(tmp_path / "missing" / "audit.jsonl")}
    bench = Bench(policies=[{"name": "safety", "options": options}])
    for _ in range(20):
        assert bench.chat(messages=[{"role": "user", "content": "sk-abcdefgh1"}]).status_code == 403
    said = 'data: {"choices":[{"index":0,"delta":{"content":"my sk-abcdefgh1 is"},"finish_reason":"stop"}]}\n\n'
    bench.handle.items = [RequestAccepted("r1", 40, 32).to_wire(), said, DONE]
    answer = bench.chat(stream=True)
    assert "my [redacted] is" in answer.text
    (row,) = (row for row in bench.gateway._policies.as_state(None) if row["name"] == "safety")
    assert row["enabled"] and not row["failures"] and row["counters"]["unrecorded"] == 21


def test_the_audit_file_is_bounded(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    policy = made({"models": ["other"]}, audit_file=str(audit), audit_bytes=2048)
    for _ in range(100):
        policy.admit(view(model="m"))
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) <= 2 and max(sizes) < 2048 + 512


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"default": "maybe"}, "policies.safety.options.default: 'maybe'"),
        ({"rules": [{"agents": ["x"]}]}, "policies.safety.options.rules[0].agents: unknown key"),
        ({"rules": [{"patterns": [{"pattern": "("}]}]}, "rules[0].patterns[0].pattern: '('"),
        ({"rules": [{"patterns": [{"pattern": "a*"}]}]}, "can't match an empty text"),
        ({"rules": [{}] * 257}, "257 are not allowed"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        SafetyPolicy(settings(SafetyPolicy, **options), ManualClock())
    assert text in str(error.value)
