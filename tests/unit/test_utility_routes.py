"""/tokenize, /detokenize and count_tokens: no agent, no session, the errors and readings of the other routes."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.unit.gateway_bench import Bench

TOKENIZE, DETOKENIZE, COUNT = "/tokenize", "/detokenize", "/v1/messages/count_tokens"
HI = [{"role": "user", "content": "hi"}]
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "a chat's tokens": (TOKENIZE, {"model": "m", "messages": HI}),
    "a text's tokens": (TOKENIZE, {"model": "m", "prompt": "hi"}),
    "a text of tokens": (DETOKENIZE, {"model": "m", "tokens": [1, 2]}),
    "a message's tokens": (COUNT, {"model": "m", "messages": HI}),
}
NAMED = sorted(BODIES)
BILLING = "x-anthropic-billing-header: cc_version=2.1.9.aaa; cch=1a2b3;\n"
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a":1,"b":1}'}}
PARTS = [{"type": "text", "text": "hi"}]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    counted = {"count": 17, "max_model_len": 100, "tokens": [], "prompt": "hi"}
    made.handle.items = [SimpleNamespace(model_dump=lambda: counted)]
    yield made
    assert made.gateway._admission.in_flight == 0
    assert made.buffered == 0 and len(made.gateway._identities.conversations) == 0


def post(bench: Bench, name: str, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    path, body = BODIES[name]
    return bench.ask("POST", path, json={**body, **fields}, headers=headers or {})


def sent(bench: Bench) -> Any:
    return bench.handle.requests[-1][0]


@pytest.mark.parametrize("path", [TOKENIZE, DETOKENIZE, COUNT])
def test_a_place_comes_before_the_body(bench: Bench, path: str) -> None:
    slots = [bench.gateway._admission.admit("ops") for _ in range(1)] + [bench.gateway._admission.admit("one")]
    assert bench.ask("POST", path, content=b"{").status_code == 429
    for slot in slots:
        slot.free()
    assert bench.ask("POST", path, content=b"{").status_code == 400


@pytest.mark.parametrize("tokens", [None, "12", [1, "2"], [True], [-1], [2**31], [2**40], [1.5], [[1]]])
def test_what_is_no_token_id_reaches_no_replica(bench: Bench, tokens: Any) -> None:
    refused = post(bench, "a text of tokens", tokens=tokens)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "tokens"
    assert not bench.handle.requests


@pytest.mark.parametrize("name", NAMED)
def test_they_belong_to_nobody(bench: Bench, name: str) -> None:
    plain = post(bench, name)
    declared = post(
        bench,
        name,
        {"x-session-id": "s1", "x-claude-code-agent-id": "planner", "x-request-id": "dup"},
        session_id="s" * 100_000,
        request_id="r" * 100_000,
        agent_hints={"agent_id": "a\x01b"},
        nvext={"agent_context": {"trajectory_final": True}},
    )
    assert declared.status_code == 200, declared.text
    assert declared.content == plain.content and len(declared.content) < 200
    assert not [header for header in declared.headers if header.startswith("x-agent-runtime-")]
    assert "sss" not in repr(sent(bench).model_dump(exclude_unset=True, exclude={"session_id", "request_id"}))


@pytest.mark.parametrize("name", NAMED)
def test_a_header_of_100_kb_is_refused(bench: Bench, name: str) -> None:
    answer = post(bench, name, {"x-session-id": "a" * 100_000})
    assert answer.status_code == 431 and answer.json()["error"]["code"] == "headers_too_large"
    assert bench.handle.requests == []


@pytest.mark.parametrize("name", NAMED)
def test_nulls_are_absent(bench: Bench, name: str) -> None:
    fields = ("tools", "tool_choice", "metadata", "user", "session_id", "priority", "nvext", "add_special_tokens")
    assert post(bench, name, **dict.fromkeys(fields)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", NAMED)
def test_errors(bench: Bench, name: str, stream: bool) -> None:
    path, body = BODIES[name]
    field = next(one for one in body if one != "model")
    answers = [
        (post(bench, name, model="other", stream=stream), 404),
        (post(bench, name, **{field: {"a": "SECRET"}}, stream=stream), 400),
        (bench.ask("POST", path, content=b'{"model":'), 400),
        (bench.ask("POST", path, content=b""), 400),
        (bench.ask("POST", path, content=b"[]"), 400),
        (bench.ask("GET", path), 405),
        (bench.ask("POST", path, None, json=body), 401),
    ]
    for answer, status in answers:
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"} and "SECRET" not in answer.text
    assert bench.handle.requests == []


@pytest.mark.parametrize("content", [None, "", PARTS, "left out"], ids=["null", "empty", "a part", "left out"])
def test_a_chat_with_tool_calls_is_counted(bench: Bench, content: Any) -> None:
    called: dict[str, Any] = {"role": "assistant", "tool_calls": [CALL]}
    if content != "left out":
        called["content"] = content
    turns = [*HI, called, {"role": "tool", "tool_call_id": "call_1", "content": PARTS}]
    assert post(bench, "a chat's tokens", messages=turns).status_code == 200
    assert [message["role"] for message in sent(bench).messages] == ["user", "assistant", "tool"]


def test_messages_with_tool_calls_are_counted(bench: Bench) -> None:
    use = {"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 1, "b": 1}}
    back = {"type": "tool_result", "tool_use_id": "call_1", "content": PARTS}
    turns = [*HI, {"role": "assistant", "content": [use]}, {"role": "user", "content": [back]}]
    assert post(bench, "a message's tokens", messages=turns).status_code == 200
    assert [message["role"] for message in sent(bench).messages] == ["user", "assistant", "tool"]


def test_text_and_one_part_are_the_same_prompt(bench: Bench) -> None:
    for name in ("a chat's tokens", "a message's tokens"):
        prompts = []
        for content in ("hi", PARTS):
            assert post(bench, name, messages=[{"role": "user", "content": content}]).status_code == 200
            prompts.append([message["content"] for message in sent(bench).messages])
        assert prompts[0] == prompts[1]


def test_billing_lines_are_not_counted_and_inner_system_messages_stay(bench: Bench) -> None:
    """As the routes that generate send them to the engine: what is counted is what will be used."""
    left = {"role": "system", "content": "<total_tokens>4999000 tokens left</total_tokens>"}
    user = {"role": "user", "content": BILLING + "hi"}
    chat = [{"role": "system", "content": BILLING + "Be kind."}, user, left]
    assert post(bench, "a chat's tokens", messages=chat).status_code == 200
    assert post(bench, "a message's tokens", system=BILLING + "Be kind.", messages=[user, left]).status_code == 200
    wanted = [("system", "Be kind."), ("user", user["content"]), ("system", left["content"])]
    for request, _ in bench.handle.requests:
        assert [(message["role"], message["content"]) for message in request.messages] == wanted
