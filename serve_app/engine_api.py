"""Request classes of the engine's HTTP API, and the one place for names that Ray Serve LLM keeps private."""

from ray.llm._internal.serve.core.configs.openai_api_models import (
    DetokenizeRequest,
    ErrorResponse,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
)
from ray.llm._internal.serve.core.protocol import RawRequestInfo
from ray.serve.llm.openai_api_models import ChatCompletionRequest, CompletionRequest
from vllm.exceptions import VLLMClientError

__all__ = [
    "ChatCompletionRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "ErrorResponse",
    "RawRequestInfo",
    "TokenizeChatRequest",
    "TokenizeCompletionRequest",
    "VLLMClientError",
]
