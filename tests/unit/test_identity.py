"""HTTP headers and body -> tenant, session, agent."""

from __future__ import annotations

import sys
import time
import unicodedata
from typing import Any

import pytest

from serve_app.hints import REJECTED, read_hints
from serve_app.identity import SESSION_ID, Identity, IdentityResolver, declared_value, fold_headers

SPELLINGS = [
    "x-session-id",
    "X-Session-ID",
    "x_session_id",
    "session-id",
    "X-Dynamo-Session-ID",
    "x-claude-code-session-id",
]


@pytest.fixture
def resolver() -> IdentityResolver:
    return IdentityResolver(b"secret")


def chat(text: str = "hi", system: Any = None, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}] if system is not None else []
    return {"messages": [*messages, {"role": "user", "content": text}], **fields}


def who(resolver: IdentityResolver, body: dict[str, Any], tenant: str = "t", **headers: str) -> Identity:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    resolved = resolver.resolve(tenant, fold_headers(raw), body)
    resolver.accept(resolved)
    return resolved.identity


@pytest.mark.parametrize("name", SPELLINGS)
def test_all_spellings_are_one_session(resolver: IdentityResolver, name: str) -> None:
    by_body = who(resolver, chat(session_id="s1"))
    by_header = who(resolver, chat(), **{name: "s1"})
    assert by_header.session == by_body.session
    assert not by_header.starts_session


@pytest.mark.parametrize(
    "fields",
    [
        {"nvext": {"agent_context": {"session_id": "s1"}}},
        {"agent_hints": {"workflow_id": "s1"}},
        {"vllm_xargs": {"session_id": "s1"}},
    ],
)
def test_body_fields_name_the_same_session(resolver: IdentityResolver, fields: dict[str, Any]) -> None:
    assert who(resolver, chat(**fields)).session == who(resolver, chat(session_id="s1")).session


BLANKS = [
    *["", "   ", "null", "None", "undefined", "NaN", "nil", "N/A"],
    *['""', '"null"', "'null'", "(null)", "<nil>", "null,null", "null, undefined", "[null]", "{}", "[object Object]"],
    *["{{session_id}}", "run-{{ .Id }}", "${SESSION_ID}", "run-${ID:-}", "$SESSION_ID", "{session_id}", "<%= id %>"],
    *["%s", "%d", "%(session)s", "%SESSION%", "<session_id>", "<your-session-id>"],
]
WITHOUT_SHAPE = ["\u200b", "\ufeff", " \u200b\ufeff "]


@pytest.mark.parametrize("value", [*BLANKS, "a\x01b"])
def test_blank_ids_are_absent(resolver: IdentityResolver, value: str) -> None:
    sessions = {who(resolver, chat(f"unrelated {n}"), **{"x-session-id": value}).session for n in range(10)}
    assert len(sessions) == 10
    assert all(SESSION_ID.match(session) for session in sessions)


def test_a_blank_header_does_not_hide_the_body(resolver: IdentityResolver) -> None:
    assert who(resolver, chat(session_id="s1"), **{"x-session-id": " "}).session_source == "session_id"


def test_an_id_is_one_session_in_a_header_and_in_the_body(resolver: IdentityResolver) -> None:
    """Clients send UTF-8; what isn't is read as HTTP once had it."""
    for declared in ("aufgabe-ü", "задача-17", "任务-17"):
        by_header = fold_headers([(b"x-session-id", declared.encode())])
        assert resolver.resolve("t", by_header, chat()).identity.session == resolver.session_id("t", declared)
        assert resolver.resolve("t", {}, chat(session_id=declared)).identity.session == resolver.session_id(
            "t", declared
        )
    assert fold_headers([(b"x-session-id", "é".encode("latin-1"))]) == {"x-session-id": "é"}


def test_of_a_repeated_header_the_first_that_says_something_counts() -> None:
    raw = [(b"X-Session-ID", value) for value in (b" ", b"null", b"one", b"two")]
    assert fold_headers(raw) == {"x-session-id": "one"}


def test_order_of_trust(resolver: IdentityResolver) -> None:
    both = who(resolver, chat(session_id="body"), **{"session-id": "second", "x-session-id": "first"})
    assert both.session == who(resolver, chat(session_id="first")).session
    assert both.session_source == "x-session-id"


def test_request_ids_are_not_sessions(resolver: IdentityResolver) -> None:
    one = who(resolver, chat(session_id="s"), **{"x-request-id": "r1", "x-client-request-id": "c1"})
    other = who(resolver, chat(session_id="s"), **{"x-request-id": "r2", "x-client-request-id": "c2"})
    assert one.session == other.session


def test_ids_are_short_hashes_and_never_echo(resolver: IdentityResolver) -> None:
    identity = who(resolver, chat(), **{"x-session-id": "a" * 5000})
    assert len(identity.session) == 18
    assert identity.session != who(resolver, chat(), **{"x-session-id": "a" * 4999}).session


def test_tenants_and_secrets_separate(resolver: IdentityResolver) -> None:
    body = chat(system="You plan.", session_id="s1")
    one, other = who(resolver, body, tenant="k1"), who(resolver, body, tenant="k2")
    assert one.session != other.session and one.agent != other.agent
    elsewhere = IdentityResolver(b"another secret")
    assert who(elsewhere, body, tenant="k1").agent != one.agent


def test_agent_by_content(resolver: IdentityResolver) -> None:
    tools = [{"type": "function", "function": {"name": "a", "parameters": {"p": 1, "q": 2}}}]
    turned = [{"function": {"parameters": {"q": 2, "p": 1}, "name": "a"}, "type": "function"}]
    base = who(resolver, chat(system="You plan.", tools=tools)).agent
    assert who(resolver, chat("other", system="You plan.", tools=turned)).agent == base
    assert who(resolver, chat(system=[{"type": "text", "text": "You plan."}], tools=tools)).agent == base
    assert who(resolver, chat(system="You plan.")).agent != base
    assert who(resolver, chat(system="You code.", tools=tools)).agent != base


def test_an_agent_that_looks_back_without_its_tools_is_the_same(resolver: IdentityResolver) -> None:
    """AutoGen's `reflect_on_tool_use`. An agent of the same words that never called a tool is another one."""
    tools = [{"type": "function", "function": {"name": "look", "description": "Looks."}}]
    asked = chat("What is there?", system="You help.")["messages"]
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "look"}}]}
    looked = [*asked, called, {"role": "tool", "tool_call_id": "1", "content": "a boat"}]
    first = who(resolver, {"messages": asked, "tools": tools})
    reflection = who(resolver, {"messages": looked})
    assert (reflection.agent, reflection.session) == (first.agent, first.session)
    assert who(resolver, {"messages": asked}).agent != first.agent
    strangers = who(resolver, {"messages": looked}, tenant="u"), who(resolver, {"messages": asked}, tenant="u")
    assert strangers[0].agent == strangers[1].agent, "it is unknown there"
    other = [{"type": "function", "function": {"name": "book", "description": "Books."}}]
    second = who(resolver, {"messages": asked, "tools": other})
    assert who(resolver, {"messages": looked}).agent not in (first.agent, second.agent), "either of two"


def test_clock_lines_do_not_make_agents(resolver: IdentityResolver) -> None:
    text = "You are careful.\nCurrent date and time: Monday, March 9, 2026 at 06:00:{} PM PDT\nBe brief."
    assert who(resolver, chat(system=text.format("31"))).agent == who(resolver, chat(system=text.format("33"))).agent
    years = "You know the rules of {}."
    assert who(resolver, chat(system=years.format(2024))).agent != who(resolver, chat(system=years.format(2025))).agent


def test_only_leading_system_messages_count(resolver: IdentityResolver) -> None:
    def turns(left: int) -> dict[str, Any]:
        body = chat(system="top")
        body["messages"].append({"role": "system", "content": f"<total_tokens>{left} left</total_tokens>"})
        return body

    assert who(resolver, turns(5)).agent == who(resolver, turns(4)).agent == who(resolver, chat(system="top")).agent


def test_declared_agent_wins(resolver: IdentityResolver) -> None:
    one = who(resolver, chat(system="a", agent_hints={"agent_id": "coder"}))
    other = who(resolver, chat(system="b"), **{"X-Claude-Code-Agent-Id": "coder"})
    assert one.agent == other.agent
    assert one.label == "coder"


def test_completions(resolver: IdentityResolver) -> None:
    preamble = "You are a planner. " * 40
    one = who(resolver, {"prompt": preamble + "a" * 800})
    other = who(resolver, {"prompt": preamble + "b" * 800})
    assert one.agent == other.agent and one.session != other.session
    short = who(resolver, {"prompt": "hi"})
    assert short.agent == who(resolver, {"prompt": "ho"}).agent != one.agent
    assert who(resolver, {"prompt": [1] * 300}).agent != short.agent
    assert who(resolver, {"prompt": ["hi", "ho"]}).agent == short.agent


def test_session_end_is_read(resolver: IdentityResolver) -> None:
    assert who(resolver, chat(), **{"X-Dynamo-Session-Final": "true"}).ends_session
    assert who(resolver, chat(nvext={"agent_context": {"trajectory_final": True}})).ends_session
    assert not who(resolver, chat()).ends_session


def test_labels_are_short_and_printable(resolver: IdentityResolver) -> None:
    label = who(resolver, chat(system="\n\nYou are\x00 the planner " + "x" * 200)).label
    assert label.startswith("You are") and len(label) <= 48 and label.isprintable()


@pytest.mark.parametrize("value", [*BLANKS, *WITHOUT_SHAPE])
def test_a_blank_is_an_id_nowhere(resolver: IdentityResolver, value: str) -> None:
    field = {"nvext": {"agent_context": {"session_id": value}}, "agent_hints": {"agent_id": value}}
    who_is = [who(resolver, chat(f"unrelated {n}", **field)) for n in range(3)]
    assert len({one.session for one in who_is}) == 3
    assert {one.agent_source for one in who_is} == {"content"}
    _, report = read_hints({"x-session-id": value}, field)
    assert report.outcomes.get("x-session-id") == (REJECTED if value.strip() else None)
    twice = fold_headers([(b"x-session-id", value.encode()), (b"x-session-id", b"s1")])
    assert twice == {"x-session-id": "s1"}


@pytest.mark.parametrize(
    "value", ["nile", "annul", "none-1", "nan0", "{a: 1}", "50%", "$5", "a%sb", "<a1>", "s-<id>", "(1)"]
)
def test_what_says_something_is_an_id(value: str) -> None:
    assert declared_value(value) == value


def test_declared_value() -> None:
    assert declared_value(" a ") == "a"
    assert declared_value(5) is None and declared_value(["a"]) is None


def test_any_id_without_control_characters_is_taken(resolver: IdentityResolver) -> None:
    """Category `Cc` and surrogates are refused, each and every other character is somebody's letter."""
    for char in map(chr, range(sys.maxunicode + 1)):
        is_control = unicodedata.category(char) in ("Cc", "Cs")
        assert declared_value(f"a{char}b") == (None if is_control else f"a{char}b")


NAMES = ["会\u3000議", "a\u00a0b", "کتاب\u200cخانه", "\U0001f469\u200d\U0001f4bb", "\U0001fae9", "\u202etxt.\u202c"]


@pytest.mark.parametrize("name", NAMES)
def test_an_id_in_any_writing_is_one_session_and_its_label_can_be_shown(name: str, resolver: IdentityResolver) -> None:
    raw = [(b"x-session-id", name.encode()), (b"x-claude-code-agent-id", name.encode())]
    in_headers = resolver.resolve("t", fold_headers(raw), chat()).identity
    in_body = who(resolver, chat(session_id=name, agent_hints={"agent_id": name}))
    assert in_headers.session == in_body.session and in_headers.agent == in_body.agent
    assert in_headers.session_source == "x-session-id" and in_body.session_source == "session_id"
    assert in_headers.label == in_body.label and in_headers.label.isprintable()


def test_cost_of_a_long_conversation(resolver: IdentityResolver) -> None:
    """32k tokens with 64 tools; the target is 300 us, the bound here allows for a busy machine."""
    tools = [
        {
            "type": "function",
            "function": {"name": f"t{n}", "description": "d" * 100, "parameters": {"a": {"type": "string"}}},
        }
        for n in range(64)
    ]
    body = chat("word " * 400, system="You are careful. " * 900, tools=tools)
    body["messages"] += [{"role": "assistant" if n % 2 else "user", "content": "word " * 600} for n in range(38)]
    resolver.accept(resolver.resolve("t", {}, body))
    best_s = min(_timed(resolver, body) for _ in range(50))
    assert best_s < 1.5e-3


def _timed(resolver: IdentityResolver, body: dict[str, Any]) -> float:
    started_s = time.perf_counter()
    resolver.accept(resolver.resolve("t", {}, body))
    return time.perf_counter() - started_s
