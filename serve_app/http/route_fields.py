"""Fields that a route doesn't have and another has, or once had: ignored, they would change the answer in silence."""

from collections.abc import Mapping
from typing import Any

from serve_app.http.errors import bad_request
from serve_app.http.field_checks import CHAT, COMPLETIONS, MESSAGES, RESPONSES

_OLD_CONSTRAINTS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_decoding_backend")
_ANTHROPIC_FORMATS = ("output_config", "output_format")
"""The second is the name that Anthropic's beta had."""

_NOWHERE = {
    **dict.fromkeys(_OLD_CONSTRAINTS, "structured_outputs"),
    "functions": "tools",
    "function_call": "tool_choice",
    "best_of": "n",
    "audio": "",
    "web_search_options": "",
    "mcp_servers": "",
}
"""Name -> what to use instead; empty if nothing here does it."""

_CHAT = {
    **_NOWHERE,
    **dict.fromkeys(_ANTHROPIC_FORMATS, "response_format"),
    "max_output_tokens": "max_completion_tokens",
    "stop_sequences": "stop",
    "system": "messages",
    "instructions": "messages",
}
_COMPLETIONS = {
    **_NOWHERE,
    **dict.fromkeys(_ANTHROPIC_FORMATS, "response_format"),
    **dict.fromkeys(("max_completion_tokens", "max_output_tokens"), "max_tokens"),
    **dict.fromkeys(("messages", "input", "system", "instructions"), "prompt"),
    "stop_sequences": "stop",
    "top_logprobs": "logprobs",
    "tools": "",
}
_RESPONSES = {
    **_NOWHERE,
    **dict.fromkeys(_ANTHROPIC_FORMATS, "text.format"),
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), "max_output_tokens"),
    **dict.fromkeys(("n", "best_of", "echo", "min_p", "min_tokens", "length_penalty"), ""),
    **dict.fromkeys(("stop_token_ids", "bad_words", "allowed_token_ids", "prompt_logprobs"), ""),
    "messages": "input",
    "system": "instructions",
    "response_format": "text.format",
    "stop_sequences": "stop",
    "logprobs": "top_logprobs",
    "reasoning_effort": "reasoning.effort",
}
_MESSAGES = {
    **_NOWHERE,
    **dict.fromkeys(("max_completion_tokens", "max_output_tokens"), "max_tokens"),
    **dict.fromkeys(("n", "best_of", "echo", "logprobs", "top_logprobs", "prompt_logprobs", "container"), ""),
    "input": "messages",
    "instructions": "system",
    **dict.fromkeys(("response_format", "output_format"), "output_config.format"),
    "stop": "stop_sequences",
    "reasoning_effort": "output_config.effort",
}
_FOREIGN: Mapping[str, Mapping[str, str]] = {
    CHAT: _CHAT,
    COMPLETIONS: _COMPLETIONS,
    RESPONSES: _RESPONSES,
    MESSAGES: _MESSAGES,
}
_ONE_IS_NONE = ("n", "best_of", "length_penalty")
"""Of these 1 asks for nothing."""


def check_own(endpoint: str, fields: Mapping[str, Any]) -> None:
    """Raises ApiError 400 that says what to use instead. A value that asks for nothing is let through."""
    foreign = _FOREIGN[endpoint]
    for name, value in fields.items():
        if name not in foreign or not value or (name in _ONE_IS_NONE and value == 1):
            continue
        instead = f"; use `{foreign[name]}`" if foreign[name] else ""
        raise bad_request(f"`{name}` is not supported on this route{instead}.", name, "unsupported_value")
    if endpoint == CHAT and any(kind != "text" for kind in _listed(fields.get("modalities"))):
        raise bad_request('`modalities` must be ["text"].', "modalities", "unsupported_value")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
