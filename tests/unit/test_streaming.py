"""A replica's items -> the client's stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from runtime_actor.messages import RequestAccepted
from serve_app.streaming import (
    DONE,
    EngineRefusal,
    client_events,
    complete_usage,
    error_of,
    open_response,
    openai_stream,
)

ACCEPTED = RequestAccepted("r1", 100, 64)
CHUNK = 'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
USAGE = 'data: {"choices":[],"usage":{"prompt_tokens":100}}\n\n'
ERROR = 'data: {"error":{"message":"Internal /usr/x","type":"InternalServerError","param":null,"code":500}}\n\n'


async def items(*values: Any) -> AsyncIterator[Any]:
    for value in values:
        yield value


def run(*values: Any) -> tuple[list[RequestAccepted], str]:
    async def main() -> tuple[list[RequestAccepted], str]:
        opened = await open_response(items(*values))
        seen = [opened.accepted] if opened.accepted is not None else []
        return seen, "".join([event async for event in openai_stream(client_events(opened, 100, 100))])

    return asyncio.run(main())


def test_acceptance_is_taken_off() -> None:
    seen, text = run(ACCEPTED.to_wire(), CHUNK, DONE)
    assert seen == [ACCEPTED]
    assert text == CHUNK + DONE


def test_batched_items_and_no_acceptance() -> None:
    seen, text = run([CHUNK, CHUNK], [CHUNK, DONE])
    assert seen == [] and text == CHUNK * 3 + DONE


def test_one_done_even_if_the_engine_forgets() -> None:
    assert run(ACCEPTED.to_wire(), CHUNK)[1] == CHUNK + DONE
    assert run(ACCEPTED.to_wire(), CHUNK + DONE)[1].count("[DONE]") == 1


def test_usage_is_completed_only_where_it_is() -> None:
    text = run(ACCEPTED.to_wire(), CHUNK, USAGE + DONE)[1]
    payloads = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    assert json.loads(payloads[1])["usage"]["prompt_tokens_details"] == {"cached_tokens": 64}
    assert payloads[-1] == "[DONE]" and len(payloads) == 3
    assert '"usage"' not in run(ACCEPTED.to_wire(), CHUNK, DONE)[1]


def test_usage_in_each_chunk_is_completed_in_each() -> None:
    said = json.dumps({"choices": [{"index": 0, "delta": {"content": 'a "usage":{ b'}}]}, separators=(",", ":"))
    chunks = [f'data: {said[:-1]},"usage":{{"prompt_tokens":100,"completion_tokens":{n}}}}}\n\n' for n in range(3)]
    last = USAGE.replace("100}", '100,"prompt_tokens_details":null}')
    text = run(ACCEPTED.to_wire(), *chunks, last, DONE)[1]
    found = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    assert [one["usage"]["prompt_tokens_details"] for one in found] == [{"cached_tokens": 64}] * 4
    assert [one["usage"].get("completion_tokens") for one in found] == [0, 1, 2, None]
    assert all(one["choices"][0]["delta"]["content"] == 'a "usage":{ b' for one in found[:3])


def test_an_event_of_responses_passes_as_it_is() -> None:
    """Also where a client's tool, which its answer repeats, looks like a chunk."""
    tool = {"type": "function", "name": "f", "parameters": {"default": {"choices": [], "usage": {}}}}
    content = {"type": "response.completed", "response": {"tools": [tool], "usage": {"input_tokens": 4}}}
    event = f"event: response.completed\ndata: {json.dumps(content, separators=(',', ':'))}\n\n"
    assert run(ACCEPTED.to_wire(), event)[1] == event + DONE


def test_an_error_in_mid_stream_is_in_the_clients_shape() -> None:
    text = run(ACCEPTED.to_wire(), CHUNK, ERROR, DONE)[1]
    error = json.loads(text.split("data: ")[2])["error"]
    assert set(error) == {"message", "type", "param", "code"} and "/usr" not in error["message"]
    assert text.endswith(DONE) and text.count("[DONE]") == 1


@pytest.mark.parametrize(
    "first",
    [ERROR, SimpleNamespace(error=SimpleNamespace(message="m", type="t", param=None, code=400))],
)
def test_an_error_first_is_a_refusal(first: Any) -> None:
    with pytest.raises(EngineRefusal):
        run(first)
    with pytest.raises(EngineRefusal):
        run(ACCEPTED.to_wire(), first)


ROLE = 'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'


def test_a_role_is_held_until_something_follows() -> None:
    assert run(ACCEPTED.to_wire(), ROLE, ROLE, CHUNK, DONE)[1] == ROLE + ROLE + CHUNK + DONE
    for failed in ([ROLE], [ROLE, DONE], [ROLE, ROLE, DONE], [ROLE, ERROR, DONE]):
        with pytest.raises(EngineRefusal):
            run(ACCEPTED.to_wire(), *failed)


def test_nothing_is_a_refusal() -> None:
    with pytest.raises(EngineRefusal):
        run()


def test_content_that_looks_like_an_error_is_content() -> None:
    chunk = "data: " + json.dumps({"choices": [{"delta": {"content": '{"error": {"message": "x"}}'}}]}) + "\n\n"
    assert error_of(chunk) is None


def test_complete_usage_keeps_the_engines_number() -> None:
    usage: dict[str, Any] = {"prompt_tokens_details": {"cached_tokens": 32}}
    complete_usage(usage, 64)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 32
    empty: dict[str, Any] = {"prompt_tokens_details": None}
    complete_usage(empty, 0)
    assert empty["prompt_tokens_details"] == {"cached_tokens": 0}
