"""Where a value may have several forms, an error is that of the form that was meant, at the field's own path."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from runtime_actor.messages import RequestAccepted
from serve_app.engine_api import ResponsesRequest, construct_input_messages
from serve_app.http.errors import from_pydantic
from tests.unit.gateway_bench import Bench, chat_answer

ACCEPTED = RequestAccepted("r1", 40, 32).to_wire()
HI = {"role": "user", "content": "hi"}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
FUNCTION = {"name": "add", "arguments": "{}"}
EXTRA: dict[str, dict[str, Any]] = {"tool": {"tool_call_id": "t"}, "function": {"name": "f"}}
ROLES = ("user", "system", "assistant", "developer", "tool")


def asked(path: str, fields: dict[str, Any]) -> tuple[int, dict[str, Any], Bench]:
    bench = Bench()
    bench.handle.items = [ACCEPTED, {"id": "r", "output": []} if path == RESPONSES else chat_answer()]
    got = bench.ask("POST", path, json={"model": "m", **({"max_tokens": 8} if path == MESSAGES else {}), **fields})
    return got.status_code, got.json().get("error") or {}, bench


def turns(path: str, *messages: Any) -> dict[str, Any]:
    return {"input" if path == RESPONSES else "messages": [HI, *messages]}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "name", ["name", "tool_call_id", "reasoning", "refusal", "function_call", "audio", "tool_calls"]
)
def test_null_in_a_message_is_absent(role: str, name: str) -> None:
    message = {"role": role, "content": "x", **({} if name == "tool_call_id" else EXTRA.get(role, {}))}
    status, error, bench = asked(CHAT, turns(CHAT, {**message, name: None}))
    assert status == 200, error
    assert asked(CHAT, turns(CHAT, message))[2].handle.requests[0][0].messages == bench.handle.requests[0][0].messages


@pytest.mark.parametrize("role", [*ROLES, "function"])
@pytest.mark.parametrize("name", ["name", "tool_call_id", "reasoning", "reasoning_content", "refusal"])
@pytest.mark.parametrize("value", [5, {}, ["a"], False])
def test_a_wrong_field_of_a_message_is_named(role: str, name: str, value: Any) -> None:
    message = {"role": role, "content": "x", **EXTRA.get(role, {}), name: value}
    status, error, _ = asked(CHAT, turns(CHAT, message))
    assert (status, error["param"]) == (400, f"messages[1].{name}")
    assert error["message"] == f"`messages[1].{name}` must be a string."


def item(**fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", **fields}


def output(**fields: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": "c", "output": "x", **fields}


def use(**fields: Any) -> dict[str, Any]:
    block = {"type": "tool_use", "id": "t", "name": "f", "input": {}, **fields}
    return {"role": "assistant", "content": [block]}


def result(**fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x", **fields}]}


CALL = {"role": "assistant", "content": None}
WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    (CHAT, {**CALL, "tool_calls": [{"id": "a", "function": FUNCTION}]}, "tool_calls[0].type", "must be function"),
    (CHAT, {**CALL, "tool_calls": [{"id": "a", "type": "x", "function": FUNCTION}]}, "tool_calls[0].type", "must be"),
    (CHAT, {"role": "assistant", "content": [{"type": "refusal"}]}, "content[0].refusal", "must be a string"),
    (RESPONSES, item(arguments={}), "arguments", "must be a string"),
    (RESPONSES, item(name=None), "name", "is required"),
    (RESPONSES, output(output=None), "output", "is required"),
    (RESPONSES, output(output=5), "output", "must be a string or an array"),
    (RESPONSES, output(call_id=5), "call_id", "must be a string"),
    (RESPONSES, {"role": "user", "content": None}, "content", "is required"),
    (RESPONSES, {"role": "user", "content": 5}, "content", "must be a string or an array"),
    (
        RESPONSES,
        {"role": "user", "content": [{"type": "input_text", "text": 5}]},
        "content[0].text",
        "must be a string",
    ),
    (RESPONSES, {"role": "user", "content": [{"type": "input_text"}]}, "content[0].text", "must be a string"),
    (RESPONSES, {"role": "wizard", "content": "x"}, "role", "must be one of user"),
    (RESPONSES, {"type": "nonsense"}, "type", "must be one of message"),
    (MESSAGES, use(input="x"), "content[0].input", "must be an object"),
    (MESSAGES, use(id=5), "content[0].id", "must be a string"),
    (MESSAGES, result(content=5), "content[0].content", "must be a string or an array"),
    (MESSAGES, result(is_error="x"), "content[0].is_error", "must be true or false"),
    (MESSAGES, {"role": "user", "content": 5}, "content", "must be a string or an array"),
    (MESSAGES, {"role": "user", "content": ["x"]}, "content[0]", "must be an object"),
]


@pytest.mark.parametrize(("path", "message", "where", "reason"), WRONG, ids=lambda value: json.dumps(value)[:60])
def test_a_wrong_field_inside_a_turn_is_named(path: str, message: dict[str, Any], where: str, reason: str) -> None:
    status, error, bench = asked(path, turns(path, message))
    param = f"{'input' if path == RESPONSES else 'messages'}[1].{where}"
    assert (status, error["param"]) == (400, param), error
    assert error["message"].startswith(f"`{param}` {reason}") and bench.handle.requests == []


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "json_schema.name"),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "schema": {}}}}, "format.name"),
        (
            RESPONSES,
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": "x"}}},
            "format.strict",
        ),
    ],
)
def test_a_wrong_field_of_a_format_is_named(path: str, fields: dict[str, Any], param: str) -> None:
    status, error, _ = asked(path, {**turns(path), **fields})
    assert (status, error["param"]) == (400, f"{next(iter(fields))}.{param}"), error


def test_null_in_an_item_of_responses_is_absent() -> None:
    nothing = {"id": None, "status": None}
    items = [{**HI, **nothing, "name": None, "type": None}, item(**nothing, namespace=None), output(**nothing)]
    status, error, _ = asked(RESPONSES, {"input": items})
    assert status == 200, error


def test_a_reference_and_an_image_are_named_in_an_input() -> None:
    image = {"type": "input_image", "detail": "auto", "image_url": "http://127.0.0.1:9999/x.png"}
    for turn, param in (
        ({"type": "item_reference", "id": "x"}, "input[1].type"),
        ({"role": "user", "content": [{"type": "input_text", "text": "a"}, image]}, "input[1].content[1].type"),
        (output(output=[image]), "input[1].output[0].type"),
    ):
        status, error, _ = asked(RESPONSES, turns(RESPONSES, turn))
        assert (status, error["param"]) == (400, param) and "messages" not in error["message"], error


@pytest.mark.parametrize("whole", [{}, {"type": "message"}, {"type": "message", "id": "m", "status": "completed"}])
def test_a_refusal_in_the_history_is_text(whole: dict[str, Any]) -> None:
    """As over chat, also beside other parts."""
    refusal = {"type": "refusal", "refusal": "No."}
    text = {"type": "output_text", "text": "Well. ", "annotations": []}
    for parts, said in (([refusal], "No."), ([text, refusal], "Well. No."), ([refusal, text], "No.Well. ")):
        turn = {**whole, "role": "assistant", "content": parts}
        status, error, bench = asked(RESPONSES, turns(RESPONSES, turn, HI))
        assert status == 200, error
        kept = ResponsesRequest.model_validate(bench.handle.requests[0][0].fields).input
        assert construct_input_messages(request_input=kept)[1] == {"role": "assistant", "content": said}
        assert asked(CHAT, turns(CHAT, {"role": "assistant", "content": [refusal]}, HI))[0] == 200


class Cat(BaseModel):
    type: str
    lives: int


def test_what_fits_no_branch_names_them_all() -> None:
    def refused(value: Any) -> Any:
        with pytest.raises(ValidationError) as caught:
            TypeAdapter(dict[str, Cat | list[Cat] | str]).validate_python({"pet": value})
        return from_pydantic([dict(entry) for entry in caught.value.errors()])

    assert refused(5).message == "`pet` must be an object or an array or a string."
    assert refused([{"type": "a"}]).param == "pet[0].lives"
    assert refused({"type": "a", "lives": "x"}).param == "pet.lives"
