"""The openai package against the running server: its own exceptions, and engines that stop when it leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.gateway_kit import MODEL, state, wait_for
from tests.server_kit import KEYS, Filler, Server

MESSAGES: Any = [{"role": "user", "content": "go on"}]
LONG: dict[str, Any] = {"max_tokens": 2000, "extra_body": {"ignore_eos": True}}
"""About a minute of decoding: what ends within seconds was stopped."""


@pytest.fixture
def sdk(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEYS["one"], max_retries=0) as made:
        yield made


@pytest.fixture
def idle(server: Server) -> Iterator[None]:
    """Nothing runs before the test; within seconds of its end nothing runs any more, and no token is made."""
    with server.client("ops") as operator:
        wait_for(lambda: not busy(operator), 60, "idle engines before the test")
        yield
        began_s = time.monotonic()
        wait_for(lambda: not busy(operator), 6, "idle engines after the client left")
        assert time.monotonic() - began_s < 6


def busy(operator: httpx.Client) -> int:
    found = state(operator)
    return int(found["gateway"]["in_flight"]) + sum(r["running"] + r["waiting"] for r in found["replicas"])


def until_running(server: Server) -> None:
    with server.client("ops") as operator:
        wait_for(lambda: any(r["running"] for r in state(operator)["replicas"]), 30, "the request runs")


def test_exceptions(sdk: openai.OpenAI, server: Server, filler: Filler) -> None:
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    for stream in (False, True):
        create = sdk.chat.completions.create
        with pytest.raises(openai.NotFoundError) as missing:
            create(model="nope", messages=MESSAGES, stream=stream)
        assert missing.value.code == "model_not_found" and missing.value.param == "model"
        with pytest.raises(openai.BadRequestError) as wrong:
            create(model=MODEL, messages=MESSAGES, stream=stream, temperature=-1)
        assert wrong.value.param == "temperature"
        with pytest.raises(openai.BadRequestError) as long:
            create(model=MODEL, messages=[{"role": "user", "content": filler(9000)}], stream=stream)
        assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.PermissionDeniedError):
        sdk.post(f"{server.url}/runtime/policy", cast_to=object, body={"mode": "lru"})
    with pytest.raises(openai.NotFoundError):
        sdk.embeddings.create(model=MODEL, input="no such route here")


@pytest.mark.usefixtures("idle")
def test_a_timeout_while_waiting_stops_the_engine(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.APITimeoutError):
        sdk.chat.completions.create(model=MODEL, messages=MESSAGES, timeout=2, **LONG)


@pytest.mark.usefixtures("idle")
def test_a_closed_stream_stops_the_engine(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, **LONG) as stream:
        for _ in range(3):
            next(stream)


@pytest.mark.usefixtures("idle")
def test_a_closed_completion_of_several_choices_stops_the_engine(sdk: openai.OpenAI) -> None:
    with sdk.completions.create(model=MODEL, prompt="go on", n=3, temperature=1, stream=True, **LONG) as stream:
        for _ in range(5):
            next(stream)


@pytest.mark.usefixtures("idle")
def test_a_cancelled_task_stops_the_engine(server: Server) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEYS["one"], max_retries=0) as client:
            asking = asyncio.create_task(client.chat.completions.create(model=MODEL, messages=MESSAGES, **LONG))
            await asyncio.to_thread(until_running, server)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    asyncio.run(main())


# --- Responses ------------------------------------------------------------------------------------------------------

TOOL: Any = {
    "type": "function",
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "strict": True,
}


def test_a_response(sdk: openai.OpenAI) -> None:
    answer = sdk.responses.create(model=MODEL, instructions="You are terse.", input="Say hi", max_output_tokens=8)
    assert answer.output_text and answer.id.startswith("resp_") and answer.usage is not None
    assert answer.usage.output_tokens <= 8 and answer.usage.input_tokens_details.cached_tokens >= 0
    history: Any = [
        {"role": "user", "content": "Say hi"},
        *(item.model_dump(exclude_none=True) for item in answer.output),
        {"role": "user", "content": "Once more"},
    ]
    again = sdk.responses.create(model=MODEL, instructions="You are terse.", input=history, max_output_tokens=8)
    assert again.output_text and again.status in ("completed", "incomplete")


def test_a_response_that_calls_a_tool(sdk: openai.OpenAI) -> None:
    """The model is too small to call one by itself: it is told to."""
    answer = sdk.responses.create(
        model=MODEL, input="Add 1 and 2.", tools=[TOOL], tool_choice="required", max_output_tokens=200, temperature=0
    )
    (call,) = [item for item in answer.output if item.type == "function_call"]
    assert call.name == "add" and call.call_id
    history: Any = [
        {"role": "user", "content": "Add 1 and 2."},
        call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "3"},
    ]
    assert sdk.responses.create(model=MODEL, input=history, tools=[TOOL], max_output_tokens=8).output


def test_a_streamed_response(sdk: openai.OpenAI) -> None:
    kinds = []
    text = ""
    for event in sdk.responses.create(model=MODEL, input="Say hi", max_output_tokens=8, stream=True):
        kinds.append(event.type)
        text += event.delta if event.type == "response.output_text.delta" else ""
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    assert text


def test_structured_responses(sdk: openai.OpenAI) -> None:
    schema: Any = {"type": "json_schema", "name": "n", "schema": TOOL["parameters"], "strict": True}
    answer = sdk.responses.create(
        model=MODEL, input="1 and 2", text={"format": schema}, max_output_tokens=100, temperature=0
    )
    assert answer.output_text.lstrip().startswith("{")


def test_exceptions_of_responses(sdk: openai.OpenAI, filler: Filler) -> None:
    with pytest.raises(openai.BadRequestError) as stored:
        sdk.responses.create(model=MODEL, input="hi", previous_response_id="resp_1")
    assert stored.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve("resp_1")
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as long:
            sdk.responses.create(model=MODEL, input=filler(9000), stream=stream)
        assert long.value.code == "context_length_exceeded" and long.value.param == "input"


@pytest.mark.usefixtures("idle")
def test_a_response_nobody_waits_for_stops_the_engine(sdk: openai.OpenAI) -> None:
    fields: Any = {"max_output_tokens": 2000, "extra_body": {"ignore_eos": True}}
    with pytest.raises(openai.APITimeoutError):
        sdk.responses.create(model=MODEL, input="go on", timeout=2, **fields)


@pytest.mark.usefixtures("idle")
def test_a_closed_stream_of_a_response_stops_the_engine(sdk: openai.OpenAI) -> None:
    fields: Any = {"max_output_tokens": 2000, "extra_body": {"ignore_eos": True}}
    with sdk.responses.create(model=MODEL, input="go on", stream=True, **fields) as stream:
        for _ in range(6):
            next(stream)
