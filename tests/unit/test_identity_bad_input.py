"""Identity that is too large, malformed, another's or without end: bounded, answered, explained on every route."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from runtime_actor.messages import RequestAccepted
from serve_app.identity import SESSION_ID, IdentityResolver
from serve_app.recognition.conversations import ConversationIndex
from serve_app.recognition.labels import LABEL_CHARS
from serve_app.recognition.quotes import QuoteIndex
from serve_app.recognition.templates import MAX_TEXTS
from tests.route_kit import CHAT, COMPLETIONS, CONVERSATIONS, MESSAGES, RESPONSES, ROUTES, said, turn
from tests.unit.gateway_bench import Answer, Bench, chat_answer

ID_HEADERS = ["x-session-id", "session-id", "x-dynamo-session-id", "x-claude-code-session-id", "x-claude-code-agent-id"]
CONTROL = ["a\x01b", "a\x7fb", "\x1b[2J", "a\tb", "a\x00"]
ACCEPTED = RequestAccepted("r1", 40, 32).to_wire()


class Told(Answer):
    """An answer with text."""

    def __init__(self, text: str, is_chat: bool = True) -> None:
        self.choice = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}

    def model_dump(self) -> dict[str, Any]:
        return {**super().model_dump(), "choices": [{"index": 0, "finish_reason": "stop", **self.choice}]}


def told(route: str, text: str = "Done.") -> Any:
    """What the engine answers on a route."""
    if route == MESSAGES:
        return chat_answer(text)
    if route == RESPONSES:
        usage = {"input_tokens": 40, "input_tokens_details": {"cached_tokens": 32}, "output_tokens": 3}
        parts = [{"type": "output_text", "text": text}]
        return {"id": "resp_1", "output": [{"type": "message", "content": parts}], "usage": usage}
    return Told(text, route == CHAT)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    assert made.gateway._admission.in_flight == 0


HI = [{"role": "user", "content": "hi"}]


def post(
    bench: Bench,
    route: str = CHAT,
    headers: dict[str, str] | None = None,
    tenant: str = "one",
    turns: list[dict[str, Any]] = HI,
    system: str | None = None,
    answer: str = "Done.",
    **fields: Any,
) -> httpx.Response:
    bench.handle.items = [ACCEPTED, told(route, answer)]
    body = turn(route, system, turns, 1, model="m", **fields)
    return bench.ask("POST", route, tenant, json=body, headers=headers or {})


def ours(answer: httpx.Response, name: str) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.headers[f"x-agent-runtime-{name}"])


@pytest.mark.parametrize("name", ID_HEADERS)
@pytest.mark.parametrize("route", ROUTES)
def test_a_header_of_100_kb_is_refused_and_leaves_nothing(bench: Bench, route: str, name: str) -> None:
    answer = post(bench, route, {name: "a" * 100_000})
    assert answer.status_code == 431
    error = answer.json()["error"]
    assert error["code"] == "headers_too_large" and str(32 * 1024) in error["message"]
    assert bench.handle.requests == [] and bench.buffered == 0
    assert len(bench.gateway._identities.conversations) == 0


@pytest.mark.parametrize("name", ID_HEADERS)
@pytest.mark.parametrize("route", ROUTES)
def test_a_header_within_the_limit_is_an_id_and_never_comes_back(bench: Bench, route: str, name: str) -> None:
    answer = post(bench, route, {name: "z" * 30_000})
    assert ours(answer, "hints") == f"{name}=accepted"
    assert SESSION_ID.match(ours(answer, "session")) and "zzzzzz" not in str(answer.headers) + answer.text
    bench.ask("GET", "/runtime/state")
    assert max(len(str(event.get("label", ""))) for event in bench.actor.events) <= LABEL_CHARS


@pytest.mark.parametrize("empty", [None, [], "", {}, 0, False])
@pytest.mark.parametrize("name", ["messages", "input", "prompt", "system", "instructions"])
@pytest.mark.parametrize("route", ROUTES)
def test_another_routes_field_without_a_value_changes_nothing(bench: Bench, route: str, name: str, empty: Any) -> None:
    plain = post(bench, route)
    if name in turn(route, "s", HI):
        return
    answer = post(bench, route, **{name: empty})
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 200:
        assert ours(answer, "agent") == ours(plain, "agent")


@pytest.mark.parametrize("field", ["session_id", "agent_hints"])
@pytest.mark.parametrize("route", ROUTES)
def test_an_id_of_100_kb_in_the_body_is_hashed(bench: Bench, route: str, field: str) -> None:
    long = "z" * 100_000
    fields: list[dict[str, Any]] = [
        {"session_id": value} if field == "session_id" else {"agent_hints": {"agent_id": value}}
        for value in (long, long, long + "d")
    ]
    answers = [post(bench, route, **one) for one in fields]
    ids = [ours(answer, "session" if field == "session_id" else "agent") for answer in answers]
    assert ids[0] == ids[1] != ids[2] and {len(found) for found in ids} == {18}
    assert "zzzzzz" not in str(answers[0].headers) + answers[0].text


@pytest.mark.parametrize("value", CONTROL)
@pytest.mark.parametrize("route", ROUTES)
def test_control_characters_make_no_id(bench: Bench, route: str, value: str) -> None:
    by_body = [post(bench, route, session_id=value, agent_hints={"agent_id": value}) for _ in range(2)]
    plain = post(bench, route)
    assert ours(by_body[0], "session") != ours(by_body[1], "session")
    assert ours(by_body[0], "agent") == ours(plain, "agent")
    assert ours(by_body[0], "hints") == "session_id=rejected, agent_hints.agent_id=rejected"


@pytest.mark.parametrize("value", CONTROL)
@pytest.mark.parametrize("route", ROUTES)
def test_control_characters_in_a_header_make_no_id(bench: Bench, route: str, value: str) -> None:
    named = [(b"x-session-id", value.encode()), (b"x-claude-code-agent-id", value.encode())]
    answer = raw_post(bench, route, named)
    assert answer["status"] == 200
    assert answer["headers"]["hints"] == "x-session-id=rejected, x-claude-code-agent-id=rejected"
    assert answer["headers"]["agent"] == ours(post(bench, route), "agent")


def raw_post(bench: Bench, route: str, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    """As a lenient server would hand it over: an HTTP client refuses to send such a header."""
    bench.handle.items = [ACCEPTED, told(route)]
    body = json.dumps(turn(route, None, HI, 1, model="m")).encode()
    scope = {
        "type": "http",
        "method": "POST",
        "path": route,
        "raw_path": route.encode(),
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


@pytest.mark.parametrize("route", ROUTES)
def test_another_tenants_session_id_reaches_nothing(bench: Bench, route: str) -> None:
    mine = ours(post(bench, route, {"x-session-id": "s1"}), "session")
    assert ours(post(bench, route, {"x-session-id": "s1"}, "ops"), "session") != mine
    # The id that the reply showed to the first tenant: it names a session of the second one's own.
    post(bench, route, {"x-session-id": mine, "x-dynamo-session-final": "true"}, "ops")
    bench.ask("POST", "/runtime/events", "ops", json={"type": "session_ended", "session_id": mine})
    assert bench.routing.session("one", mine) is not None
    assert bench.routing.session("ops", mine) is None
    bench.ask("GET", "/runtime/state")
    ended = {event["tenant"] for event in bench.actor.events if event["kind"] == "session_ended"}
    assert ended == {"ops"}
    sent = [request for request, _ in bench.handle.requests]
    salts = {one.fields["cache_salt"] if route == RESPONSES else one.cache_salt for one in sent}
    assert len(salts) == 2


@pytest.mark.parametrize("route", CONVERSATIONS)
@pytest.mark.parametrize("is_final", [False, True])
def test_a_session_that_was_ended_is_handed_to_nobody(bench: Bench, route: str, is_final: bool) -> None:
    task = [{"role": "user", "content": "Find all boats that left the harbour."}]
    final = {"x-dynamo-session-final": "true"} if is_final else {}
    first = ours(post(bench, route, final, turns=task, system="You plan the work of others."), "session")
    worker = ours(post(bench, route, turns=task, system="Search the lists for names."), "session")
    assert (worker == first) != is_final


@pytest.mark.parametrize("route", CONVERSATIONS)
def test_another_tenants_conversation_is_not_continued(bench: Bench, route: str) -> None:
    keeps = "The harbour master keeps the list of all boats."
    opening = [{"role": "user", "content": "Who keeps the list of boats?"}]
    first = ours(post(bench, route, turns=opening, answer=keeps), "session")
    turns = [*opening, {"role": "assistant", "content": keeps}, {"role": "user", "content": "Where?"}]
    assert ours(post(bench, route, tenant="ops", turns=turns), "session") != first
    assert ours(post(bench, route, turns=turns), "session") == first


@pytest.mark.parametrize("route", ROUTES)
def test_a_session_that_never_ends_is_answered_and_bounded(bench: Bench, route: str) -> None:
    """Without an id where a conversation tells; a completion has to name its session."""
    bench.gateway._identities = IdentityResolver(b"secret", ConversationIndex(max_ends=8))
    bench.gateway._identities.quotes = QuoteIndex(max_lines=16)
    fields = {"session_id": "endless"} if route == COMPLETIONS else {}
    history: list[dict[str, Any]] = []
    sessions = set()
    for number in range(60):
        history.append({"role": "user", "content": f"This is what was asked in turn {number}."})
        answer = post(bench, route, turns=history, answer=f"This is what was answered in turn {number}.", **fields)
        sessions.add(ours(answer, "session"))
        history.append({"role": "assistant", "content": said(route, answer)})
    assert len(sessions) == 1
    assert len(bench.gateway._identities.conversations) == (0 if route == COMPLETIONS else 8)
    assert len(bench.gateway._identities.quotes) <= 16


@pytest.mark.parametrize("route", ROUTES)
def test_an_agent_whose_prompt_changes_every_time_is_answered_and_bounded(bench: Bench, route: str) -> None:
    """Each prompt is an agent of its own, as the reply says; with an id it is one."""
    # A completion's agent is the head of a long prompt.
    rest = " Stones sleep." * (80 if route == COMPLETIONS else 1)

    def ask(n: int, headers: dict[str, str]) -> str:
        system = f"{n} birds sing {n * 7} songs while {n * 13} stones sleep.{rest}"
        return ours(post(bench, route, headers, system=system), "agent")

    assert len({ask(n, {}) for n in range(40)}) == 40
    assert len({ask(n, {"x-claude-code-agent-id": "bird"}) for n in range(40)}) == 1
    assert len(bench.gateway._identities.templates) <= MAX_TEXTS


def test_more_prompts_than_are_remembered(bench: Bench) -> None:
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
        bench.handle.items = [ACCEPTED, *items]
        planner = turn(CHAT, "You plan.", [{"role": "user", "content": "Count the boats."}], model="m", stream=stream)
        coder = turn(CHAT, "You act.", [{"role": "user", "content": f"Do this: {text}"}], model="m", stream=stream)
        first, second = (bench.ask("POST", CHAT, json=body) for body in (planner, coder))
        assert ours(second, "session") == ours(first, "session")


def test_every_choice_of_an_answer_reaches_identity(bench: Bench) -> None:
    """Over HTTP: a client goes on from the third of three choices after it went on from the others."""
    task, texts = {"role": "user", "content": "Count the boats."}, ["By day.", "By night.", "Never."]
    answer = Told(texts[0])
    answer.model_dump = lambda: {  # type: ignore[method-assign]
        **Answer().model_dump(),
        "choices": [{"index": n, "message": {"role": "assistant", "content": text}} for n, text in enumerate(texts)],
    }
    bench.handle.items = [ACCEPTED, answer]
    first = bench.ask("POST", CHAT, json=turn(CHAT, None, [task], model="m", n=3))
    for text in (texts[1], texts[0], texts[2]):
        history = [task, {"role": "assistant", "content": text}, {"role": "user", "content": "Why?"}]
        assert ours(post(bench, turns=history, answer=f"For {text}"), "session") == ours(first, "session")
