"""OpenAI's error shape; `param` never holds the caller's content."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from serve_app.http.errors import (
    ApiError,
    context_length,
    field_path,
    from_engine,
    from_pydantic,
    model_not_found,
    overloaded,
    timed_out,
    unavailable,
)

ALL = [
    ApiError(400, "m", param="p", code="c"),
    context_length(3168, 8192),
    model_not_found("x"),
    overloaded(3),
    unavailable("gone"),
    timed_out(5),
]


@pytest.mark.parametrize("error", ALL, ids=lambda e: str(e.status))
def test_shape_and_pickle(error: ApiError) -> None:
    inner = error.body()["error"]
    assert set(inner) == {"message", "type", "param", "code"}
    assert isinstance(inner["message"], str) and isinstance(inner["type"], str)
    copy = pickle.loads(pickle.dumps(error))
    assert copy.body() == error.body() and copy.status == error.status and copy.headers == error.headers
    assert json.loads(error.event().removeprefix("data: ")) == error.body()


def test_context_length_names_what_is_usable() -> None:
    error = context_length(3168, 8192)
    assert error.status == 400 and error.code == "context_length_exceeded"
    assert "3168" in error.message and "8192" in error.message
    assert "8192" not in context_length(4096, 4096).message


@pytest.mark.parametrize(
    ("location", "path"),
    [
        (("messages", 2, "content"), "messages[2].content"),
        (("messages", 0, "ChatCompletionSystemMessageParam", "content", "str"), "messages[0].content"),
        (("vllm_xargs", "my secret key!", "str"), "vllm_xargs"),
        ((), None),
    ],
)
def test_field_path(location: tuple[Any, ...], path: str | None) -> None:
    assert field_path(location) == path


def test_pydantic_errors_lose_their_input() -> None:
    error = from_pydantic([{"type": "int_parsing", "loc": ("priority",), "msg": "x", "input": "SECRET"}])
    assert error.param == "priority" and "SECRET" not in json.dumps(error.body())


class ValidatorError(ValueError):
    parameter = "logprobs"


def test_validator_messages_lose_the_value() -> None:
    cause = ValidatorError("`logprobs` must be positive. (parameter=logprobs, value=SECRET)")
    error = from_pydantic([{"type": "value_error", "loc": (), "msg": "", "ctx": {"error": cause}}])
    assert error.param == "logprobs" and "SECRET" not in error.message


def test_engine_errors() -> None:
    long = {
        "message": "This model's maximum context length is 3168 tokens. However, you requested 8 output tokens "
        "and your prompt contains at least 3161 input tokens.",
        "code": 400,
    }
    assert from_engine(long, 3168, 8192).code == "context_length_exceeded"
    assert "3161" in from_engine(long, 3168, 8192).message
    inner = from_engine({"message": "Traceback /usr/lib", "code": 500}, 1, 1)
    assert inner.status == 500 and "Traceback" not in inner.message
    odd = from_engine({"message": "bad", "code": 400, "param": "what the user wrote"}, 1, 1)
    assert odd.param is None
    named = from_engine({"message": "bad_words cannot contain an empty string.", "code": 400}, 1, 1)
    assert named.param == "bad_words"
    assert from_engine({"message": "your_own words must go", "code": 400}, 1, 1).param is None
    assert from_engine({"code": "??"}, 1, 1).status == 500


def test_unknown_model_is_not_echoed_at_length() -> None:
    assert "a" * 200 not in model_not_found("a" * 200).message
    assert "\n" not in model_not_found("a\nb").message
