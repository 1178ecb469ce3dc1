"""Responses and Messages beside chat completions: one agent, one session, the same limits, each its own form."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from ray.exceptions import ActorDiedError

from replicas.responses_call import ResponsesCall
from runtime_actor.messages import OWNER_XARG, OwnerTag, RequestAccepted
from serve_app.routes.responses import STORED
from tests.unit.gateway_bench import DONE, Bench, chat_answer

ACCEPTED = RequestAccepted("r1", 40, 32).to_wire()
SYSTEM = "You are the planner of a small team."
HISTORY = ("Plan a trip to the sea.", "Go by train.", "And back again?")
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
CREATED = 'event: response.created\ndata: {"type":"response.created","response":{}}\n\n'
IN_PROGRESS = 'event: response.in_progress\ndata: {"type":"response.in_progress","response":{}}\n\n'
DELTA = 'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"by train"}\n\n'
COMPLETED = 'event: response.completed\ndata: {"type":"response.completed","response":{}}\n\n'


def call(arguments: str = '{"a":1}') -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": arguments}}


def chunk(delta: dict[str, Any], reason: str | None = None) -> str:
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return f"data: {json.dumps({**head, 'choices': [choice]})}\n\n"


ROLE = chunk({"role": "assistant", "content": ""}).replace(": ", ":").replace(", ", ",").replace("data:", "data: ")
USAGE = 'data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],' + (
    '"usage":{"prompt_tokens":40,"completion_tokens":2,"total_tokens":42}}\n\n'
)
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "output": [{"type": "message", "content": [{"type": "output_text", "text": "by train"}]}],
    "usage": {"input_tokens": 40, "input_tokens_details": {"cached_tokens": 32}},
}


def anthropic(system: Any = SYSTEM, **fields: Any) -> dict[str, Any]:
    roles = ("user", "assistant", "user")
    turns = [{"role": role, "content": text} for role, text in zip(roles, HISTORY, strict=True)]
    return {"model": "m", "max_tokens": 8, "system": system, "messages": turns, **fields}


def responses(**fields: Any) -> dict[str, Any]:
    roles = ("user", "assistant", "user")
    turns = [{"role": role, "content": text} for role, text in zip(roles, HISTORY, strict=True)]
    return {"model": "m", "instructions": SYSTEM, "input": turns, **fields}


def chat(**fields: Any) -> dict[str, Any]:
    body = responses(**fields)
    return {"model": "m", "messages": [{"role": "system", "content": SYSTEM}, *body.pop("input")], **fields}


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.handle.items = [ACCEPTED, chat_answer()]
    yield made
    assert made.gateway._admission.in_flight == 0


def ask(bench: Bench, path: str, body: dict[str, Any], **options: Any) -> httpx.Response:
    whole = RESPONSE if path == "/v1/responses" else chat_answer()
    if not bench.handle.scripts and not body.get("stream"):
        bench.handle.items = [ACCEPTED, whole]
    return bench.ask("POST", path, json=body, **options)


def sent(bench: Bench) -> Any:
    return bench.handle.requests[-1][0]


def header(answer: httpx.Response, name: str) -> str:
    assert answer.status_code == 200, answer.text
    return answer.headers[f"x-agent-runtime-{name}"]


# --- who is asking --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_tools", [False, True])
def test_one_agent_on_all_routes(bench: Bench, with_tools: bool) -> None:
    function = {"name": "add", "description": "Adds.", "parameters": PARAMETERS}
    tool = {"name": "add", "description": "Adds.", "input_schema": PARAMETERS}
    bodies = {
        "/v1/chat/completions": chat(**({"tools": [{"type": "function", "function": function}]} if with_tools else {})),
        "/v1/responses": responses(**({"tools": [{"type": "function", **function}]} if with_tools else {})),
        "/v1/messages": anthropic(**({"tools": [tool]} if with_tools else {})),
    }
    answers = [ask(bench, path, body) for path, body in bodies.items()]
    assert len({header(answer, "agent") for answer in answers}) == 1


def test_a_conversation_goes_on_over_another_route(bench: Bench) -> None:
    first = ask(bench, "/v1/responses", {"model": "m", "instructions": SYSTEM, "input": HISTORY[0]})
    second = ask(bench, "/v1/messages", anthropic())
    third = ask(bench, "/v1/chat/completions", chat())
    assert header(first, "session") == header(second, "session") == header(third, "session")


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_what_only_the_gateway_sets(bench: Bench, path: str) -> None:
    body = responses() if path == "/v1/responses" else anthropic()
    hints = {"priority": -5, "cache_salt": "mine", "request_id": "mine", "vllm_xargs": {"x": 1}, "session_id": "s1"}
    answer = ask(bench, path, {**body, **hints, "kv_transfer_params": {"a": 1}})
    said = dict(pair.split("=") for pair in header(answer, "hints").split(", "))
    assert said == {
        "session_id": "accepted",
        "priority": "clipped",
        **dict.fromkeys(("cache_salt", "request_id", "kv_transfer_params", "vllm_xargs"), "rejected"),
    }
    request = sent(bench)
    fields = request.fields if isinstance(request, ResponsesCall) else request.model_dump()
    tag = OwnerTag.decode(fields["vllm_xargs"][OWNER_XARG])
    assert tag.agent == header(answer, "agent") and tag.session == fields["session_id"]
    assert fields["priority"] == 0 and "mine" not in (fields["cache_salt"], fields["request_id"])
    assert not fields.get("kv_transfer_params")
    other = bench.ask("POST", path, "ops", json=body)
    assert header(other, "agent") != header(answer, "agent")


def test_a_key_as_anthropics_clients_send_it(bench: Bench) -> None:
    answer = bench.ask("POST", "/v1/messages", None, json=anthropic(), headers={"x-api-key": "k1"})
    assert answer.status_code == 200


@pytest.mark.parametrize("as_block", [False, True])
@pytest.mark.parametrize("route", ["/v1/responses", "/v1/messages", "/v1/chat/completions"])
def test_billing_lines_go_and_nothing_else(bench: Bench, route: str, as_block: bool) -> None:
    billing = "x-anthropic-billing-header: cch={0};\n"
    agents = set()
    for value in ("aaa", "bbb"):
        text = billing.format(value) + SYSTEM
        if route == "/v1/messages":
            body = anthropic([{"type": "text", "text": text}] if as_block else text)
        elif route == "/v1/responses":
            turns = [{"role": "system", "content": text}, {"role": "user", "content": "hi"}]
            body = {"model": "m", "input": turns} if as_block else {**responses(), "instructions": text}
        else:
            body = chat()
            body["messages"][0]["content"] = [{"type": "text", "text": text}] if as_block else text
        agents.add(header(ask(bench, route, body), "agent"))
        request = sent(bench)
        if isinstance(request, ResponsesCall):
            system = request.fields["input"][0]["content"] if as_block else request.fields["instructions"]
        else:
            system = request.messages[0]["content"]
        assert system == SYSTEM
    assert len(agents) == 1


def test_a_billing_line_in_one_of_several_parts_goes(bench: Bench) -> None:
    parts = [{"type": "input_text", "text": "x-anthropic-billing-header: cch=1;\nBe kind."}]
    turns = [
        {"role": "system", "content": [*parts, {"type": "input_text", "text": "Be brief."}]},
        {"role": "developer", "content": parts},
        {"role": "user", "content": parts},
    ]
    header(ask(bench, "/v1/responses", {"model": "m", "input": turns}), "agent")
    system, developer, user = (turn["content"] for turn in sent(bench).fields["input"])
    assert [part["text"] for part in system] == ["Be kind.", "Be brief."] and developer == "Be kind."
    assert user == parts


def test_an_assistants_turn_in_parts_is_read_whole(bench: Bench) -> None:
    """vLLM takes the first part alone."""
    parts = [{"type": "output_text", "text": text, "annotations": []} for text in ("Go by ", "train.")]
    turns = [
        {"role": "user", "content": HISTORY[0]},
        {"type": "message", "role": "assistant", "content": parts},
        {"role": "user", "content": HISTORY[2]},
    ]
    first = ask(bench, "/v1/responses", {"model": "m", "instructions": SYSTEM, "input": HISTORY[0]})
    second = ask(bench, "/v1/responses", {"model": "m", "instructions": SYSTEM, "input": turns})
    assert sent(bench).fields["input"][1]["content"] == "Go by train."
    third = ask(bench, "/v1/chat/completions", chat())
    assert header(first, "session") == header(second, "session") and header(third, "agent") == header(second, "agent")
    mixed = [*turns[:1], {"role": "assistant", "content": [parts[0], {"type": "input_text"}]}, turns[2]]
    refused = bench.ask("POST", "/v1/responses", json={"model": "m", "input": mixed})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "input[1].content[1].text"


def test_inner_system_messages_stay_where_they_are(bench: Bench) -> None:
    body = anthropic()
    body["messages"].insert(1, {"role": "system", "content": "<total_tokens>4999 tokens left</total_tokens>"})
    header(ask(bench, "/v1/messages", body), "agent")
    assert [message["role"] for message in sent(bench).messages] == ["system", "user", "system", "assistant", "user"]


# --- what is sent and what comes back -----------------------------------------------------------------------------


def test_tools_and_their_results_over_messages(bench: Bench) -> None:
    tool = {"name": "add", "input_schema": PARAMETERS}
    turns = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "2"}]},
    ]
    bench.handle.scripts = [[ACCEPTED, chat_answer(None, tool_calls=[call()])]]
    answer = ask(bench, "/v1/messages", anthropic(messages=turns, tools=[tool], tool_choice={"type": "any"})).json()
    request = sent(bench)
    assert request.tool_choice == "required" and request.messages[-1]["role"] == "tool"
    assert json.loads(request.messages[-2]["tool_calls"][0]["function"]["arguments"]) == {"a": 1}
    assert answer["stop_reason"] == "tool_use"
    assert answer["content"] == [{"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 1}}]
    assert answer["usage"] == {"input_tokens": 8, "cache_read_input_tokens": 32, "output_tokens": 3}


def test_a_stream_of_messages(bench: Bench) -> None:
    bench.handle.items = [ACCEPTED, ROLE, chunk({"content": "by train"}), chunk({}, "length"), USAGE, DONE]
    answer = ask(bench, "/v1/messages", anthropic(stream=True))
    assert sent(bench).stream_options.include_usage
    events = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: ")]
    assert [event["type"] for event in events] == [
        *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    ]
    usage = events[0]["message"]["usage"]
    assert usage == {"input_tokens": 8, "cache_read_input_tokens": 32, "output_tokens": 0}
    assert events[2]["delta"]["text"] == "by train" and events[4]["delta"]["stop_reason"] == "max_tokens"


def test_a_response_is_the_engines_own(bench: Bench) -> None:
    answer = ask(bench, "/v1/responses", responses(store=True, max_output_tokens=5))
    assert answer.json() == RESPONSE
    fields = pickle.loads(pickle.dumps(sent(bench))).fields
    assert fields["store"] is False and fields["max_output_tokens"] == 5
    assert fields["request_id"].startswith("resp_") and fields["model"] == "m"


def test_a_stream_of_responses(bench: Bench) -> None:
    bench.handle.items = [CREATED, IN_PROGRESS, ACCEPTED, DELTA, COMPLETED]
    answer = ask(bench, "/v1/responses", responses(stream=True))
    assert answer.text == CREATED + IN_PROGRESS + DELTA + COMPLETED
    assert header(answer, "cached-tokens") == "32" and header(answer, "replica") == "r1"


def test_other_agents_may_quote_an_answer_of_any_route(bench: Bench) -> None:
    said = "Take the night train from the old harbour at half past nine."
    response = {**RESPONSE, "output": [{"type": "message", "content": [{"type": "output_text", "text": said}]}]}
    streamed = DELTA.replace("by train", said)
    for number, (path, body, items) in enumerate(
        [
            ("/v1/responses", responses(), [ACCEPTED, response]),
            ("/v1/responses", responses(stream=True), [CREATED, ACCEPTED, streamed, COMPLETED]),
            ("/v1/messages", anthropic(), [ACCEPTED, chat_answer(said)]),
            ("/v1/messages", anthropic(stream=True), [ACCEPTED, ROLE, chunk({"content": said}), DONE]),
        ]
    ):
        made = Bench()
        made.handle.items = items
        first = made.ask("POST", path, json=body)
        made.handle.items = [ACCEPTED, chat_answer()]
        quoting = [{"role": "system", "content": f"You check plans, number {number}."}]
        quoting.append({"role": "user", "content": f"Check this plan:\n{said}"})
        second = made.ask("POST", "/v1/chat/completions", json={"model": "m", "messages": quoting})
        assert header(second, "session") == header(first, "session"), (path, number)


# --- errors ---------------------------------------------------------------------------------------------------------


def test_errors_before_and_inside_a_stream_of_messages(bench: Bench) -> None:
    error = SimpleNamespace(message="bad", type="BadRequestError", param="top_p", code=400)
    bench.handle.items = [SimpleNamespace(error=error)]
    refused = bench.ask("POST", "/v1/messages", json=anthropic())
    assert refused.status_code == 400 and refused.json()["type"] == "error"
    assert refused.json()["error"]["type"] == "invalid_request_error"
    bench.handle.items = [ACCEPTED, ROLE, chunk({"content": "by"}), ActorDiedError()]
    answer = ask(bench, "/v1/messages", anthropic(stream=True))
    assert answer.text.count("event: error\n") == 1 and "message_stop" not in answer.text
    assert json.loads(answer.text.rsplit("data: ", 1)[1])["error"]["code"] == "unavailable"


def test_errors_before_and_inside_a_stream_of_responses(bench: Bench) -> None:
    bench.handle.items = [CREATED, IN_PROGRESS]
    failed = bench.ask("POST", "/v1/responses", json=responses(stream=True))
    assert failed.status_code == 500 and set(failed.json()) == {"error"}
    bench.handle.items = [CREATED, ACCEPTED, DELTA, ActorDiedError()]
    text = ask(bench, "/v1/responses", responses(stream=True)).text
    last = json.loads(text.rsplit("data: ", 1)[1])
    assert last["type"] == "error" and last["code"] == last["error"]["code"] == "unavailable"
    assert last["sequence_number"] == 2 and "[DONE]" not in text


BAD: list[tuple[str, dict[str, Any], str | None]] = [
    *(("/v1/responses", responses(**{name: "x" if name != "background" else True}), name) for name in STORED),
    ("/v1/responses", {"model": "m"}, "input"),
    ("/v1/responses", responses(input=[]), "input"),
    ("/v1/responses", responses(input=5), "input"),
    ("/v1/responses", responses(input={}), "input"),
    ("/v1/responses", responses(input=[{"type": "item_reference", "id": "x"}]), "input[0].type"),
    ("/v1/responses", responses(input=[{"role": "king", "content": "hi"}]), "input[0].role"),
    ("/v1/responses", responses(input=[{"role": ["system"], "content": "hi"}]), None),
    (
        "/v1/responses",
        responses(input=[{"role": "user", "content": [{"type": "input_image", "image_url": "http://x/y.png"}]}]),
        "input[0].content[0].type",
    ),
    ("/v1/responses", responses(tools=[{"type": "web_search_preview"}]), "tools[0].type"),
    ("/v1/responses", responses(tools={}), "tools"),
    ("/v1/responses", responses(tool_choice="any"), "tool_choice"),
    ("/v1/responses", responses(tool_choice=[]), "tool_choice"),
    ("/v1/responses", responses(tool_choice={"type": "web_search_preview"}), "tool_choice"),
    ("/v1/responses", responses(tool_choice={"type": "allowed_tools", "mode": "auto", "tools": []}), "tool_choice"),
    ("/v1/responses", responses(tool_choice={"type": "function", "name": "none of them"}), "tool_choice"),
    ("/v1/responses", responses(max_output_tokens=0), "max_output_tokens"),
    ("/v1/responses", responses(max_output_tokens="5"), "max_output_tokens"),
    ("/v1/responses", responses(stream="yes"), "stream"),
    ("/v1/responses", responses(structured_outputs={"json": ""}), "structured_outputs.json"),
    ("/v1/responses", responses(model="other"), "model"),
    ("/v1/messages", anthropic(max_tokens=0), "max_tokens"),
    ("/v1/messages", {"model": "m", "max_tokens": 4}, "messages"),
    ("/v1/messages", anthropic(messages=[]), "messages"),
    ("/v1/messages", anthropic(messages=[{"role": "king", "content": "hi"}]), None),
    ("/v1/messages", anthropic(model="other"), "model"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_requests_reach_no_engine(bench: Bench, number: int, stream: bool) -> None:
    path, body, param = BAD[number]
    answer = bench.ask("POST", path, json={"stream": stream, **body})
    assert answer.status_code in (400, 404), answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and "http://x" not in answer.text
    if param is not None:
        assert error["param"] == param, error
    assert bench.handle.requests == [] and bench.buffered == 0


def test_nulls_are_absent(bench: Bench) -> None:
    names = ("tools", "tool_choice", "temperature", "top_p", "stream", "metadata", "session_id", "priority", "nvext")
    more = ("max_output_tokens", "text", "reasoning", "include", "user", "store", "previous_response_id", "truncation")
    assert ask(bench, "/v1/responses", responses(**dict.fromkeys((*names, *more)))).status_code == 200
    nulls = dict.fromkeys((*names, "stop_sequences", "top_k", "output_config"))
    assert ask(bench, "/v1/messages", anthropic(**nulls)).status_code == 200


def test_a_response_too_long_names_its_field(bench: Bench) -> None:
    message = "The engine prompt length 300 exceeds the max_model_len 200."
    bench.handle.items = [SimpleNamespace(error=SimpleNamespace(message=message, type="t", param="input", code=400))]
    error = bench.ask("POST", "/v1/responses", json=responses()).json()["error"]
    assert error["code"] == "context_length_exceeded" and error["param"] == "input"


def test_too_long_an_answer_of_messages_names_its_field(bench: Bench) -> None:
    message = "This model's maximum context length is 200 tokens. However, you requested 500 output tokens"
    bench.handle.items = [SimpleNamespace(error=SimpleNamespace(message=message, type="t", param=None, code=400))]
    error = bench.ask("POST", "/v1/messages", json=anthropic(max_tokens=500)).json()["error"]
    assert error["param"] == "max_tokens" and error["message"].count("asks for 500") == 1


def test_counting_tokens(bench: Bench) -> None:
    bench.handle.items = [SimpleNamespace(model_dump=lambda: {"count": 17, "max_model_len": 100, "tokens": []})]
    body = anthropic()
    del body["max_tokens"]
    answer = bench.ask("POST", "/v1/messages/count_tokens", json=body)
    assert answer.json() == {"input_tokens": 17}
    assert [message["role"] for message in sent(bench).messages] == ["system", "user", "assistant", "user"]
