"""Request classes of the engine's HTTP API, and the one place for names that Ray Serve LLM keeps private."""

from ray.llm._internal.serve.core.configs.openai_api_models import (
    DetokenizeRequest,
    ErrorResponse,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
)
from ray.llm._internal.serve.core.protocol import RawRequestInfo
from ray.serve.llm.openai_api_models import ChatCompletionRequest, CompletionRequest
from vllm import envs
from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest, AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import construct_input_messages, construct_tool_dicts
from vllm.exceptions import VLLMClientError

MAX_STOP_STRINGS: int = envs.VLLM_MAX_STOP_STRINGS
"""Of a request; vLLM's own variable raises it."""

__all__ = [
    "MAX_STOP_STRINGS",
    "AnthropicCountTokensRequest",
    "AnthropicMessagesRequest",
    "AnthropicServingMessages",
    "ChatCompletionRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "ErrorResponse",
    "RawRequestInfo",
    "ResponsesRequest",
    "TokenizeChatRequest",
    "TokenizeCompletionRequest",
    "VLLMClientError",
    "construct_input_messages",
    "construct_tool_dicts",
]
