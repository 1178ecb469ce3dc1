"""Anthropic's Messages over chat completions: both ways are translated by vLLM's own converters.

System messages inside the conversation stay where they are: put on top, as vLLM does where it doesn't know the
template, they would change the head of the prompt at each turn.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from pydantic import ValidationError

from runtime_actor.messages import RequestAccepted
from serve_app import preparation
from serve_app.engine_api import (
    MAX_STOP_STRINGS,
    AnthropicMessagesRequest,
    AnthropicServingMessages,
    VLLMClientError,
)
from serve_app.http.blocks import check_blocks
from serve_app.http.errors import ApiError, bad_request, from_pydantic
from serve_app.http.field_checks import CHAT, MESSAGES, check_fields
from serve_app.http.route_fields import check_own
from serve_app.http.structured_outputs import output_schema
from serve_app.recognition.canonical import strip_billing
from serve_app.routes.route import Route, event
from serve_app.streaming import DONE
from serve_app.streaming import events as payloads_of

MAX_STOPS = 16
"""Stop sequences of a request; Anthropic names no bound."""

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


ENDED, CALLED = "end_turn", "tool_use"
"""OpenAI ends an answer that calls the tool it was told to with `stop`, Anthropic as any call; clients go by it."""

ENGINES_OWN = (
    *("session_id", "priority", "request_id"),
    *("seed", "logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_p", "min_tokens"),
    *("ignore_eos", "stop_token_ids", "bad_words", "allowed_token_ids", "structured_outputs"),
)
"""Fields that Anthropic's class doesn't have, under their names in a chat completion. The first three are only checked:
the gateway sets its own."""


_OWN_NAMES = {
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "stop": "stop_sequences",
    "max_completion_tokens": "max_tokens",
}
"""A field of the chat completion -> what the client wrote."""


class _Converter(AnthropicServingMessages):
    """vLLM's converters without the engine that its constructor wants."""

    def __init__(self) -> None:
        self.stop_reason_map = STOP_REASONS


class MessagesRoute(Route):
    def __init__(self) -> None:
        super().__init__(CHAT)
        self._converter = _Converter()

    def prepare(self, body: Mapping[str, Any], limits: preparation.Limits) -> dict[str, Any]:
        # Under the client's own names, which the converter changes, and what it would drop in silence.
        fields = {name: value for name, value in body.items() if value is not None}
        check_fields(MESSAGES, fields, max(MAX_STOPS, MAX_STOP_STRINGS))
        preparation.check_numbers(MESSAGES, fields, limits)
        check_own(MESSAGES, fields)
        check_blocks(fields, limits.modalities)
        own = {name: fields[name] for name in ENGINES_OWN if name in fields}
        schema = output_schema(fields)
        if schema is not None:
            own["response_format"] = {"type": "json_schema", "json_schema": {"name": "json_schema", "schema": schema}}
        stops = fields.get("stop_sequences", [])
        fields["stop_sequences"] = stops[:MAX_STOP_STRINGS]
        chat = {**own, **chat_body(AnthropicMessagesRequest, fields)}
        try:
            prepared = preparation.prepare(CHAT, chat, limits)
            return {**prepared, "stop": stops} if stops else prepared
        except ApiError as error:
            if (error.param or "").startswith("messages["):
                # The conversion makes more messages than were sent, or fewer.
                raise bad_request(
                    error.message.replace(f"`{error.param}`", "`messages`"), "messages", error.code
                ) from None
            raise self.own_error(error) from None

    def own_error(self, error: ApiError) -> ApiError:
        own = _OWN_NAMES.get((error.param or "").partition(".")[0])
        if error.status != 400 or own is None:
            return error
        return bad_request(error.message.replace(f"`{error.param}`", f"`{own}`"), own, error.code)

    def answer(self, first: Any, accepted: RequestAccepted | None) -> dict[str, Any]:
        _keep_whole_calls(first)
        usage = getattr(first, "usage", None)
        details = getattr(usage, "prompt_tokens_details", None)
        converted: dict[str, Any] = self._converter.messages_full_converter(first).model_dump(exclude_none=True)
        if details is None or details.cached_tokens is None:
            cached = accepted.cached_tokens if accepted else 0
            converted["usage"]["input_tokens"] -= cached
            converted["usage"]["cache_read_input_tokens"] = cached
        if converted["stop_reason"] == ENDED and any(block["type"] == "tool_use" for block in converted["content"]):
            converted["stop_reason"] = CALLED
        return converted

    async def stream(self, events: AsyncIterator[str], accepted: RequestAccepted | None) -> AsyncIterator[str]:
        failed: list[ApiError] = []
        called = False
        async for text in self._converter.message_stream_converter(_chunks(events, accepted, failed)):
            called = called or (text.startswith("event: content_block_start\n") and '"type":"tool_use"' in text)
            if called and text.startswith("event: message_delta\n"):
                text = text.replace(f'"stop_reason":"{ENDED}"', f'"stop_reason":"{CALLED}"')
            yield text
        if failed:
            yield event("error", error_body(failed[0]))


def chat_body(kind: type[Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """The same request as a chat completion's JSON object. Raises ApiError.

    Anthropic takes an empty list of tools, as Claude Code sends it, and OpenAI doesn't.
    """
    fields = {name: value for name, value in body.items() if value is not None}
    if fields.get("tools") == []:
        del fields["tools"]
    if fields.get("messages") == []:
        raise bad_request("`messages` must not be empty.", "messages", "invalid_value")
    if "system" in fields:
        fields["system"] = _system(fields["system"])
    if isinstance(fields.get("messages"), list):
        fields["messages"] = [_without_billing(message) for message in fields["messages"]]
    try:
        # Without a model it is for the model itself, on every route.
        parsed = kind.model_validate({"model": "any", **fields})
        chat = _Converter.to_chat_completion_request(parsed, merge_inline_system=False)
        chat_fields: dict[str, Any] = chat.model_dump(
            exclude={"messages"}, exclude_none=True, exclude_unset=True, by_alias=True
        )
        # The converter sets both; an error should name the one that the client sent.
        chat_fields.pop("max_completion_tokens", None)
        if "model" not in fields:
            chat_fields.pop("model", None)
        return {**chat_fields, "messages": [preparation.plain(message) for message in chat.messages]}
    except ValidationError as error:
        raise from_pydantic([dict(entry) for entry in error.errors()]) from None
    except (VLLMClientError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise from_pydantic([{"type": "value_error", "loc": (), "msg": "", "ctx": {"error": error}}]) from None


def error_body(error: ApiError) -> dict[str, Any]:
    """Anthropic's shape, which holds OpenAI's."""
    return {"type": "error", **error.body()}


def _system(system: Any) -> Any:
    """Without billing lines. vLLM drops the whole block that begins with one, whatever else it says."""
    if isinstance(system, str):
        return strip_billing(system)
    if not isinstance(system, list):
        return system
    return [
        {**block, "text": strip_billing(block["text"])}
        if isinstance(block, dict) and isinstance(block.get("text"), str)
        else block
        for block in system
    ]


def _without_billing(message: Any) -> Any:
    """vLLM drops a system message, or a block of one, that begins with such a line, wherever it stands."""
    if not isinstance(message, dict) or message.get("role") != "system":
        return message
    return {**message, "content": _system(message.get("content"))}


def _keep_whole_calls(first: Any) -> None:
    """A call that was cut by the token limit is no object: its text stays, and nobody runs it."""
    choice = first.choices[0]
    for call in choice.message.tool_calls:
        call.function.arguments = call.function.arguments or "{}"
    whole = [call for call in choice.message.tool_calls if _is_object(call.function.arguments)]
    cut = [call.function.arguments for call in choice.message.tool_calls if call not in whole]
    if cut:
        choice.message.tool_calls = whole
        choice.message.content = "\n".join(filter(None, (choice.message.content, *cut)))
    if cut and not whole and choice.finish_reason == "tool_calls":
        choice.finish_reason = "stop"


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except ValueError:
        return False


async def _chunks(
    events: AsyncIterator[str], accepted: RequestAccepted | None, failed: list[ApiError]
) -> AsyncGenerator[str, None]:
    """Chat chunks one by one, the first with what the prompt took; an ApiError ends them and goes into `failed`."""
    first = True
    done = False
    try:
        async for text in events:
            for payload in payloads_of(text):
                done = done or payload == "[DONE]"
                yield f"data: {_with_usage(payload, accepted) if first else payload}\n\n"
                first = False
    except ApiError as error:
        failed.append(error)
        return
    if not done:
        yield DONE


def _with_usage(payload: str, accepted: RequestAccepted | None) -> str:
    if accepted is None:
        return payload
    tokens = accepted.prompt_tokens
    details = {"cached_tokens": accepted.cached_tokens}
    usage = {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens, "prompt_tokens_details": details}
    return json.dumps({**json.loads(payload), "usage": usage})
