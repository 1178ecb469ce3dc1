"""Types and ranges of the fields every client sends, stricter than the engine's own classes.

Those turn "yes" into true and true into 1; a client that sends such has a fault it should hear of.
"""

from collections.abc import Mapping
from typing import Any

from serve_app.http.errors import bad_request

CHAT = "chat"
COMPLETIONS = "completions"
RESPONSES = "responses"
MESSAGES = "messages"

ROLES = ("system", "developer", "user", "assistant", "tool", "function")

_BOOLS = frozenset(
    {"stream", "echo", "parallel_tool_calls", "ignore_eos", "skip_special_tokens", "store", "background"}
)
_INTEGERS = frozenset(
    {
        *("max_tokens", "max_completion_tokens", "max_output_tokens", "max_tool_calls"),
        *("n", "seed", "top_logprobs", "top_k", "best_of"),
    }
)
_NUMBERS = frozenset({"temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty"})
_OBJECTS = frozenset({"metadata", "stream_options", "logit_bias"})
_RANGES: Mapping[str, tuple[float, float]] = {
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "best_of": (1, 20),
}


def check_fields(endpoint: str, fields: Mapping[str, Any]) -> None:
    """Raises ApiError 400 naming the field and what is allowed."""
    for name, value in fields.items():
        kind = _expected(endpoint, name)
        if kind and not _fits(kind, value):
            raise bad_request(f"`{name}` must be {kind}.", name, "invalid_value")
        if name in _RANGES and not _RANGES[name][0] <= value <= _RANGES[name][1]:
            low, high = _RANGES[name]
            raise bad_request(f"`{name}` must be from {low:g} to {high:g}.", name, "invalid_value")


def check_role(role: Any, path: str) -> None:
    if not isinstance(role, str) or role not in ROLES:
        raise bad_request(f"`{path}.role` must be one of {', '.join(ROLES)}.", f"{path}.role", "invalid_value")


def check_tool_calls(calls: Any, path: str) -> None:
    """Calls of an assistant's message: id, and a function with a name and arguments as text."""
    if not isinstance(calls, list):
        raise bad_request(f"`{path}` must be an array.", path, "invalid_value")
    for index, call in enumerate(calls):
        where = f"{path}[{index}]"
        if not isinstance(call, dict):
            raise bad_request(f"`{where}` must be an object.", where, "invalid_value")
        if not isinstance(call.get("id"), str):
            raise bad_request(f"`{where}.id` must be a string.", f"{where}.id", "invalid_value")
        function = call.get("function")
        if not isinstance(function, dict):
            raise bad_request(f"`{where}.function` must be an object.", f"{where}.function", "invalid_value")
        for name in ("name", "arguments"):
            if not isinstance(function.get(name), str):
                field = f"{where}.function.{name}"
                raise bad_request(f"`{field}` must be a string.", field, "invalid_value")


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


def _is_token_id(item: Any) -> bool:
    return _fits("an integer", item) and 0 <= item <= MAX_TOKEN_ID


def _expected(endpoint: str, name: str) -> str:
    if name == "logprobs":
        return "true or false" if endpoint == CHAT else "an integer"
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
