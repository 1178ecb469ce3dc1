"""Bodies that must pass, and those that the engine must never see."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from serve_app.http.errors import ApiError
from serve_app.http.field_checks import CHAT, COMPLETIONS
from serve_app.preparation import Limits, prepare, validated

TEXT = Limits(frozenset({"text"}), 16)
NULLS = [
    "stop",
    "max_tokens",
    "tools",
    "tool_choice",
    "response_format",
    "seed",
    "n",
    "logprobs",
    "stream_options",
    "user",
    "metadata",
    "session_id",
    "priority",
    "nvext",
]
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}


def history() -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": "You add."},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": None, "tool_calls": [dict(CALL)]},
        {"role": "tool", "tool_call_id": "call_1", "content": "2"},
    ]


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], **fields}


def refused(body: dict[str, Any], endpoint: str = CHAT) -> ApiError:
    with pytest.raises(ApiError) as caught:
        prepare(endpoint, body, TEXT)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_null_is_absent(endpoint: str) -> None:
    body = chat() if endpoint == CHAT else {"prompt": "hi"}
    assert prepare(endpoint, {**body, **dict.fromkeys(NULLS)}, TEXT) == body


@pytest.mark.parametrize("content", [None, "", [], "absent", [{"type": "text", "text": "x"}]])
def test_history_with_calls_crosses_a_process(content: Any) -> None:
    messages = history()
    if content == "absent":
        del messages[2]["content"]
    else:
        messages[2]["content"] = content
    request = validated(CHAT, prepare(CHAT, chat(messages=messages), TEXT))
    copy = pickle.loads(pickle.dumps(request))
    assert [dict(call) for call in copy.messages[2]["tool_calls"]] == [CALL]


def test_one_part_equals_a_string() -> None:
    parts = history()
    for message in parts:
        if message["content"] is not None:
            message["content"] = [{"type": "text", "text": message["content"]}]
    assert prepare(CHAT, chat(messages=parts), TEXT) == prepare(CHAT, chat(messages=history()), TEXT)


def test_empty_call_list_is_dropped() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": []}]
    assert "tool_calls" not in prepare(CHAT, chat(messages=messages), TEXT)["messages"][1]


def test_many_parts_stay_and_pickle() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    fields = prepare(CHAT, chat(messages=[{"role": "user", "content": parts}]), TEXT)
    assert fields["messages"][0]["content"] == parts
    assert pickle.loads(pickle.dumps(validated(CHAT, fields))).messages[0]["content"] == parts


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9999/x.png"}},
        {"image_url": "http://127.0.0.1:9999/x.png"},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "x"}},
        {"type": "file", "file": {}},
        {"type": "text", "text": "x", "image_url": "http://127.0.0.1:9999/x.png"},
    ],
)
@pytest.mark.parametrize("role", ["user", "tool", "system"])
def test_only_text_for_a_text_model(part: dict[str, Any], role: str) -> None:
    message = {"role": role, "content": [{"type": "text", "text": "a"}, part], "tool_call_id": "c"}
    error = refused(chat(messages=[message]))
    assert error.param == "messages[0].content[1].type" and error.code == "unsupported_content"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": {}}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "system", "content": [{"text": 5}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "system", "content": [{"text": ["x", 5]}]}]}, "messages[0].content[0].text"),
        (
            {"messages": [{"role": "system", "content": [{"type": "refusal", "text": 5}]}]},
            "messages[0].content[0].text",
        ),
        ({"messages": [{"role": "user", "content": [{"text": None}]}]}, "messages[0].content[0].text"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"seed": 2**70}, "seed"),
        ({"priority": "high"}, "priority"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids"),
        ({"thinking_token_budget": -5}, "thinking_token_budget"),
        ({"vllm_xargs": {"x": {"y": [1]}}}, None),
        ({"tools": "x"}, "tools"),
    ],
)
def test_refused_with_its_field(fields: dict[str, Any], param: str | None) -> None:
    error = refused(chat(**fields))
    assert param is None or error.param == param


@pytest.mark.parametrize(
    "constraint",
    [
        {"json": ""},
        {"json": "not json"},
        {"json": "[1]"},
        {"json_object": False},
        {"regex": ""},
        {"grammar": " "},
        {"choice": []},
        {"choice": [""]},
        {"structural_tag": "{}"},
        {"bogus": 1},
        {"json": {}, "regex": "a"},
        {},
        "x",
    ],
)
def test_bad_constraints(constraint: Any) -> None:
    assert refused(chat(structured_outputs=constraint)).code == "invalid_value"


def test_schema_in_response_format() -> None:
    bad = {"type": "json_schema", "json_schema": {"name": "x"}}
    assert refused(chat(response_format=bad)).param == "response_format.json_schema.schema"
    good = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    assert prepare(CHAT, chat(response_format=good), TEXT)["response_format"] == good


def test_hints_do_not_reach_the_engine() -> None:
    body = chat(priority=3, cache_salt="x", nvext={}, agent_hints={}, prompt_cache_key="k", vllm_xargs={"a": 1})
    assert set(prepare(CHAT, body, TEXT)) == {"messages"}


def test_billing_line_is_taken_out_of_the_leading_system_text_only() -> None:
    line = "x-anthropic-billing-header: cch=1;"
    messages = [{"role": "system", "content": f"{line}\nBe kind."}, {"role": "user", "content": f"{line}\nhi"}]
    cleaned = prepare(CHAT, chat(messages=messages), TEXT)["messages"]
    assert cleaned[0]["content"] == "Be kind." and cleaned[1]["content"] == f"{line}\nhi"
    in_parts = [{"type": "text", "text": line}, {"type": "text", "text": "Be kind."}]
    cleaned = prepare(CHAT, chat(messages=[{"role": "system", "content": in_parts}, messages[1]]), TEXT)["messages"]
    assert cleaned[0]["content"] == "Be kind."


def test_the_body_is_left_as_it_was() -> None:
    body = chat(messages=history(), priority=1)
    before = pickle.dumps(body)
    prepare(CHAT, body, TEXT)
    assert pickle.dumps(body) == before


@pytest.mark.parametrize("prompt", [None, "", [], 5, {}])
def test_bad_prompts(prompt: Any) -> None:
    assert refused({"prompt": prompt}, COMPLETIONS).param == "prompt"


@pytest.mark.parametrize("prompt", [["hi"] * 17, [[1, 2]] * 17])
def test_each_prompt_is_a_choice_and_those_are_bounded(prompt: list[Any]) -> None:
    error = refused({"prompt": prompt}, COMPLETIONS)
    assert error.param == "prompt" and "17 choices; at most 16" in error.message
    assert prepare(COMPLETIONS, {"prompt": prompt[:16]}, TEXT)["prompt"] == prompt[:16]
    assert refused({"prompt": prompt[:9], "n": 2}, COMPLETIONS).param == "prompt"
    assert prepare(COMPLETIONS, {"prompt": list(range(500)), "n": 16}, TEXT)["n"] == 16


def test_echo_may_ask_for_no_tokens() -> None:
    assert prepare(COMPLETIONS, {"prompt": "x", "echo": True, "max_tokens": 0}, TEXT)["max_tokens"] == 0
