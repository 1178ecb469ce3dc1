"""A client's JSON object -> the engine's request: checked, stripped, able to cross a process.

Order matters: nulls are dropped first (optional means absent or null), what the engine would take and
then fail on is refused next, the engine's own classes validate the rest, and only then are the
gateway's fields put in.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from serve_app.engine_api import MAX_STOP_STRINGS, ChatCompletionRequest, CompletionRequest, VLLMClientError
from serve_app.hints import REPLACED_FIELDS
from serve_app.http.errors import bad_request, from_pydantic
from serve_app.http.field_checks import (
    ANSWER_LIMITS,
    CHAT,
    COMPLETIONS,
    check_fields,
    check_prompt,
    check_role,
    check_tool_calls,
    check_tool_choice,
    prompt_count,
)
from serve_app.http.route_fields import check_own
from serve_app.http.structured_outputs import check_structured_outputs
from serve_app.recognition.canonical import LEADING_ROLES, strip_billing

_CLASSES: dict[str, type[BaseModel]] = {CHAT: ChatCompletionRequest, COMPLETIONS: CompletionRequest}
_PART_MODALITIES = {"text": "text", "input_text": "text", "refusal": "text", "thinking": "text"}
_MESSAGE_TEXTS = ("name", "tool_call_id", "reasoning", "reasoning_content", "refusal")
_MODALITY_WORDS = ("image", "audio", "video")
_MAX_INT64 = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """What the served model and the configuration allow."""

    modalities: frozenset[str]
    max_choices: int


def prepare(endpoint: str, body: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """The client's own fields, checked, without nulls and hints; `body` itself is left as it is.

    Raises:
        ApiError: 400 naming the field.
    """
    fields = {name: value for name, value in body.items() if value is not None}
    check_fields(endpoint, fields, MAX_STOP_STRINGS)
    check_numbers(endpoint, fields, limits)
    check_own(endpoint, fields)
    if fields.get("use_beam_search"):
        raise bad_request("`use_beam_search` is not supported here.", "use_beam_search", "unsupported_value")
    if endpoint == CHAT:
        fields["messages"] = checked_messages(fields.get("messages"), limits.modalities)
        check_tool_choice(fields.get("tool_choice", "auto"))
        if "tools" not in fields and fields.get("tool_choice") in ("none", "auto"):
            del fields["tool_choice"]
    else:
        check_prompt(fields.get("prompt"))
    check_structured_outputs(fields)
    validated(endpoint, fields)
    return {name: value for name, value in fields.items() if name not in REPLACED_FIELDS}


def validated(endpoint: str, fields: Mapping[str, Any]) -> Any:
    """The engine's request object with every lazy iterable made a list. Raises ApiError.

    Its class takes as many stops as OpenAI allows, the engine any number, and so may another route.
    """
    stops = fields.get("stop")
    is_long = isinstance(stops, list) and len(stops) > MAX_STOP_STRINGS
    try:
        request: Any = _CLASSES[endpoint].model_validate({**fields, "stop": None} if is_long else dict(fields))
        if is_long:
            request.stop = stops
        if isinstance(request, ChatCompletionRequest):
            request.messages = plain(request.messages, ("messages",))
    except ValidationError as error:
        raise from_pydantic([dict(entry) for entry in error.errors()]) from None
    except RecursionError:
        raise bad_request("The request is nested too deeply.", code="invalid_value") from None
    except (VLLMClientError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise from_pydantic([{"type": "value_error", "loc": (), "msg": "", "ctx": {"error": error}}]) from None
    return request


def plain(value: Any, where: tuple[str | int, ...] = ()) -> Any:
    """Pydantic keeps fields declared as iterables lazy, unread; those can't be pickled to a replica. Raises ApiError:
    `where` is the value's location in the request."""
    if isinstance(value, dict):
        return {key: plain(item, (*where, key)) for key, item in value.items()}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, BaseModel):
        return plain(value.model_dump(), where)
    try:
        items = list(value)
    except ValidationError as error:
        raise from_pydantic([dict(entry) for entry in error.errors()], where) from None
    return [plain(item, (*where, index)) for index, item in enumerate(items)]


def checked_messages(messages: Any, modalities: frozenset[str]) -> list[dict[str, Any]]:
    if not isinstance(messages, list):
        raise bad_request("`messages` must be an array.", "messages", "invalid_value")
    if not messages:
        raise bad_request("`messages` must not be empty.", "messages", "invalid_value")
    checked = []
    leading = True
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise bad_request(f"`messages[{index}]` must be an object.", f"messages[{index}]", "invalid_value")
        role = message.get("role")
        check_role(role, f"messages[{index}]")
        leading = leading and role in LEADING_ROLES
        checked.append(_message(message, f"messages[{index}]", leading, modalities))
    return checked


def _message(message: dict[str, Any], path: str, leading: bool, modalities: frozenset[str]) -> dict[str, Any]:
    """A copy as the engine wants it: no nulls, no empty call list, content that is text, no billing line on top."""
    copy = {name: value for name, value in message.items() if value is not None}
    for name in _MESSAGE_TEXTS:
        if not isinstance(copy.get(name, ""), str):
            raise bad_request(f"`{path}.{name}` must be a string.", f"{path}.{name}", "invalid_value")
    if not copy.get("tool_calls"):
        copy.pop("tool_calls", None)
    else:
        check_tool_calls(copy["tool_calls"], f"{path}.tool_calls")
    content = copy.get("content")
    if isinstance(content, list):
        check_parts(content, f"{path}.content", modalities)
        copy["content"] = _single_text(content)
    elif content is not None and not isinstance(content, str):
        raise bad_request(f"`{path}.content` must be a string or an array.", f"{path}.content", "invalid_value")
    elif content is None and copy["role"] == "assistant":
        # With and without a `content` key a template may print differently; they mean the same.
        copy["content"] = "" if "tool_calls" not in copy else None
    elif content is None and copy["role"] != "assistant":
        raise bad_request(f"`{path}.content` is required.", f"{path}.content", "invalid_value")
    if leading and copy.get("content"):
        copy["content"] = without_billing(copy["content"])
    return copy


def _single_text(parts: list[Any]) -> Any:
    """No part and one text part are a plain string to every template; more parts stay as they are."""
    if not parts:
        return ""
    only = parts[0]
    text = only if isinstance(only, str) else only.get("text")
    if len(parts) > 1 or not isinstance(text, str):
        return parts
    return text if isinstance(only, str) or set(only) <= {"type", "text", "cache_control"} else parts


def without_billing(content: Any) -> Any:
    """Billing lines out of a leading system text; a part that held nothing else goes with its line."""
    if isinstance(content, str):
        return strip_billing(content)
    kept: list[Any] = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else part
        stripped = strip_billing(text) if isinstance(text, str) else text
        if stripped == text:
            kept.append(part)
        elif stripped:
            kept.append(stripped if isinstance(part, str) else {**part, "text": stripped})
    return _single_text(kept)


def check_parts(parts: list[Any], path: str, modalities: frozenset[str]) -> None:
    """Parts of a content. Raises ApiError 400."""
    for index, part in enumerate(parts):
        where = f"{path}[{index}]"
        if isinstance(part, str):
            continue
        if not isinstance(part, dict):
            raise bad_request(f"`{where}` must be an object.", where, "invalid_value")
        modality = _modality(part)
        if modality not in modalities:
            raise bad_request(
                f"`{where}` is not text; this model takes {', '.join(sorted(modalities))} only.",
                f"{where}.type",
                "unsupported_content",
            )
        text, is_text = part.get("text"), part.get("type") in (None, "text", "input_text")
        if not isinstance(text, str) and (text is not None or is_text):
            raise bad_request(f"`{where}.text` must be a string.", f"{where}.text", "invalid_value")
        if part.get("type") == "refusal" and not isinstance(part.get("refusal"), str):
            raise bad_request(f"`{where}.refusal` must be a string.", f"{where}.refusal", "invalid_value")


def _modality(part: dict[str, Any]) -> str:
    """Also by key: the engine takes `{"image_url": ...}` without a type."""
    kind = part.get("type")
    for word in _MODALITY_WORDS:
        if (isinstance(kind, str) and word in kind) or any(word in key for key in part):
            return word
    if kind is None and "text" in part:
        return "text"
    return _PART_MODALITIES.get(kind, "other") if isinstance(kind, str) else "other"


def check_numbers(endpoint: str, fields: dict[str, Any], limits: Limits) -> None:
    for name, value in fields.items():
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _MAX_INT64:
            raise bad_request(f"`{name}` is out of range.", name, "invalid_value")
    for name in ANSWER_LIMITS:
        value = fields.get(name)
        lowest = 0 if endpoint == COMPLETIONS and fields.get("echo") else 1
        if isinstance(value, int) and not isinstance(value, bool) and value < lowest:
            raise bad_request(f"`{name}` must be at least {lowest}.", name, "invalid_value")
        if value is not None and fields.get("min_tokens", 0) > value:
            raise bad_request(f"`min_tokens` must be at most `{name}`.", "min_tokens", "invalid_value")
    choices = fields.get("n")
    if isinstance(choices, int) and not 1 <= choices <= limits.max_choices:
        raise bad_request(f"`n` must be from 1 to {limits.max_choices}.", "n", "invalid_value")
    asked = prompt_count(fields.get("prompt")) * (choices if isinstance(choices, int) else 1)
    if endpoint == COMPLETIONS and asked > limits.max_choices:
        message = f"`prompt` asks for {asked} choices; at most {limits.max_choices} are allowed in one request."
        raise bad_request(message, "prompt", "invalid_value")
    if "stream_options" in fields and not fields.get("stream"):
        raise bad_request("`stream_options` needs `stream` to be true.", "stream_options", "invalid_value")


def parsed(kind: type[BaseModel], body: Mapping[str, Any]) -> Any:
    """A request of one of the engine's other classes, able to cross a process. Raises ApiError."""
    try:
        request: Any = kind.model_validate(dict(body))
        if isinstance(getattr(request, "messages", None), list):
            request.messages = plain(request.messages, ("messages",))
    except ValidationError as error:
        raise from_pydantic([dict(entry) for entry in error.errors()]) from None
    except (VLLMClientError, ValueError, TypeError) as error:
        raise from_pydantic([{"type": "value_error", "loc": (), "msg": "", "ctx": {"error": error}}]) from None
    return request
