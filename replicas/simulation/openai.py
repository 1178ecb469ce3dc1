"""The simulated engine behind the methods that Ray's LLMServer calls, in OpenAI's shapes.

Every response says that it is simulated: in `system_fingerprint`, and in its text.
"""

from __future__ import annotations

import abc
import itertools
import json
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ray.serve.llm import LLMConfig
from ray.serve.llm.openai_api_models import (
    ChatCompletionResponse,
    CompletionResponse,
    ErrorResponse,
)
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeResponse, TokenizeResponse

from replicas.cache.settings import ValueSettings
from replicas.requests import CURRENT_REQUEST, RequestLedger
from replicas.simulation.cache import Prompt
from replicas.simulation.engine import CostModel, SimulatedCore, SimulatedRequest
from runtime_actor.messages import OwnerTag

FINGERPRINT = "simulated-engine"
_BYTES_A_TOKEN = 4
_DEFAULT_MAX_TOKENS = 16
_WORD = "simulated "


class SimulatedEngine:
    """What LLMServer needs of an engine: chat, completions, tokenization and the life cycle; nothing else."""

    def __init__(self, llm_config: LLMConfig, cost: CostModel, values: ValueSettings) -> None:
        self.model_id = llm_config.model_id
        self.core = SimulatedCore(cost, values)
        self.ledger: RequestLedger | None = None
        self._numbers = itertools.count()

    async def start(self) -> None:
        """Nothing to load."""

    async def shutdown(self) -> None:
        self.core.die()

    async def check_health(self) -> None:
        if self.core.is_dead:
            raise RuntimeError("the simulated engine is dead")

    def routing_stats(self) -> dict[str, Any]:
        return {"simulated": True}

    async def chat(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        """Yields chunks as `data: ...` strings, or one response, or one ErrorResponse."""
        # Not as an attribute: the older of the two names warns when it is read.
        limits = request.model_dump(include={"max_tokens", "max_completion_tokens"})
        limit = limits["max_completion_tokens"] or limits["max_tokens"]
        shape = _ChatShape(self.model_id, request)
        async with aclosing(self._run(request, tokens_of(chat_text(request)), limit, shape)) as items:
            async for item in items:
                yield item

    async def completions(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        """As `chat`; a prompt is a text or a list of token ids."""
        prompt = request.prompt
        ids = tokens_of(prompt) if isinstance(prompt, str) else prompt
        shape = _CompletionShape(self.model_id, request)
        if not isinstance(ids, (list, tuple)) or not all(isinstance(i, int) for i in ids):
            yield _refusal("prompt must be a string or a list of token ids for a simulated engine")
            return
        async with aclosing(self._run(request, tuple(ids), request.max_tokens, shape)) as items:
            async for item in items:
                yield item

    async def tokenize(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        """Of a text or of messages, as they are counted here."""
        text = chat_text(request) if hasattr(request, "messages") else request.prompt
        tokens = list(tokens_of(text))
        yield TokenizeResponse(count=len(tokens), max_model_len=self.core.cost.max_model_len, tokens=tokens)

    async def detokenize(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        data = b"".join((token & 0x7FFFFFFF).to_bytes(_BYTES_A_TOKEN, "little") for token in request.tokens)
        yield DetokenizeResponse(prompt=data.decode(errors="replace").rstrip("\0"))

    async def _run(
        self, request: Any, ids: tuple[int, ...], limit: int | None, shape: _Shape
    ) -> AsyncGenerator[Any, None]:
        max_tokens = _DEFAULT_MAX_TOKENS if limit is None else limit
        if not self.core.fits(len(ids), max_tokens):
            yield _refusal(
                f"This model's maximum context length is {self.core.cost.max_model_len} tokens; "
                f"the prompt has {len(ids)} and {max_tokens} were asked for"
            )
            return
        usage = Usage(prompt_tokens=len(ids))
        sequence = self._sequence(request, ids, max_tokens, usage)
        async with aclosing(self.core.generate(sequence)) as tokens:
            async for token in tokens:
                usage.completion_tokens = token
                self._count(token, max_tokens)
                if request.stream:
                    for chunk in shape.chunks(token, max_tokens):
                        yield _event(chunk)
        if not request.stream:
            yield shape.response(usage)
            return
        options = request.stream_options
        if options is not None and options.include_usage:
            yield _event(shape.usage_chunk(usage))
        yield "data: [DONE]\n\n"

    def _sequence(self, request: Any, ids: tuple[int, ...], max_tokens: int, usage: Usage) -> SimulatedRequest:
        record = CURRENT_REQUEST.get()

        def on_prefill(cached_tokens: int) -> None:
            usage.cached_tokens = cached_tokens
            if record is not None and self.ledger is not None:
                self.ledger.prompt_seen(record, prompt_tokens=len(ids), cached_tokens=cached_tokens)

        model = request.model
        return SimulatedRequest(
            request_id=f"sim-{next(self._numbers)}",
            prompt=Prompt(
                token_ids=ids,
                cache_salt=getattr(request, "cache_salt", None),
                lora_name=model if model and model != self.model_id else None,
            ),
            max_tokens=max_tokens,
            tag=OwnerTag.of(getattr(request, "vllm_xargs", None)),
            priority=getattr(request, "priority", 0) or 0,
            on_prefill=on_prefill,
        )

    def _count(self, token: int, max_tokens: int) -> None:
        record = CURRENT_REQUEST.get()
        if record is not None and self.ledger is not None:
            reason = "length" if token == max_tokens else None
            self.ledger.tokens_seen(record, new_tokens=1, finish_reason=reason)


class Usage:
    """Counts of one response."""

    def __init__(self, prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = 0
        self.completion_tokens = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class _Shape(abc.ABC):
    """One endpoint's JSON; `kind` and `prefix` are OpenAI's object name and id prefix."""

    kind = ""
    prefix = ""

    def __init__(self, model_id: str, request: Any) -> None:
        self.num_choices = request.n or 1
        self.head = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": request.model or model_id,
            "system_fingerprint": FINGERPRINT,
        }

    def _choices(self, content: dict[str, Any], finish_reason: str | None) -> list[dict[str, Any]]:
        return [
            {"index": i, "finish_reason": finish_reason, "logprobs": None, **content} for i in range(self.num_choices)
        ]

    @abc.abstractmethod
    def chunks(self, token: int, max_tokens: int) -> list[dict[str, Any]]:
        """The stream's chunks for one token, the first and the last with what goes around it."""

    @abc.abstractmethod
    def response(self, usage: Usage) -> Any:
        """The whole response."""

    def _chunk(self, content: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        return {**self.head, "object": self.kind, "choices": self._choices(content, finish_reason)}

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        return {**self.head, "object": self.kind, "choices": [], "usage": usage.to_dict()}


class _ChatShape(_Shape):
    kind = "chat.completion.chunk"
    prefix = "chatcmpl"

    def chunks(self, token: int, max_tokens: int) -> list[dict[str, Any]]:
        first = [self._chunk({"delta": {"role": "assistant", "content": ""}}, None)] if token == 1 else []
        reason = "length" if token == max_tokens else None
        return [*first, self._chunk({"delta": {"content": _WORD}}, reason)]

    def response(self, usage: Usage) -> ChatCompletionResponse:
        message = {"role": "assistant", "content": _WORD * usage.completion_tokens}
        choices = self._choices({"message": message}, "length")
        return ChatCompletionResponse(**self.head, choices=choices, usage=usage.to_dict())


class _CompletionShape(_Shape):
    kind = "text_completion"
    prefix = "cmpl"

    def chunks(self, token: int, max_tokens: int) -> list[dict[str, Any]]:
        return [self._chunk({"text": _WORD}, "length" if token == max_tokens else None)]

    def response(self, usage: Usage) -> CompletionResponse:
        choices = self._choices({"text": _WORD * usage.completion_tokens}, "length")
        return CompletionResponse(**self.head, choices=choices, usage=usage.to_dict())


def tokens_of(text: str) -> tuple[int, ...]:
    """Four bytes a token, so that equal prefixes of texts are equal prefixes of tokens."""
    data = text.encode()
    return tuple(
        int.from_bytes(data[i : i + _BYTES_A_TOKEN], "little") & 0x7FFFFFFF for i in range(0, len(data), _BYTES_A_TOKEN)
    )


def chat_text(request: Any) -> str:
    """Tools and messages in order, as a chat template would put them."""
    parts = request.model_dump(mode="json", include={"tools", "messages"})
    lines = [json.dumps(tool, sort_keys=True) for tool in parts.get("tools") or []]
    lines += [json.dumps(message, sort_keys=True) for message in parts["messages"]]
    return "\n".join(lines)


def _event(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n"


def _refusal(message: str) -> ErrorResponse:
    return ErrorResponse(error={"message": message, "type": "invalid_request_error", "code": 400, "param": None})
