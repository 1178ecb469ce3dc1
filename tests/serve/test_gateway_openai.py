"""The OpenAI surface over HTTP: fields, streams, errors, isolation of bad requests."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import httpx
import openai
import pytest

from tests.gateway_kit import (
    MODEL,
    agents,
    assert_error,
    body,
    cached,
    chat,
    ours,
    payloads,
    state,
    wait_for,
)
from tests.server_kit import KEYS, USABLE_TOKENS, Filler, Server

NULLS = dict.fromkeys(
    (
        *("stop", "max_tokens", "tools", "tool_choice", "response_format", "seed", "n", "logprobs"),
        *("stream_options", "user", "metadata", "session_id", "priority", "nvext"),
    )
)
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a":1,"b":1}'}}


# --- limits of the context ----------------------------------------------------------------------------


def test_prompt_beyond_the_cache_is_refused_and_blocks_nobody(client: httpx.Client, filler: Filler) -> None:
    before = {replica["replica"] for replica in state(client)["replicas"]}
    started_s = time.monotonic()
    error = assert_error(chat(client, filler(USABLE_TOKENS + 900), max_tokens=8), 400, "context_length_exceeded")
    assert str(USABLE_TOKENS) in error["message"]
    assert time.monotonic() - started_s < 10
    started_s = time.monotonic()
    assert chat(client, "hi").status_code == 200
    assert time.monotonic() - started_s < 5
    assert {replica["replica"] for replica in state(client)["replicas"]} == before


def test_answer_that_outgrows_the_cache_ends_with_length(client: httpx.Client, filler: Filler) -> None:
    answer = chat(client, filler(USABLE_TOKENS - 120), max_tokens=2000, ignore_eos=True)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert answer.json()["usage"]["total_tokens"] <= USABLE_TOKENS
    assert "max_tokens=clipped" in ours(answer, "hints")
    assert chat(client, "hi").status_code == 200


# --- histories ------------------------------------------------------------------------------------------


def history(system: str) -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": None, "tool_calls": [dict(CALL)]},
        {"role": "tool", "tool_call_id": "call_1", "content": "2"},
    ]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("content", ["null", "absent", "", "list", "no calls", "tool list"])
def test_history_with_tool_calls(client: httpx.Client, filler: Filler, content: str, stream: bool) -> None:
    messages = history(filler(60))
    if content == "absent":
        del messages[2]["content"]
    elif content == "":
        messages[2]["content"] = ""
    elif content == "list":
        messages[2]["content"] = []
    elif content == "no calls":
        messages[2] |= {"content": "two", "tool_calls": []}
    elif content == "tool list":
        messages[3]["content"] = [{"type": "text", "text": "2"}]
    answer = client.post(
        "/v1/chat/completions", json={"model": MODEL, "max_tokens": 4, "messages": messages, "stream": stream}
    )
    assert answer.status_code == 200, answer.text


def test_one_part_and_a_string_are_the_same_prompt(client: httpx.Client, filler: Filler) -> None:
    messages = history(filler(200))
    parts = [
        {**message, "content": [{"type": "text", "text": message["content"]}]} if message["content"] else message
        for message in messages
    ]
    first, second = (
        client.post("/v1/chat/completions", json={"model": MODEL, "max_tokens": 1, "messages": m})
        for m in (messages, parts)
    )
    assert ours(first, "agent") == ours(second, "agent")
    prompt = first.json()["usage"]["prompt_tokens"]
    assert second.json()["usage"]["prompt_tokens"] == prompt
    assert cached(second) >= prompt - 64


# --- fields ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NULLS, "all"])
def test_null_is_absent(client: httpx.Client, name: str) -> None:
    nulls = dict(NULLS) if name == "all" else {name: None}
    # One of the two limits stays: without any, a small model may go on to the end of its context.
    limit = "max_completion_tokens" if "max_tokens" in nulls else "max_tokens"
    assert chat(client, **{**nulls, limit: 2}).status_code == 200
    completion = {"model": MODEL, "prompt": "Count: 1", "max_tokens": 2, **nulls}
    assert client.post("/v1/completions", json=completion).status_code == 200


def test_token_limits(client: httpx.Client) -> None:
    for limits in ({"max_completion_tokens": 5}, {"max_completion_tokens": 5, "max_tokens": 50}):
        answer = client.post(
            "/v1/chat/completions",
            json={"model": MODEL, "messages": body()["messages"], "ignore_eos": True, **limits},
        ).json()
        assert answer["usage"]["completion_tokens"] == 5
        assert answer["choices"][0]["finish_reason"] == "length"
    for value in (0, -1):
        assert assert_error(chat(client, max_tokens=value), 400)["param"] == "max_tokens"


def test_stop_seed_logprobs(client: httpx.Client, filler: Filler) -> None:
    counted = client.post(
        "/v1/completions",
        json={"model": MODEL, "prompt": "1, 2, 3, 4, 5, 6, 7,", "max_tokens": 40, "stop": ["9"], "temperature": 0},
    ).json()["choices"][0]
    assert "9" not in counted["text"] and counted["finish_reason"] == "stop"
    texts = {
        chat(client, max_tokens=8, seed=7, temperature=1).json()["choices"][0]["message"]["content"] for _ in range(2)
    }
    assert len(texts) == 1
    # A stream of vLLM's with a tool parser leaves out the entries of tokens without text, such as the end's.
    word = filler.token_id(" the")
    fields = {"logprobs": True, "top_logprobs": 2, "max_tokens": 4, "logit_bias": {str(word): 100}}
    entries = chat(client, **fields).json()["choices"][0]["logprobs"]["content"]
    assert len(entries) == 4 and all(len(entry["top_logprobs"]) == 2 for entry in entries)
    streamed = [
        entry
        for chunk in payloads(chat(client, stream=True, **fields))
        for choice in chunk["choices"]
        for entry in (choice.get("logprobs") or {}).get("content") or []
    ]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in entries] == [" the"] * 4


def test_three_choices_are_one_request(client: httpx.Client, filler: Filler) -> None:
    system = filler(100)
    fields: dict[str, Any] = {"n": 3, "temperature": 1, "max_tokens": 16, "ignore_eos": True}
    answer = chat(client, "go", system, **fields)
    assert sorted(choice["index"] for choice in answer.json()["choices"]) == [0, 1, 2]
    usage = answer.json()["usage"]
    assert usage["completion_tokens"] == 48 and usage["prompt_tokens"] < 200
    agent = ours(answer, "agent")
    chunks = payloads(chat(client, "go", system, stream=True, **fields))
    assert {choice["index"] for chunk in chunks for choice in chunk["choices"]} == {0, 1, 2}
    wait_for(lambda: agents(client)[agent]["requests"] == 2, 5, "two requests")
    assert not [t for t in state(client)["transitions"] if t["from"] == t["to"] == agent]
    for n in (0, 1000):
        assert assert_error(chat(client, n=n), 400)["param"] == "n"


@pytest.mark.parametrize("options", ["absent", None, {}, {"include_usage": False}, {"include_usage": True}])
def test_usage_in_streams_only_where_asked(client: httpx.Client, options: Any) -> None:
    fields = {} if options == "absent" else {"stream_options": options}
    chunks = payloads(chat(client, "the same prompt each time", stream=True, max_tokens=3, **fields))
    with_usage = [chunk for chunk in chunks if chunk.get("usage")]
    if options == {"include_usage": True}:
        assert with_usage == [chunks[-1]] and chunks[-1]["choices"] == []
        assert isinstance(chunks[-1]["usage"]["prompt_tokens_details"]["cached_tokens"], int)
    else:
        assert not with_usage and all(chunk["choices"] for chunk in chunks)


def test_openai_client(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEYS["one"], max_retries=0)
    assert client.models.list().data[0].id == MODEL
    assert client.models.retrieve(MODEL).id == MODEL
    messages: Any = [{"role": "user", "content": "hi"}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=3)
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    chunks = list(client.chat.completions.create(model=MODEL, messages=messages, max_tokens=3, stream=True))
    assert chunks[-1].choices[0].finish_reason
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nope", messages=messages)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=[])


# --- errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_one_shape_and_leave_nothing(client: httpx.Client, filler: Filler, stream: bool) -> None:
    before = state(client)
    secret = "SECRET-CONTENT"
    chat_path = "/v1/chat/completions"
    assert_error(chat(client, model="nope", stream=stream), 404, "model_not_found")
    errors = [
        assert_error(chat(client, stream=stream, messages={"a": secret}), 400),
        assert_error(chat(client, stream=stream, messages=[]), 400),
        assert_error(chat(client, stream=stream, temperature=secret), 400),
        assert_error(client.post(chat_path, content=b'{"model":'), 400, "invalid_json"),
        assert_error(client.post(chat_path, content=b""), 400, "invalid_json"),
        assert_error(client.post(chat_path, content=b"[]"), 400, "invalid_json"),
        assert_error(client.get(chat_path), 405),
        assert_error(client.get("/v1/nothing"), 404),
        assert_error(chat(client, filler(9000), stream=stream), 400, "context_length_exceeded"),
    ]
    assert not any(secret in str(error["param"]) for error in errors)
    plain = client.post(chat_path, content=json.dumps(body()), headers={"content-type": "text/plain"})
    assert plain.status_code in (200, 415)
    after = state(client)
    allowed = 1 if plain.status_code == 200 else 0
    assert len(after["agents"]) - len(before["agents"]) <= allowed


def test_keys(server: Server) -> None:
    with server.client(None) as nobody:
        for path in ("/v1/models", "/runtime/state", "/runtime/predict?session_id=x&horizon=1"):
            assert_error(nobody.get(path), 401)
        assert_error(chat(nobody, headers={"authorization": "Bearer wrong"}), 401)
        assert nobody.get("/healthz").status_code == 200
        assert nobody.get("/runtime/").headers["content-type"].startswith("text/html")


def test_size_limits(client: httpx.Client) -> None:
    assert_error(client.post("/v1/chat/completions", content=b"x" * (9 << 20)), 413)
    assert_error(chat(client, headers={"x-session-id": "a" * 40_000}), 431)
    assert_error(client.post("/v1/chat/completions", content=b"x", headers={"content-encoding": "gzip"}), 415)


# --- one bad request harms nobody --------------------------------------------------------------------------

BAD: list[dict[str, Any]] = [
    {"structured_outputs": {"json": ""}},
    {"structured_outputs": {"json_object": False}},
    {"structured_outputs": {"regex": "("}},
    {"structured_outputs": {"grammar": 'root ::= "a"\nroot ::= "b"'}},
    {"structured_outputs": {"structural_tag": "{}"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 12}}}},
    {"logit_bias": {"999999": 5}},
    {"stop_token_ids": [-1]},
    {"logprob_token_ids": [-5]},
    {"thinking_token_budget": -5},
    {"priority": "high"},
    {"vllm_xargs": {"x": {"y": [1]}}},
    {"allowed_token_ids": [99_999_999]},
]


@pytest.mark.parametrize("fields", BAD, ids=lambda fields: json.dumps(fields)[:40])
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests_are_400_and_the_engine_lives(
    client: httpx.Client, filler: Filler, fields: dict[str, Any], stream: bool
) -> None:
    replicas = {replica["replica"] for replica in state(client)["replicas"]}
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    assert chat(client, response_format=schema, max_tokens=2).status_code == 200
    assert_error(chat(client, max_tokens=4, stream=stream, **fields), 400)
    after = chat(client, "hi", f"A new agent: {filler(5)}")
    assert after.status_code == 200 and ours(after, "replica") in replicas
    assert ours(after, "agent") in agents(client)


def test_owner_tag_of_a_client_is_replaced(client: httpx.Client) -> None:
    answer = chat(client, vllm_xargs={"agent_runtime_owner": 5})
    assert answer.status_code == 200
    assert "vllm_xargs=rejected" in ours(answer, "hints")


def test_deep_json(client: httpx.Client) -> None:
    deep = b'{"messages":' + b"[" * 2000 + b"]" * 2000 + b"}"
    assert_error(client.post("/v1/chat/completions", content=deep), 400)


def test_images_make_no_connection(client: httpx.Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.5)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x.png"
        for target in (url, "data:image/png;base64,AAAA"):
            content = [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": target}}]
            user = {"role": "user", "content": content}
            tool = {"role": "tool", "tool_call_id": "call_1", "content": content}
            assert_error(chat(client, messages=[user]), 400)
            assert_error(chat(client, messages=[*history("s")[:3], tool]), 400)
        with pytest.raises(TimeoutError):
            listener.accept()


def test_two_streams_with_one_request_id(client: httpx.Client, filler: Filler) -> None:
    system = filler(30)
    texts: dict[str, list[Any]] = {}
    seen_agents: set[str] = set()

    def run(prompt: str) -> None:
        answer = chat(
            client,
            prompt,
            system,
            headers={"x-request-id": "dup"},
            request_id="dup",
            stream=True,
            max_tokens=32,
            temperature=0,
        )
        texts[prompt] = payloads(answer)
        seen_agents.add(ours(answer, "agent"))

    threads = [threading.Thread(target=run, args=(prompt,)) for prompt in ("Count: 1 2 3", "Letters: a b c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run("Count: 1 2 3")
    assert len(texts) == 2
    for chunks in texts.values():
        assert len({chunk["id"] for chunk in chunks}) == 1 and "dup" not in chunks[0]["id"]
        assert chunks[-1]["choices"][0]["finish_reason"]
    ids = {chunks[0]["id"] for chunks in texts.values()}
    assert len(ids) == 2
    (agent,) = seen_agents
    assert agents(client)[agent]["requests"] == 3
    long_id = chat(client, request_id="x" * 100_000)
    assert long_id.status_code in (200, 400) and len(long_id.content) < 10_000


def test_a_client_that_leaves_frees_the_engine(server: Server) -> None:
    with server.client("ops") as operator, server.client() as client:
        fields = {"max_tokens": 2000, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/chat/completions", json=body("go on", **fields)) as answer:
            lines = answer.iter_lines()
            for _ in range(3):
                next(lines)

        def is_idle() -> bool:
            found = state(operator)
            busy = sum(replica["running"] + replica["waiting"] for replica in found["replicas"])
            return busy == 0 and found["gateway"]["in_flight"] == 0

        wait_for(is_idle, 6, "nothing in flight after the client left")
