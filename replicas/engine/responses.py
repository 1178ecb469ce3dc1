"""OpenAI's Responses by vLLM's own serving class, which Ray's engine makes and doesn't offer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from pydantic import ValidationError
from ray.serve.llm.openai_api_models import ErrorResponse
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse as EngineError
from vllm.exceptions import GenerationError, VLLMClientError

from replicas.engine.ray_engine import responses_of
from replicas.responses_call import ResponsesCall

ANNOUNCEMENTS = ("response.created", "response.in_progress")


async def create_response(engine: Any, call: ResponsesCall, raw_request: Any) -> AsyncGenerator[Any, None]:
    """One plain response, or a stream's events as text, several in a list; an error in the engine's form."""
    serving = responses_of(engine)
    if serving is None:
        yield _not_served()
        return
    try:
        made = await serving.create_responses(ResponsesRequest.model_validate(call.fields), raw_request)
    except (ValueError, VLLMClientError, GenerationError) as error:
        made = serving.create_error_response(error)
    if isinstance(made, EngineError):
        yield made
    elif isinstance(made, AsyncGenerator):
        async with aclosing(_events(made, serving)) as events:
            async for event in events:
                yield event
    else:
        yield made.model_dump(mode="json", by_alias=True)


async def _events(made: AsyncGenerator[Any, None], serving: Any) -> AsyncGenerator[Any, None]:
    """vLLM announces a response before it asks the engine; held until then, so that the first item, as of the other
    routes, comes of the engine (and runs in the context that the replica opened the request in)."""
    held: list[str] = []
    try:
        async with aclosing(made) as events:
            async for event in events:
                held.append(f"event: {event.type}\ndata: {event.model_dump_json(indent=None, by_alias=True)}\n\n")
                if event.type not in ANNOUNCEMENTS:
                    yield held
                    held = []
    except (GenerationError, ValidationError):
        # vLLM has no event for a failure: it fails once more, with a ValidationError, when it makes one.
        yield serving.create_error_response(GenerationError())
    except (ValueError, VLLMClientError) as error:
        # The engine looks at a request only now that its stream has begun.
        yield serving.create_error_response(error)


def _not_served() -> ErrorResponse:
    message = "/v1/responses is not served by this engine; use /v1/chat/completions."
    return ErrorResponse(error={"message": message, "type": "not_found_error", "code": 404, "param": None})
