"""OpenAI's Responses over the simulated engine: vLLM's own messages, parameters and answers, without its serving class,
which wants an engine of vLLM's."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

from openai.types.responses import ResponseOutputMessage, ResponseOutputText
from ray.serve.llm.openai_api_models import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import (
    InputTokensDetails,
    OutputTokensDetails,
    ResponsesRequest,
    ResponsesResponse,
    ResponseUsage,
)
from vllm.entrypoints.openai.responses.utils import construct_input_messages
from vllm.entrypoints.serve import create_error_response
from vllm.entrypoints.serve.engine.protocol import ErrorResponse

from replicas.simulation.openai import SimulatedEngine

DEFAULT_MAX_TOKENS = 16


class SimulatedResponses:
    """What `replicas.engine.responses` asks of vLLM's serving object."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine

    async def create_responses(self, request: ResponsesRequest, raw_request: Any) -> Any:
        """Raises what vLLM raises for parameters that make no sense."""
        sampling = request.to_sampling_params(DEFAULT_MAX_TOKENS)
        messages = construct_input_messages(
            request_instructions=request.instructions, request_input=request.input, prev_msg=None
        )
        chat = ChatCompletionRequest.model_construct(
            model=request.model, messages=messages, tools=None, max_tokens=sampling.max_tokens,
            max_completion_tokens=None, stream=False, stream_options=None, n=1, priority=request.priority,
            vllm_xargs=request.vllm_xargs, cache_salt=request.cache_salt,
        )  # fmt: skip
        (whole,) = [item async for item in self._engine.chat(chat)]
        if isinstance(whole, ErrorResponse):
            return whole
        response = _response(request, sampling, whole)
        return _events(response) if request.stream else response

    def create_error_response(self, error: Exception) -> ErrorResponse:
        return create_error_response(error)


def _response(request: ResponsesRequest, sampling: Any, whole: Any) -> ResponsesResponse:
    text = ResponseOutputText(annotations=[], type="output_text", text=whole.choices[0].message.content)
    message = ResponseOutputMessage(id="msg_1", content=[text], role="assistant", status="completed", type="message")
    usage = ResponseUsage(
        input_tokens=whole.usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=whole.usage.prompt_tokens_details.cached_tokens),
        output_tokens=whole.usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(),
        total_tokens=whole.usage.total_tokens,
    )
    return ResponsesResponse.from_request(
        request, sampling, model_name=request.model or "", created_time=int(time.time()), output=[message],
        status="completed", usage=usage,
    )  # fmt: skip


async def _events(response: ResponsesResponse) -> AsyncGenerator[Any, None]:
    for kind in ("response.created", "response.completed"):
        yield _Event(kind, response)


class _Event(SimpleNamespace):
    def __init__(self, kind: str, response: ResponsesResponse) -> None:
        super().__init__(type=kind, response=response)

    def model_dump_json(self, **_: Any) -> str:
        return f'{{"type":"{self.type}","response":{self.response.model_dump_json(by_alias=True)}}}'
