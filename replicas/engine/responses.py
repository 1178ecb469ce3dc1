"""OpenAI's Responses by vLLM's own serving class, which Ray's engine makes and doesn't offer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ray.serve.llm.openai_api_models import ErrorResponse
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse as EngineError
from vllm.exceptions import GenerationError, VLLMClientError

from replicas.responses_call import ResponsesCall

STATE = "_app_state"
"""Where Ray's VLLMEngine keeps vLLM's serving objects."""


async def create_response(engine: Any, call: ResponsesCall, raw_request: Any) -> AsyncGenerator[Any, None]:
    """One plain response, or the events of a stream as text; instead of either an error in the engine's form."""
    serving = getattr(getattr(engine, STATE, None), "openai_serving_responses", None)
    if serving is None:
        yield not_served("this engine")
        return
    try:
        made = await serving.create_responses(ResponsesRequest.model_validate(call.fields), raw_request)
    except (ValueError, VLLMClientError, GenerationError) as error:
        made = serving.create_error_response(error)
    if not isinstance(made, AsyncGenerator):
        yield made if isinstance(made, EngineError) else made.model_dump(mode="json", by_alias=True)
        return
    async with aclosing(made) as events:
        async for event in events:
            yield f"event: {event.type}\ndata: {event.model_dump_json(indent=None, by_alias=True)}\n\n"


def not_served(what: str) -> ErrorResponse:
    message = f"/v1/responses is not served by {what}; use /v1/chat/completions."
    return ErrorResponse(error={"message": message, "type": "not_found_error", "code": 404, "param": None})
