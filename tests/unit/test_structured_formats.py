"""A format of the answer reaches the engine from each route as the client wrote it, or is refused by its own name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from runtime_actor.messages import RequestAccepted
from serve_app.engine_api import ResponsesRequest
from tests.unit.gateway_bench import Bench, chat_answer

ACCEPTED = RequestAccepted("r1", 40, 32).to_wire()
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
SCHEMA = {"type": "object", "properties": {"schema": {"type": "string"}}, "required": ["schema"]}
HI = [{"role": "user", "content": "hi"}]


def body(path: str, given: dict[str, Any] | None) -> dict[str, Any]:
    """A request with a format of type json_schema, under each route's own names."""
    if path == MESSAGES:
        return {"model": "m", "max_tokens": 8, "messages": HI, "output_config": {"format": given}}
    if path == RESPONSES:
        return {"model": "m", "input": HI, "text": {"format": None if given is None else {"name": "n", **given}}}
    if given is None:
        return {"model": "m", "messages": HI, "response_format": None}
    inner = {"name": "n", **{name: value for name, value in given.items() if name != "type"}}
    return {"model": "m", "messages": HI, "response_format": {"type": given.get("type"), "json_schema": inner}}


def asked(path: str, whole: dict[str, Any]) -> tuple[httpx.Response, Any]:
    """The reply, and what the engine was sent."""
    bench = Bench()
    bench.handle.items = [ACCEPTED, {"id": "r", "output": []} if path == RESPONSES else chat_answer()]
    got = bench.ask("POST", path, json=whole)
    return got, bench.handle.requests[-1][0] if bench.handle.requests else None


def constraint(path: str, request: Any) -> Any:
    """The schema by which the engine's own class says the answer is bound."""
    if path == RESPONSES:
        outputs = ResponsesRequest.model_validate(request.fields).extract_structured_outputs()
        return outputs.json if outputs else None
    return request.response_format.json_schema.json_schema if request.response_format else None


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize("schema", [SCHEMA, {}])
def test_a_schema_reaches_the_engine(path: str, schema: dict[str, Any]) -> None:
    got, request = asked(path, body(path, {"type": "json_schema", "schema": schema}))
    assert got.status_code == 200, got.text
    assert constraint(path, request) == schema


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_no_format_is_none(path: str) -> None:
    got, request = asked(path, body(path, None))
    assert got.status_code == 200, got.text
    assert constraint(path, request) is None


FIELDS = {
    CHAT: "response_format.json_schema.schema",
    RESPONSES: "text.format.schema",
    MESSAGES: "output_config.format.schema",
}


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize("given", [{}, {"schema": None}, {"schema": "x"}, {"schema": []}])
def test_a_schema_that_is_missing_is_named(path: str, given: dict[str, Any]) -> None:
    got, request = asked(path, body(path, {"type": "json_schema", **given}))
    assert got.status_code == 400 and request is None, got.text
    assert got.json()["error"]["param"] == FIELDS[path] and f"`{FIELDS[path]}`" in got.json()["error"]["message"]


WRONG: list[tuple[Any, str]] = [
    ("json", "output_config"),
    ({"format": "json"}, "output_config.format"),
    ({"format": {"type": "json_object"}}, "output_config.format.type"),
    ({"format": {"type": "yaml", "schema": SCHEMA}}, "output_config.format.type"),
    ({"format": {"schema": SCHEMA}}, "output_config.format.type"),
    ({"effort": "most"}, "output_config.effort"),
]


@pytest.mark.parametrize(("given", "param"), WRONG)
def test_a_wrong_output_config_is_named(given: Any, param: str) -> None:
    got, request = asked(MESSAGES, {**body(MESSAGES, None), "output_config": given})
    assert got.status_code == 400 and request is None, got.text
    assert got.json()["error"]["param"] == param and f"`{param}`" in got.json()["error"]["message"]


def test_a_schema_beside_another_constraint() -> None:
    whole = body(MESSAGES, {"type": "json_schema", "schema": SCHEMA})
    got, request = asked(MESSAGES, {**whole, "structured_outputs": {"regex": "a+"}})
    assert got.status_code == 400 and request is None, got.text
    assert got.json()["error"]["param"] == "structured_outputs" and "response_format" not in got.text


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize("name", ["output_format", "output_config"])
def test_another_routes_format_is_refused(path: str, name: str) -> None:
    """Anthropic's beta had the format on top: `output_format`."""
    if path == MESSAGES and name == "output_config":
        return
    given = {"type": "json_schema", "schema": SCHEMA}
    got, request = asked(path, {**body(path, None), name: given if name == "output_format" else {"format": given}})
    assert got.status_code == 400 and request is None, got.text
    instead = {CHAT: "response_format", RESPONSES: "text.format", MESSAGES: "output_config.format"}[path]
    assert got.json()["error"]["param"] == name and f"use `{instead}`" in got.json()["error"]["message"]


@pytest.mark.parametrize(
    "message",
    [
        "Failed to transform json schema into a grammar: unsupported",
        "The provided JSON schema contains features not supported by xgrammar.",
        "Invalid JSON grammar specification.",
    ],
)
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_a_schema_that_does_not_compile_is_named(path: str, message: str) -> None:
    """The engine says what is wrong, and not of which field."""
    bench = Bench()
    error = SimpleNamespace(message=message, type="BadRequestError", param=None, code=400)
    bench.handle.items = [SimpleNamespace(error=error)]
    got = bench.ask("POST", path, json=body(path, {"type": "json_schema", "schema": {"type": 12}}))
    fields = {CHAT: "response_format", RESPONSES: "text.format", MESSAGES: "output_config.format"}
    assert got.status_code == 400 and got.json()["error"]["param"] == fields[path], got.text
    bench.handle.items = [SimpleNamespace(error=error)]
    plain = bench.ask("POST", path, json=body(path, None))
    assert plain.status_code == 400 and plain.json()["error"]["param"] is None
