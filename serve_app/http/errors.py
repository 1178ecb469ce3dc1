"""Every error a client meets, in OpenAI's shape; `param` names a field and never holds the caller's content."""

import json
import re
from typing import Any

from runtime_actor.errors import AgentRuntimeError
from serve_app.http.unions import is_arm, most_telling

MAX_MESSAGE_CHARS = 600
"""An engine's message may quote the request; longer ones are cut."""

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
}

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"

_FIELD = re.compile(r"^[A-Za-z_][A-Za-z0-9_\-]{0,63}$")
_CONTEXT = re.compile(r"maximum context length|longer than the maximum model length|max_model_len", re.IGNORECASE)
_SUBJECT = re.compile(r"([a-z]+(?:_[a-z]+)+|stop|n) (?:must|cannot) ")
_VALUE_TAIL = re.compile(r" \(parameter=.*\Z", re.DOTALL)


class ApiError(AgentRuntimeError):
    """Raised when a request ends with an error that the client must see."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message[:MAX_MESSAGE_CHARS]
        self.param = param
        self.code = code
        self.headers = headers or {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.status, self.message, self.param, self.code, self.headers)

    @property
    def type(self) -> str:
        return _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def event(self) -> str:
        """The same as an event of a stream that has already begun."""
        return f"data: {json.dumps(self.body(), ensure_ascii=False)}\n\n"


def _rebuild(status: int, message: str, param: str | None, code: str | None, headers: dict[str, str]) -> ApiError:
    return ApiError(status, message, param=param, code=code, headers=headers)


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def model_not_found(model: str) -> ApiError:
    shown = model if len(model) <= 128 and model.isprintable() else "the one named"
    return ApiError(404, f"The model `{shown}` does not exist.", param="model", code="model_not_found")


def context_length(usable_tokens: int, model_tokens: int, detail: str = "") -> ApiError:
    """`usable_tokens` counts prompt and answer together."""
    reason = (
        f" (the model's own limit is {model_tokens}, but the KV cache holds no more)"
        if usable_tokens < model_tokens
        else ""
    )
    message = f"This server's usable context is {usable_tokens} tokens{reason}."
    return bad_request(f"{message} {detail}".strip(), param="messages", code=CONTEXT_LENGTH_EXCEEDED)


def overloaded(retry_after_s: int) -> ApiError:
    return ApiError(
        429,
        "Too many requests are in flight; retry later.",
        code="overloaded",
        headers={"retry-after": str(retry_after_s)},
    )


def quota_used_up(name: str, limit: int, retry_after_s: int, unit: str = "") -> ApiError:
    amount = f"{limit} {unit}".strip()
    return ApiError(
        429,
        f"Your quota `{name}` of {amount} is used up; retry after {retry_after_s} s.",
        code="rate_limit_exceeded",
        headers={"retry-after": str(retry_after_s)},
    )


def unavailable(message: str, retry_after_s: int = 1) -> ApiError:
    return ApiError(503, message, code="unavailable", headers={"retry-after": str(retry_after_s)})


def timed_out(limit_s: float) -> ApiError:
    """The header is read by OpenAI's and Anthropic's SDKs: another try of a whole time limit would end alike."""
    message = f"The request did not finish within {limit_s:g} s."
    return ApiError(504, message, code="timeout", headers={"x-should-retry": "false"})


def field_path(location: tuple[Any, ...]) -> str | None:
    """A pydantic location as `messages[2].content`; type tags and union arms are left out.

    Keys that a client chose freely (of `vllm_xargs`, say) don't look like field names and end the path.
    """
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif is_arm(part):
            continue
        elif not _FIELD.match(part):
            break
        else:
            path += f".{part}" if path else part
    return path or None


_PYDANTIC_REASONS = {
    "missing": "is required",
    "list_type": "must be an array",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "int_parsing": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "unknown_tag": "is none of those that are supported",
}


def from_pydantic(errors: list[dict[str, Any]], where: tuple[str | int, ...] = ()) -> ApiError:
    """The most telling of pydantic's errors, without the input that caused it. `where`: where that was read."""
    telling = most_telling(errors)
    first = telling[0]
    cause = (first.get("ctx") or {}).get("error")
    path = field_path((*where, *first.get("loc", ())))
    if cause is not None:
        return bad_request(
            _without_value(str(cause)), param=getattr(cause, "parameter", None) or path, code="invalid_value"
        )
    reasons = list(dict.fromkeys(_PYDANTIC_REASONS.get(error["type"], "") for error in telling))
    reason = " or ".join([reasons[0], *(reason.removeprefix("must be ") for reason in reasons[1:] if reason)])
    if not reasons[0]:
        reason = "is not valid: " + str(first["msg"])
    return bad_request(f"`{path or 'body'}` {reason}.", param=path, code="invalid_value")


def _without_value(message: str) -> str:
    """vLLM appends `(parameter=..., value=...)` to its messages: the value is the caller's."""
    return _VALUE_TAIL.sub("", message)


def is_context_error(message: str) -> bool:
    return bool(_CONTEXT.search(message))


def from_engine(error: dict[str, Any], usable_tokens: int, model_tokens: int) -> ApiError:
    """Translate the engine's `{"message", "type", "param", "code"}`.

    Client errors keep their status and message; server errors are told without inner details.
    """
    code = error.get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else 500
    message = _without_value(str(error.get("message") or "The engine refused the request."))
    if status < 500 and is_context_error(message):
        return context_length(usable_tokens, model_tokens, _numbers_of(message))
    if status >= 500 and status != 503:
        return ApiError(500, "The engine failed while it ran this request.", code="engine_error")
    param = error.get("param")
    known = param if isinstance(param, str) and _looks_like_path(param) else _named_in(message)
    return ApiError(status, message, param=known, code="invalid_value" if status < 500 else "unavailable")


def _named_in(message: str) -> str | None:
    """The engine says of some fields what is wrong, and names them in its text alone."""
    named = _SUBJECT.match(message)
    return named.group(1) if named else None


def _looks_like_path(param: str) -> bool:
    return len(param) <= 128 and re.fullmatch(r"[A-Za-z0-9_.\[\]\-]+", param) is not None


def _numbers_of(message: str) -> str:
    found = re.search(r"(?:contains|has|prompt is)[^.]{0,40}?(\d+)[^.]{0,20}tokens", message)
    return f"The prompt has at least {found.group(1)} tokens." if found else ""
