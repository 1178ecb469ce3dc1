"""Wrong types and ranges are refused by name, before the engine's classes make something of them."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.http.errors import ApiError
from serve_app.http.field_checks import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    check_fields,
    check_prompt,
    check_role,
    check_tool_calls,
    check_tool_choice,
)

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("endpoint", "name", "value"),
    [
        (CHAT, "stream", "yes"),
        (CHAT, "stream", 1),
        (CHAT, "max_tokens", True),
        (CHAT, "max_tokens", "5"),
        (CHAT, "max_tokens", 1.5),
        (CHAT, "temperature", "hot"),
        (CHAT, "temperature", True),
        (CHAT, "metadata", "x"),
        (CHAT, "metadata", 3),
        (CHAT, "presence_penalty", 9),
        (CHAT, "frequency_penalty", -9.0),
        (CHAT, "logprobs", 2),
        (COMPLETIONS, "logprobs", True),
        (COMPLETIONS, "best_of", -1),
        (COMPLETIONS, "best_of", "x"),
        (COMPLETIONS, "echo", "no"),
        (CHAT, "temperature", -0.1),
        (CHAT, "temperature", 3),
        (CHAT, "top_p", 0),
        (CHAT, "top_p", 1.1),
        (CHAT, "min_p", 2),
        (CHAT, "top_k", -2),
        (CHAT, "min_tokens", -1),
        (CHAT, "repetition_penalty", 0),
        (CHAT, "stop", ""),
        (CHAT, "stop", ["a", ""]),
        (CHAT, "stop", [1]),
        (CHAT, "stop", 5),
        (MESSAGES, "stop_sequences", "a"),
        (CHAT, "response_format", "json"),
    ],
)
def test_a_wrong_field_is_named(endpoint: str, name: str, value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        check_fields(endpoint, {"model": "m", name: value})
    assert caught.value.status == 400 and caught.value.param == name
    assert f"`{name}` must be" in caught.value.message


@pytest.mark.parametrize("name", ["stop", "stop_sequences"])
def test_as_many_stops_as_the_engine_takes(name: str) -> None:
    check_fields(CHAT, {name: ["a"] * 4})
    check_fields(CHAT, {name: ["a"] * 16}, max_stops=16)
    with pytest.raises(ApiError, match="at most 4") as caught:
        check_fields(CHAT, {name: ["a"] * 5})
    assert caught.value.param == name


@pytest.mark.parametrize("bias", [{"x": 1}, {"-1": 1}, {"": 1}, {"²": 1}, {"9" * 40: 1}, {"5": 101}, {"5": "x"}])
def test_biases(bias: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="`logit_bias` must have") as caught:
        check_fields(CHAT, {"logit_bias": bias})
    assert caught.value.param == "logit_bias"
    check_fields(CHAT, {"logit_bias": {"5": -100, "6": 100, "0": 0.5}})


def test_formats() -> None:
    with pytest.raises(ApiError, match="json_schema") as caught:
        check_fields(CHAT, {"response_format": {"type": "yaml"}})
    assert caught.value.param == "response_format.type"
    check_fields(CHAT, {"response_format": {"type": "json_object"}})


def test_what_clients_send_passes() -> None:
    check_fields(CHAT, {"temperature": 2, "top_p": 1, "top_k": -1, "min_p": 0, "stop": "a", "repetition_penalty": 1.1})
    check_fields(CHAT, {"stream": True, "max_tokens": 5, "temperature": 0, "top_p": 0.5, "logprobs": True, "n": 1})
    check_fields(COMPLETIONS, {"logprobs": 5, "echo": False, "best_of": 1, "seed": -3, "metadata": {"a": "b"}})
    check_fields(CHAT, {"own_field": object()})


@pytest.mark.parametrize("role", ["wizard", "", None, 5])
def test_roles(role: Any) -> None:
    with pytest.raises(ApiError) as caught:
        check_role(role, "messages[2]")
    assert caught.value.param == "messages[2].role" and "assistant" in caught.value.message
    check_role("tool", "messages[0]")


@pytest.mark.parametrize(
    ("calls", "param"),
    [
        ("x", "m.tool_calls"),
        (["x"], "m.tool_calls[0]"),
        ([{}], "m.tool_calls[0].id"),
        ([CALL, {"id": "c2", "type": "function"}], "m.tool_calls[1].function"),
        ([CALL, {"id": "c2"}], "m.tool_calls[1].type"),
        ([{**CALL, "function": {"name": "f"}}], "m.tool_calls[0].function.arguments"),
    ],
)
def test_tool_calls(calls: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_tool_calls(calls, "m.tool_calls")
    assert caught.value.param == param
    check_tool_calls([CALL], "m.tool_calls")


@pytest.mark.parametrize(
    ("prompt", "param"),
    [(None, "prompt"), ("", "prompt"), ([], "prompt"), ({}, "prompt"), ([[]], "prompt[0]"), ([1, None], "prompt[1]")],
)
def test_prompts(prompt: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_prompt(prompt)
    assert caught.value.param == param
    for good in ("text", ["a", "b"], [1, 2], [[1], [2, 3]]):
        check_prompt(good)


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, "tool_choice.type"),
        ({"type": "custom", "custom": {"name": "f"}}, "tool_choice.type"),
        ({"type": "auto"}, "tool_choice.type"),
        ({}, "tool_choice.type"),
        ({"type": "function"}, "tool_choice.function"),
        ({"type": "function", "name": "f"}, "tool_choice.function"),
        ({"type": "function", "function": {}}, "tool_choice.function.name"),
        ({"type": "function", "function": {"name": 5}}, "tool_choice.function.name"),
        ("any", "tool_choice"),
        (5, "tool_choice"),
        ([], "tool_choice"),
    ],
)
def test_tool_choices(choice: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_tool_choice(choice)
    assert caught.value.param == param and "None" not in caught.value.message
    for good in ("none", "auto", "required", {"type": "function", "function": {"name": "f"}}):
        check_tool_choice(good)
