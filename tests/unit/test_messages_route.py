"""Anthropic's Messages: what vLLM's converter would drop or misread is refused, kept or put right."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime_actor.messages import RequestAccepted
from tests.unit.gateway_bench import DONE, Bench, chat_answer

ACCEPTED = RequestAccepted("r1", 40, 32).to_wire()
PATH = "/v1/messages"
HI = [{"role": "user", "content": "hi"}]
BILLING = "x-anthropic-billing-header: cch=1;\n"
TOOL = {"name": "add", "input_schema": {"type": "object"}}
NAMED = {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "add"}}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 8, "messages": HI, **fields}


def call(arguments: str, number: int = 1) -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": "add", "arguments": arguments}}


def answered(answer: Any, **fields: Any) -> dict[str, Any]:
    bench = Bench()
    bench.handle.items = [ACCEPTED, answer]
    got = bench.ask("POST", PATH, json=body(**fields))
    assert got.status_code == 200, got.text
    return dict(got.json())


def sent(**fields: Any) -> Any:
    bench = Bench()
    bench.handle.items = [ACCEPTED, chat_answer()]
    got = bench.ask("POST", PATH, json=body(**fields))
    assert got.status_code == 200, got.text
    return bench.handle.requests[-1][0]


def ended(answer: Any, reason: str) -> Any:
    answer.choices[0].finish_reason = reason
    return answer


def test_a_tool_that_was_named_ends_as_any_call() -> None:
    """OpenAI's reason for it is `stop`; Anthropic's clients run a tool only if they are told `tool_use`."""
    got = answered(ended(chat_answer("", tool_calls=[call('{"a":1}')]), "stop"), **NAMED)
    assert got["stop_reason"] == "tool_use" and [block["type"] for block in got["content"]] == ["tool_use"]


@pytest.mark.parametrize(
    ("reason", "told"), [("stop", "tool_use"), ("tool_calls", "tool_use"), ("length", "max_tokens")]
)
def test_a_stream_tells_of_a_call_too(reason: str, told: str) -> None:
    def chunk(delta: dict[str, Any], reason: str | None = None) -> str:
        head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        return f"data: {json.dumps({**head, 'choices': [{'index': 0, 'delta': delta, 'finish_reason': reason}]})}\n\n"

    usage = 'data: {"id":"c1","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":40,"total_tokens":42}}\n\n'
    calling = {"tool_calls": [{"index": 0, **call('{"a":1}')}]}
    for delta, expected in ((calling, told), ({"content": "text"}, {"length": "max_tokens"}.get(reason, "end_turn"))):
        if delta is not calling and reason == "tool_calls":
            continue
        bench = Bench()
        bench.handle.items = [ACCEPTED, chunk({"role": "assistant", "content": ""}), chunk(delta)]
        bench.handle.items += [chunk({}, reason), usage, DONE]
        text = bench.ask("POST", PATH, json=body(stream=True, **NAMED)).text
        events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ")]
        assert [event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta"] == [expected]


@pytest.mark.parametrize("cut", ['{"a":', "[1]", "null", "{'a': 1}"])
def test_a_call_that_was_cut_is_text_and_no_call(cut: str) -> None:
    got = answered(ended(chat_answer("", tool_calls=[call(cut)]), "length"), **NAMED)
    assert got["content"] == [{"type": "text", "text": cut}] and got["stop_reason"] == "max_tokens"
    both = chat_answer("so", tool_calls=[call('{"a":1}'), call(cut, 2)])
    got = answered(both, **NAMED)
    assert [block["type"] for block in got["content"]] == ["text", "tool_use"] and got["stop_reason"] == "tool_use"
    assert got["content"][0]["text"] == f"so\n{cut}"
    alone = answered(chat_answer("", tool_calls=[call(cut)]), **NAMED)
    assert alone["stop_reason"] == "end_turn"


def test_a_call_without_arguments_is_an_empty_object() -> None:
    got = answered(chat_answer("", tool_calls=[call("")]), **NAMED)
    assert got["content"] == [{"type": "tool_use", "id": "call_1", "name": "add", "input": {}}]


@pytest.mark.parametrize("as_blocks", [False, True])
@pytest.mark.parametrize("at", [0, 1])
def test_a_system_message_keeps_what_stands_behind_a_billing_line(at: int, as_blocks: bool) -> None:
    text = BILLING + "Be brief."
    content: Any = [{"type": "text", "text": text}] if as_blocks else text
    messages = [*HI]
    messages.insert(at, {"role": "system", "content": content})
    assert [(m["role"], m["content"]) for m in sent(messages=messages).messages][at] == ("system", "Be brief.")


def test_the_engines_own_sampling_fields_reach_it() -> None:
    own = {"seed": 7, "logit_bias": {"5": 1.0}, "min_p": 0.1, "ignore_eos": True, "min_tokens": 2}
    request = sent(**own, presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=1.5, stop_token_ids=[3])
    assert {name: getattr(request, name) for name in own} == own
    assert (request.presence_penalty, request.frequency_penalty, request.repetition_penalty) == (0.5, 0.25, 1.5)
    assert request.stop_token_ids == [3] and request.model_dump()["max_tokens"] == 8
    assert sent(structured_outputs={"regex": "a+"}).structured_outputs.regex == "a+"


@pytest.mark.parametrize(
    "fields", [{"session_id": 5}, {"priority": "high"}, {"request_id": []}, {"cache_salt": ""}, {"seed": "one"}]
)
def test_a_field_of_the_engine_of_a_wrong_type_is_named(fields: dict[str, Any]) -> None:
    got = Bench().ask("POST", PATH, json=body(**fields))
    assert got.status_code == 400 and got.json()["error"]["param"] == next(iter(fields)), got.text


def test_an_empty_list_of_tools_and_no_model() -> None:
    """As Claude Code asks for a title."""
    request = sent(tools=[])
    assert not request.tools and request.tool_choice in (None, "none")
    bench = Bench()
    bench.handle.items = [ACCEPTED, chat_answer()]
    got = bench.ask("POST", PATH, json={"max_tokens": 8, "messages": HI})
    assert got.status_code == 200 and bench.handle.requests[-1][0].model == "m"


def result(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "add", "input": {}}]}
    return [
        *HI,
        use,
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": list(parts)}]},
    ]


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:9999/x.png"}}
SILENT: list[tuple[dict[str, Any], str]] = [
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"text": "hi"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
    ({"messages": result({"type": "document", "source": {}})}, "messages[2].content[0].content[0].type"),
    ({"messages": result({"type": "text", "text": "a"}, IMAGE)}, "messages[2].content[0].content[1].type"),
    ({"messages": result({"type": "text", "text": None})}, "messages[2].content[0].content[0].text"),
    ({"system": [{"type": "text", "text": "a"}, {"type": "image"}]}, "system[1].type"),
    ({"system": [{"type": "text", "text": 5}]}, "system[0].text"),
]


@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
@pytest.mark.parametrize("number", range(len(SILENT)))
def test_no_block_is_dropped_in_silence(path: str, number: int) -> None:
    fields, param = SILENT[number]
    bench = Bench()
    whole = body(**fields)
    if path != PATH:
        del whole["max_tokens"]
    got = bench.ask("POST", path, json=whole)
    assert got.status_code == 400 and got.json()["error"]["param"] == param, got.text
    assert bench.handle.requests == [] and "9999" not in got.text


def test_blocks_that_are_taken() -> None:
    thinking = {"type": "thinking", "thinking": "so", "signature": "s"}
    turns = [*result({"type": "text", "text": "2"}), {"role": "assistant", "content": [thinking]}, *HI]
    request = sent(messages=turns, system=[{"type": "text", "text": "Add.", "cache_control": {"type": "ephemeral"}}])
    assert [message["role"] for message in request.messages][:4] == ["system", "user", "assistant", "tool"]
    assert request.messages[3]["content"] == "2"


@pytest.mark.parametrize("within", [False, True])
def test_a_reference_to_a_tool_is_refused_where_it_stands(within: bool) -> None:
    reference = {"type": "tool_reference", "tool_name": "add"}
    turns = (
        result({"type": "text", "text": "2"}, reference) if within else [*HI, {"role": "user", "content": [reference]}]
    )
    got = Bench().ask("POST", PATH, json=body(messages=turns))
    param = "messages[2].content[0].content[1].type" if within else "messages[1].content[0].type"
    assert got.status_code == 400 and got.json()["error"]["param"] == param, got.text


@pytest.mark.parametrize("count", [1, 4, 5, 16])
def test_more_stop_sequences_than_openai_allows(count: int) -> None:
    texts = [f"<{number}>" for number in range(count)]
    assert sent(stop_sequences=texts).stop == texts


def test_stop_sequences_have_a_bound() -> None:
    got = Bench().ask("POST", PATH, json=body(stop_sequences=["a"] * 17))
    assert got.status_code == 400 and got.json()["error"]["param"] == "stop_sequences" and "at most 16" in got.text
