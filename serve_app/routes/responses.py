"""OpenAI's Responses: requests and answers are vLLM's own; kept here is only what the gateway stands for.

Nothing is stored: `store` is answered as false, and what would need a store is refused.
"""

import functools
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

from pydantic import ValidationError

from replicas.responses_call import ResponsesCall
from runtime_actor.messages import RequestAccepted
from serve_app import preparation
from serve_app.engine_api import (
    MAX_STOP_STRINGS,
    ResponsesRequest,
    VLLMClientError,
    construct_input_messages,
    construct_tool_dicts,
)
from serve_app.hints import REPLACED_FIELDS
from serve_app.http.errors import ApiError, bad_request, from_pydantic
from serve_app.http.field_checks import RESPONSES, check_fields
from serve_app.http.items import plain_items
from serve_app.http.route_fields import check_own
from serve_app.http.structured_outputs import check_structured_outputs, check_text_format
from serve_app.recognition.canonical import LEADING_ROLES, strip_billing
from serve_app.routes.route import Route, event

STORED = ("previous_response_id", "conversation", "background", "prompt", "previous_input_messages")
"""Fields that need a store of responses. vLLM's is one unbounded table a process, without an owner."""

_OF_MESSAGES = re.compile(r"`messages[^`]*`")

TOOL_KINDS = ("function", "namespace")
"""vLLM drops others (web search, MCP and so on) without a word."""

TOOL_CHOICES = ("none", "auto", "required")


class ResponsesRoute(Route):
    def __init__(self) -> None:
        super().__init__(RESPONSES)

    def prepare(self, body: Mapping[str, Any], limits: preparation.Limits) -> dict[str, Any]:
        fields = {name: value for name, value in body.items() if value is not None}
        check_fields(RESPONSES, fields, MAX_STOP_STRINGS)
        if isinstance(fields.get("text"), dict) and fields["text"].get("format") is not None:
            check_text_format(fields["text"]["format"])
        preparation.check_numbers(RESPONSES, fields, limits)
        check_own(RESPONSES, fields)
        for name in STORED:
            if fields.get(name) not in (None, False):
                raise bad_request(
                    f"`{name}` is not supported: responses are not stored here; send the conversation in `input`.",
                    name,
                    "unsupported_value",
                )
        _check_tools(fields.get("tools", []))
        _check_tool_choice(fields.get("tool_choice", "auto"))
        check_structured_outputs({"structured_outputs": fields.get("structured_outputs")})
        if isinstance(fields.get("instructions"), str):
            fields["instructions"] = strip_billing(fields["instructions"])
        if not isinstance(fields.get("input", ""), (str, list)):
            raise bad_request("`input` must be a string or an array.", "input", "invalid_value")
        if fields.get("input") in ([], ""):
            raise bad_request("`input` must not be empty.", "input", "invalid_value")
        if isinstance(fields.get("input"), list):
            check_parts = functools.partial(preparation.check_parts, modalities=limits.modalities)
            fields["input"] = plain_items(_without_billing(fields["input"]), check_parts)
        try:
            preparation.checked_messages(_messages(_parsed(fields)), limits.modalities)
        except ApiError as error:
            # The path is one of the messages that vLLM makes of the input.
            raise error if error.param is None else _of_input(error) from None
        kept = {name: value for name, value in fields.items() if name not in REPLACED_FIELDS}
        return {**kept, "store": False}

    def identity_view(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        request = _parsed(fields)
        tools = construct_tool_dicts(request.tools, request.tool_choice)
        view: dict[str, Any] = {"messages": _messages(request), "tools": None}
        return {**view, "tools": [_without_nulls(tool) for tool in tools]} if tools else view

    def request(self, fields: Mapping[str, Any]) -> ResponsesCall:
        return ResponsesCall({**fields, "request_id": f"resp_{fields['request_id']}"})

    def answer(self, first: Any, accepted: RequestAccepted | None) -> dict[str, Any]:
        """vLLM counts cached tokens in every usage."""
        return dict(first)

    async def stream(self, events: AsyncIterator[str], accepted: RequestAccepted | None) -> AsyncIterator[str]:
        """A failure is an event of type `error`, with the object that makes SDKs raise; no [DONE]."""
        number = 0
        try:
            async for text in events:
                number += text.count("event: ")
                yield text
        except ApiError as error:
            inner = error.body()["error"]
            yield event("error", {**inner, "type": "error", "sequence_number": number, "error": inner})


def _parsed(fields: Mapping[str, Any]) -> Any:
    """vLLM's request object. Raises ApiError."""
    try:
        return ResponsesRequest.model_validate(dict(fields))
    except ValidationError as error:
        raise from_pydantic([dict(entry) for entry in error.errors()]) from None
    except RecursionError:
        raise bad_request("The request is nested too deeply.", code="invalid_value") from None
    except (VLLMClientError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise from_pydantic([{"type": "value_error", "loc": (), "msg": "", "ctx": {"error": error}}]) from None


def _messages(request: Any) -> list[dict[str, Any]]:
    """The chat messages that vLLM makes of a request's instructions and input. Raises ApiError."""
    try:
        made = construct_input_messages(request_instructions=request.instructions, request_input=request.input)
        return [_joined(preparation.plain(message)) for message in made]
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        raise bad_request("`input` has an item that is not supported.", "input", "invalid_value") from None


def _joined(message: dict[str, Any]) -> dict[str, Any]:
    """One text part reads as its text, as in a chat request."""
    content = message.get("content")
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        text = content[0].get("text")
        return {**message, "content": text} if isinstance(text, str) else message
    return message


def _without_billing(items: list[Any]) -> list[Any]:
    """Billing lines out of the system messages that an input begins with."""
    cleaned: list[Any] = list(items)
    for index, item in enumerate(items):
        role = item.get("role") if isinstance(item, dict) else None
        if not isinstance(role, str) or role not in LEADING_ROLES:
            break
        if isinstance(item.get("content"), (str, list)):
            cleaned[index] = {**item, "content": preparation.without_billing(item["content"])}
    return cleaned


def _check_tools(tools: Any) -> None:
    if not isinstance(tools, list):
        raise bad_request("`tools` must be an array.", "tools", "invalid_value")
    for index, tool in enumerate(tools):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind not in TOOL_KINDS:
            where = f"tools[{index}].type"
            raise bad_request(f"`{where}` must be one of {', '.join(TOOL_KINDS)}.", where, "unsupported_value")


def _check_tool_choice(choice: Any) -> None:
    """vLLM takes others, a hosted tool's say, and does nothing with them."""
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind not in (("function",) if isinstance(choice, dict) else TOOL_CHOICES):
        allowed = f"{', '.join(TOOL_CHOICES)} or an object of type function with a name"
        raise bad_request(f"`tool_choice` must be {allowed}.", "tool_choice", "unsupported_value")


def _of_input(error: ApiError) -> ApiError:
    message = _OF_MESSAGES.sub("`input`: a message", error.message)
    return bad_request(message, "input", error.code) if str(error.param).startswith("messages") else error


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value
