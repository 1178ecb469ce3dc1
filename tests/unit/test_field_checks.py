"""Wrong types and ranges are refused by name, before the engine's classes make something of them."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.http.errors import ApiError
from serve_app.http.field_checks import CHAT, COMPLETIONS, check_fields, check_prompt, check_role, check_tool_calls

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
    ],
)
def test_a_wrong_field_is_named(endpoint: str, name: str, value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        check_fields(endpoint, {"model": "m", name: value})
    assert caught.value.status == 400 and caught.value.param == name
    assert f"`{name}` must be" in caught.value.message


def test_what_clients_send_passes() -> None:
    check_fields(CHAT, {"stream": True, "max_tokens": 5, "temperature": 0, "top_p": 0.5, "logprobs": True, "n": 1})
    check_fields(COMPLETIONS, {"logprobs": 5, "echo": False, "best_of": 2, "seed": -3, "metadata": {"a": "b"}})
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
        ([CALL, {"id": "c2"}], "m.tool_calls[1].function"),
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
