"""Types and ranges of the fields every client sends, stricter than the engine's own classes.

Those turn "yes" into true and true into 1; a client that sends such has a fault it should hear of.
"""

import math
from collections.abc import Mapping
from typing import Any

from serve_app.http.errors import bad_request

CHAT = "chat"
COMPLETIONS = "completions"
RESPONSES = "responses"
MESSAGES = "messages"

ANSWER_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""How many tokens an answer may have, by each route's name; where two are given the first one counts."""

ROLES = ("system", "developer", "user", "assistant", "tool", "function")

_BOOLS = frozenset(
    {"stream", "echo", "parallel_tool_calls", "ignore_eos", "skip_special_tokens", "store", "background"}
)
_INTEGERS = frozenset(
    {
        *("max_tokens", "max_completion_tokens", "max_output_tokens", "max_tool_calls"),
        *("n", "seed", "top_logprobs", "top_k", "best_of", "min_tokens"),
    }
)
_NUMBERS = frozenset({"temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"})
_OBJECTS = frozenset({"metadata", "stream_options", "logit_bias"})
_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "min_p": (0.0, 1.0),
    "top_k": (-1, 2**31 - 1),
    "min_tokens": (0, 2**31 - 1),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "best_of": (1, 20),
}


_ABOVE_ZERO: Mapping[str, float] = {"top_p": 1.0, "repetition_penalty": math.inf}
"""The highest value of what must not be 0."""

STOPS = ("stop", "stop_sequences")
STREAM_OPTIONS = ("include_usage", "continuous_usage_stats", "include_obfuscation")
BIAS = 100
FORMATS = ("text", "json_object", "json_schema", "structural_tag")


def check_fields(endpoint: str, fields: Mapping[str, Any], max_stops: int = 4) -> None:
    """Raises ApiError 400 naming the field and what is allowed.

    Fields that another route alone has are checked as well: what is ignored should not be wrong in silence.
    """
    for name, value in fields.items():
        kind = _expected(endpoint, name)
        if kind and not _fits(kind, value):
            raise bad_request(f"`{name}` must be {kind}.", name, "invalid_value")
        if name in _RANGES and not _RANGES[name][0] <= value <= _RANGES[name][1]:
            low, high = _RANGES[name]
            raise bad_request(f"`{name}` must be from {low:g} to {high:g}.", name, "invalid_value")
        if name in _ABOVE_ZERO and not 0 < value <= _ABOVE_ZERO[name]:
            most = f" and at most {_ABOVE_ZERO[name]:g}" if _ABOVE_ZERO[name] < math.inf else ""
            raise bad_request(f"`{name}` must be more than 0{most}.", name, "invalid_value")
        if name in STOPS:
            _check_stops(name, value, max_stops)
    _check_stream_options(fields.get("stream_options") or {})
    if "logit_bias" in fields:
        _check_bias(fields["logit_bias"])
    if "response_format" in fields:
        check_format(fields["response_format"], "response_format")


def _check_stream_options(options: Mapping[str, Any]) -> None:
    for name in STREAM_OPTIONS:
        if options.get(name) is not None and not isinstance(options[name], bool):
            where = f"stream_options.{name}"
            raise bad_request(f"`{where}` must be true or false.", where, "invalid_value")


def _check_stops(name: str, value: Any, most: int) -> None:
    texts = [value] if name == "stop" and isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        kind = "a string or an array of strings" if name == "stop" else "an array of strings"
        raise bad_request(f"`{name}` must be {kind}, none of them empty.", name, "invalid_value")
    if len(texts) > most:
        raise bad_request(f"`{name}` must have at most {most} entries.", name, "invalid_value")


def _check_bias(biases: Mapping[str, Any]) -> None:
    """What is no token of the model's the engine refuses."""
    for token, bias in biases.items():
        if not (token.isascii() and token.isdigit() and len(token) <= 10 and int(token) <= MAX_TOKEN_ID):
            raise bad_request("`logit_bias` must have token ids as its keys.", "logit_bias", "invalid_value")
        if not _fits("a number", bias) or not -BIAS <= bias <= BIAS:
            message = f"`logit_bias` must have numbers from {-BIAS} to {BIAS} as its values."
            raise bad_request(message, "logit_bias", "invalid_value")


def check_format(given: Any, path: str, kinds: tuple[str, ...] = FORMATS) -> None:
    """A format of the answer, where it stands in a request."""
    if not isinstance(given, dict):
        raise bad_request(f"`{path}` must be an object.", path, "invalid_value")
    if given.get("type") not in kinds:
        allowed = ", ".join(kinds)
        raise bad_request(f"`{path}.type` must be one of {allowed}.", f"{path}.type", "invalid_value")


def check_role(role: Any, path: str) -> None:
    if not isinstance(role, str) or role not in ROLES:
        raise bad_request(f"`{path}.role` must be one of {', '.join(ROLES)}.", f"{path}.role", "invalid_value")


def check_tool_calls(calls: Any, path: str) -> None:
    """Calls of an assistant's message: id, type, and a function with a name and arguments as text."""
    if not isinstance(calls, list):
        raise bad_request(f"`{path}` must be an array.", path, "invalid_value")
    for index, call in enumerate(calls):
        where = f"{path}[{index}]"
        if not isinstance(call, dict):
            raise bad_request(f"`{where}` must be an object.", where, "invalid_value")
        if not isinstance(call.get("id"), str):
            raise bad_request(f"`{where}.id` must be a string.", f"{where}.id", "invalid_value")
        if call.get("type") != "function":
            raise bad_request(f"`{where}.type` must be function.", f"{where}.type", "invalid_value")
        function = call.get("function")
        if not isinstance(function, dict):
            raise bad_request(f"`{where}.function` must be an object.", f"{where}.function", "invalid_value")
        for name in ("name", "arguments"):
            if not isinstance(function.get(name), str):
                field = f"{where}.function.{name}"
                raise bad_request(f"`{field}` must be a string.", field, "invalid_value")


TOOL_CHOICES = ("none", "auto", "required")


def check_tool_choice(choice: Any) -> None:
    """Of a chat completion. The engine has no `allowed_tools`."""
    if not isinstance(choice, dict):
        if choice not in TOOL_CHOICES:
            allowed = f"{', '.join(TOOL_CHOICES)} or an object of type function"
            raise bad_request(f"`tool_choice` must be {allowed}.", "tool_choice", "unsupported_value")
        return
    if choice.get("type") != "function":
        message = "`tool_choice.type` must be function; send only the tools that are allowed in `tools`."
        raise bad_request(message, "tool_choice.type", "unsupported_value")
    function = choice.get("function")
    if not isinstance(function, dict):
        raise bad_request("`tool_choice.function` must be an object.", "tool_choice.function", "invalid_value")
    if not isinstance(function.get("name"), str):
        where = "tool_choice.function.name"
        raise bad_request(f"`{where}` must be a string.", where, "invalid_value")


MAX_TOKEN_ID = 2**31 - 1
"""Ids travel as 32 bits; what is no token of the model's the engine refuses."""


def check_prompt(prompt: Any) -> None:
    """A text, token ids, or a list of either."""
    if prompt is None:
        raise bad_request("`prompt` is required.", "prompt", "invalid_value")
    if not isinstance(prompt, (str, list)):
        raise bad_request("`prompt` must be a string or an array.", "prompt", "invalid_value")
    if not prompt:
        raise bad_request("`prompt` must not be empty.", "prompt", "invalid_value")
    if isinstance(prompt, list):
        for index, part in enumerate(prompt):
            inner = part if isinstance(part, list) else [part]
            if not inner or not all(isinstance(item, str) or _is_token_id(item) for item in inner):
                message = f"`prompt[{index}]` must be text, a token id or token ids (from 0 to {MAX_TOKEN_ID})."
                raise bad_request(message, f"prompt[{index}]", "invalid_value")


def prompt_count(prompt: Any) -> int:
    """How many prompts a completion has: token ids in a row are one."""
    return len(prompt) if isinstance(prompt, list) and not all(isinstance(item, int) for item in prompt) else 1


def check_tokens(tokens: Any) -> None:
    """Ids that are to be turned into text."""
    if not isinstance(tokens, list) or not all(map(_is_token_id, tokens)):
        message = f"`tokens` must be an array of token ids (from 0 to {MAX_TOKEN_ID})."
        raise bad_request(message, "tokens", "invalid_value")


def _is_token_id(item: Any) -> bool:
    return _fits("an integer", item) and 0 <= item <= MAX_TOKEN_ID


def _expected(endpoint: str, name: str) -> str:
    if name == "logprobs":
        return {CHAT: "true or false", COMPLETIONS: "an integer"}.get(endpoint, "")
    if name in _BOOLS:
        return "true or false"
    if name in _INTEGERS:
        return "an integer"
    if name in _NUMBERS:
        return "a number"
    return "an object" if name in _OBJECTS else ""


def _fits(kind: str, value: Any) -> bool:
    if kind == "true or false":
        return isinstance(value, bool)
    if kind == "an object":
        return isinstance(value, dict)
    if isinstance(value, bool):
        return False
    return isinstance(value, int) if kind == "an integer" else isinstance(value, (int, float))
