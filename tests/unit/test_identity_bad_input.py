"""Identity that is too large, malformed, somebody else's or without end: bounded, answered, explained."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from runtime_actor.messages import RequestAccepted
from serve_app.identity import LABEL_CHARS, SESSION_ID, IdentityResolver
from serve_app.recognition.conversations import ConversationIndex
from serve_app.recognition.quotes import QuoteIndex
from serve_app.recognition.templates import MAX_TEXTS
from tests.unit.gateway_bench import Answer, Bench

ID_HEADERS = ["x-session-id", "session-id", "x-dynamo-session-id", "x-claude-code-session-id", "x-claude-code-agent-id"]
CONTROL = ["a\x01b", "a\x7fb", "\x1b[2J", "a\tb", "a\x00"]


class Told(Answer):
    """An answer with text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def model_dump(self) -> dict[str, Any]:
        return {**super().model_dump(), "choices": [{"message": {"role": "assistant", "content": self.text}}]}


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.handle.items = [RequestAccepted("r1", 40, 32).to_wire(), Answer()]
    yield made
    assert made.gateway._admission.in_flight == 0


def post(bench: Bench, headers: dict[str, str] | None = None, tenant: str = "one", **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return bench.ask("POST", "/v1/chat/completions", tenant, json=body, headers=headers or {})


def ours(answer: httpx.Response, name: str) -> str:
    return str(answer.headers[f"x-agent-runtime-{name}"])


@pytest.mark.parametrize("name", ID_HEADERS)
def test_a_header_of_100_kb_is_refused_and_leaves_nothing(bench: Bench, name: str) -> None:
    answer = post(bench, {name: "a" * 100_000})
    assert answer.status_code == 431
    error = answer.json()["error"]
    assert error["code"] == "headers_too_large" and str(32 * 1024) in error["message"]
    assert bench.handle.requests == [] and bench.buffered == 0
    assert len(bench.gateway._identities.conversations) == 0


@pytest.mark.parametrize("name", ID_HEADERS)
def test_a_header_within_the_limit_is_an_id_and_never_comes_back(bench: Bench, name: str) -> None:
    answer = post(bench, {name: "b" * 30_000})
    assert answer.status_code == 200
    assert ours(answer, "hints") == f"{name}=accepted"
    assert SESSION_ID.match(ours(answer, "session")) and "bbb" not in str(answer.headers)
    bench.ask("GET", "/runtime/state")
    assert max(len(str(event.get("label", ""))) for event in bench.actor.events) <= LABEL_CHARS


@pytest.mark.parametrize("field", ["session_id", "agent_hints"])
def test_an_id_of_100_kb_in_the_body_is_hashed(bench: Bench, field: str) -> None:
    long = "c" * 100_000
    answers = [
        post(bench, session_id=value) if field == "session_id" else post(bench, agent_hints={"agent_id": value})
        for value in (long, long, long + "d")
    ]
    assert [answer.status_code for answer in answers] == [200] * 3
    name = "session" if field == "session_id" else "agent"
    ids = [ours(answer, name) for answer in answers]
    assert ids[0] == ids[1] != ids[2] and {len(found) for found in ids} == {18}
    assert "ccc" not in str(answers[0].headers)


@pytest.mark.parametrize("value", CONTROL)
def test_control_characters_make_no_id(bench: Bench, value: str) -> None:
    by_body = [post(bench, session_id=value, agent_hints={"agent_id": value}) for _ in range(2)]
    plain = post(bench)
    assert {answer.status_code for answer in by_body} == {200}
    assert ours(by_body[0], "session") != ours(by_body[1], "session")
    assert ours(by_body[0], "agent") == ours(plain, "agent")
    assert ours(by_body[0], "hints") == "session_id=rejected, agent_hints.agent_id=rejected"


@pytest.mark.parametrize("value", CONTROL)
def test_control_characters_in_a_header_make_no_id(bench: Bench, value: str) -> None:
    answer = raw_post(bench, [(b"x-session-id", value.encode()), (b"x-claude-code-agent-id", value.encode())])
    assert answer["status"] == 200
    assert answer["headers"]["hints"] == "x-session-id=rejected, x-claude-code-agent-id=rejected"
    assert answer["headers"]["agent"] == ours(post(bench), "agent")


def raw_post(bench: Bench, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    """As a lenient server would hand it over: an HTTP client refuses to send such a header."""
    body = b'{"messages":[{"role":"user","content":"hi"}]}'
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "headers": [(b"authorization", b"Bearer k1"), *headers],
    }
    pending = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return pending.pop() if pending else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(bench.asgi(scope, receive, send))
    start = sent[0]
    prefix = b"x-agent-runtime-"
    named = {
        name.removeprefix(prefix).decode(): value.decode()
        for name, value in start["headers"]
        if name.startswith(prefix)
    }
    return {"status": start["status"], "headers": named}


def test_another_tenants_session_id_reaches_nothing(bench: Bench) -> None:
    mine = ours(post(bench, {"x-session-id": "s1"}), "session")
    assert ours(post(bench, {"x-session-id": "s1"}, "ops"), "session") != mine
    # The id that the reply showed to the first tenant: it names a session of the second one's own.
    post(bench, {"x-session-id": mine, "x-dynamo-session-final": "true"}, "ops")
    bench.ask("POST", "/runtime/events", "ops", json={"type": "session_ended", "session_id": mine})
    assert bench.routing.session("one", mine) is not None
    assert bench.routing.session("ops", mine) is None
    bench.ask("GET", "/runtime/state")
    ended = {event["tenant"] for event in bench.actor.events if event["kind"] == "session_ended"}
    assert ended == {"ops"}
    salts = {request.cache_salt for request, _ in bench.handle.requests}
    assert len(salts) == 2


def test_another_tenants_conversation_is_not_continued(bench: Bench) -> None:
    bench.handle.items[1] = Told("The harbour master keeps the list of all boats.")
    opening = [{"role": "user", "content": "Who keeps the list of boats?"}]
    first = ours(post(bench, messages=opening), "session")
    turns = [
        *opening,
        {"role": "assistant", "content": "The harbour master keeps the list of all boats."},
        {"role": "user", "content": "Where?"},
    ]
    assert ours(post(bench, tenant="ops", messages=turns), "session") != first
    assert ours(post(bench, messages=turns), "session") == first


def test_a_session_that_never_ends_is_answered_and_bounded(bench: Bench) -> None:
    bench.gateway._identities = IdentityResolver(b"secret", ConversationIndex(max_ends=8))
    bench.gateway._identities.quotes = QuoteIndex(max_lines=16)
    history: list[dict[str, Any]] = []
    sessions = set()
    for turn in range(60):
        bench.handle.items[1] = Told(f"This is what was answered in turn {turn}.")
        history.append({"role": "user", "content": f"This is what was asked in turn {turn}."})
        answer = post(bench, messages=history)
        assert answer.status_code == 200
        sessions.add(ours(answer, "session"))
        history.append(answer.json()["choices"][0]["message"])
    assert len(sessions) == 1
    assert len(bench.gateway._identities.conversations) == 8
    assert len(bench.gateway._identities.quotes) == 16


def test_an_agent_whose_prompt_changes_every_time_is_answered_and_bounded(bench: Bench) -> None:
    """Each prompt is an agent of its own, as the reply says; with an id it is one."""

    def ask(n: int, headers: dict[str, str]) -> str:
        system = {"role": "system", "content": f"{n} birds sing {n * 7} songs while {n * 13} stones sleep."}
        answer = post(bench, headers, messages=[system, {"role": "user", "content": "hi"}])
        assert answer.status_code == 200
        return ours(answer, "agent")

    assert len({ask(n, {}) for n in range(40)}) == 40
    assert len({ask(n, {"x-claude-code-agent-id": "bird"}) for n in range(40)}) == 1
    identities = bench.gateway._identities
    for n in range(MAX_TEXTS + 50):
        system = {"role": "system", "content": f"{n} ships carry {n * 3} crates."}
        identities.accept(identities.resolve("one", {}, {"messages": [system]}))
    assert len(identities.templates) <= MAX_TEXTS
    assert len(identities._digests._memo) <= MAX_TEXTS


def test_what_was_answered_reaches_identity(bench: Bench) -> None:
    """Over HTTP, streamed or not: an agent that is handed an answer is in the session that got it."""
    text = "Ask the harbour master for the list of all boats."
    chunk = f'data: {{"choices":[{{"index":0,"delta":{{"content":"{text}"}}}}]}}\n\n'
    for stream, items in ((False, [Told(text)]), (True, [chunk, "data: [DONE]\n\n"])):
        bench.gateway._identities = IdentityResolver(b"secret")
        bench.handle.items = [RequestAccepted("r1", 40, 32).to_wire(), *items]
        planner = [{"role": "system", "content": "You plan."}, {"role": "user", "content": "Count the boats."}]
        coder = [{"role": "system", "content": "You act."}, {"role": "user", "content": f"Do this: {text}"}]
        first = post(bench, messages=planner, stream=stream)
        assert ours(post(bench, messages=coder, stream=stream), "session") == ours(first, "session")
