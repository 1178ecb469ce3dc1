"""The simulated engine in OpenAI's shapes, without a cluster."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from ray.serve.llm.openai_api_models import ChatCompletionRequest, CompletionRequest, ErrorResponse

from replicas.cache.settings import ValueSettings
from replicas.simulation.engine import CostModel
from replicas.simulation.openai import FINGERPRINT, SimulatedEngine

COST = CostModel(prefill_s_per_token=0.0, decode_s_per_token=0.0, max_model_len=512)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def engine() -> SimulatedEngine:
    return SimulatedEngine(SimpleNamespace(model_id="m"), COST, ValueSettings())  # type: ignore[arg-type]


def chat(**changes: Any) -> ChatCompletionRequest:
    values = {"model": "m", "messages": [{"role": "user", "content": "word " * 60}], "max_tokens": 3}
    return ChatCompletionRequest(**{**values, **changes})


def answers(engine: SimulatedEngine, *requests: Any) -> list[list[Any]]:
    async def ask(request: Any) -> list[Any]:
        is_chat = isinstance(request, ChatCompletionRequest)
        method = engine.chat if is_chat else engine.completions
        return [item async for item in method(request)]

    async def scenario() -> list[list[Any]]:
        return [await ask(request) for request in requests]

    return asyncio.run(scenario())


def test_a_whole_chat_response() -> None:
    (first,), (second,) = answers(engine(), chat(), chat())
    parsed = ChatCompletion.model_validate(first.model_dump())
    assert parsed.system_fingerprint == FINGERPRINT
    assert parsed.choices[0].finish_reason == "length"
    assert parsed.choices[0].message.content == "simulated " * 3
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert 0 < second.usage.prompt_tokens_details.cached_tokens < second.usage.prompt_tokens


@pytest.mark.parametrize("include_usage", [False, True])
def test_a_chat_stream(include_usage: bool) -> None:
    request = chat(stream=True, stream_options={"include_usage": include_usage}, tools=[TOOL])
    (items,) = answers(engine(), request)
    assert items[-1] == "data: [DONE]\n\n"
    chunks = [ChatCompletionChunk.model_validate(json.loads(item[6:])) for item in items[:-1]]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert sum(chunk.usage is not None for chunk in chunks) == include_usage
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons == [None, None, None, "length"]


def test_completions_of_text_and_of_token_ids() -> None:
    requests = [CompletionRequest(model="m", prompt=prompt, max_tokens=2, n=2) for prompt in ("a" * 40, [1, 2, 3])]
    for (response,) in answers(engine(), *requests):
        parsed = Completion.model_validate(response.model_dump())
        assert len(parsed.choices) == 2 and parsed.choices[1].index == 1


@pytest.mark.parametrize("prompt", ["a" * 4000, ["a", "b"]])
def test_what_it_cant_do_is_a_400(prompt: Any) -> None:
    (items,) = answers(engine(), CompletionRequest(model="m", prompt=prompt, max_tokens=1))
    assert len(items) == 1 and isinstance(items[0], ErrorResponse)
    assert items[0].error.code == 400


def test_a_null_limit_is_no_limit_named() -> None:
    ((response,),) = answers(engine(), chat(max_tokens=None))
    assert response.usage.completion_tokens == 16
