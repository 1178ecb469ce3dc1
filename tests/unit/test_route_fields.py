"""What a route doesn't have is refused by name, with what to use instead; what asks for nothing passes."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.http.errors import ApiError
from serve_app.http.field_checks import CHAT, COMPLETIONS, MESSAGES, RESPONSES, check_fields
from serve_app.http.route_fields import check_own

FUNCTION = {"name": "add", "parameters": {"type": "object"}}


def refused(endpoint: str, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        check_own(endpoint, {"model": "m", **fields})
    assert caught.value.status == 400 and caught.value.code == "unsupported_value"
    return caught.value


@pytest.mark.parametrize(
    ("endpoint", "name", "value", "instead"),
    [
        (CHAT, "functions", [FUNCTION], "tools"),
        (CHAT, "function_call", "auto", "tool_choice"),
        (CHAT, "max_output_tokens", 5, "max_completion_tokens"),
        (CHAT, "stop_sequences", ["a"], "stop"),
        (CHAT, "system", "You plan.", "messages"),
        (CHAT, "guided_json", {"type": "object"}, "structured_outputs"),
        (CHAT, "guided_regex", "a+", "structured_outputs"),
        (CHAT, "best_of", 3, "n"),
        (CHAT, "web_search_options", {"search_context_size": "low"}, None),
        (CHAT, "audio", {"voice": "x"}, None),
        (COMPLETIONS, "max_completion_tokens", 5, "max_tokens"),
        (COMPLETIONS, "messages", [{"role": "user", "content": "hi"}], "prompt"),
        (COMPLETIONS, "best_of", 2, "n"),
        (COMPLETIONS, "tools", [{"type": "function", "function": FUNCTION}], None),
        (RESPONSES, "max_tokens", 5, "max_output_tokens"),
        (RESPONSES, "max_completion_tokens", 5, "max_output_tokens"),
        (RESPONSES, "n", 3, None),
        (RESPONSES, "response_format", {"type": "json_object"}, "text.format"),
        (RESPONSES, "messages", [{"role": "user", "content": "hi"}], "input"),
        (RESPONSES, "logprobs", True, "top_logprobs"),
        (RESPONSES, "min_tokens", 4, None),
        (MESSAGES, "n", 3, None),
        (MESSAGES, "stop", ["a"], "stop_sequences"),
        (MESSAGES, "response_format", {"type": "json_object"}, "output_config.format"),
        (MESSAGES, "max_completion_tokens", 5, "max_tokens"),
        (MESSAGES, "logprobs", True, None),
        (MESSAGES, "mcp_servers", [{"type": "url", "url": "http://x"}], None),
    ],
)
def test_a_field_of_another_route_is_refused(endpoint: str, name: str, value: Any, instead: str | None) -> None:
    error = refused(endpoint, **{name: value})
    assert error.param == name and f"`{name}` is not supported on this route" in error.message
    assert (f"use `{instead}`" in error.message) == (instead is not None)


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
def test_what_asks_for_nothing_passes(endpoint: str) -> None:
    nothing = {"n": 1, "best_of": 1, "functions": [], "logprobs": False, "echo": False, "stop_sequences": []}
    check_own(endpoint, {"model": "m", **nothing, "top_logprobs": 0, "user": "u", "own_field": 5})


def test_only_text_comes_back() -> None:
    assert refused(CHAT, modalities=["text", "audio"]).param == "modalities"
    check_own(CHAT, {"modalities": ["text"]})


@pytest.mark.parametrize("name", ["include_usage", "continuous_usage_stats", "include_obfuscation"])
@pytest.mark.parametrize("value", ["yes", 1, [], {}])
def test_options_of_a_stream_are_true_or_false(name: str, value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        check_fields(CHAT, {"stream_options": {name: value}})
    assert caught.value.param == f"stream_options.{name}"
    for fine in (True, False, None):
        check_fields(CHAT, {"stream_options": {name: fine}})
