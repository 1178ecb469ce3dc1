"""Items of a Responses request's input: made plain where vLLM would stumble, else refused by their own path."""

from collections.abc import Callable
from typing import Any

from serve_app.http.errors import bad_request

KINDS = ("message", "function_call", "function_call_output", "reasoning")
"""vLLM makes no message of others; a reference (`item_reference`) would need a store."""

_REQUIRED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
}
ROLES = ("user", "assistant", "system", "developer")


def plain_items(items: list[Any], check_parts: Callable[[list[Any], str], None]) -> list[Any]:
    """Without nulls, an assistant's turn as one text. `check_parts` gets parts of a content under chat's names, and
    their path. Raises ApiError 400."""
    return [
        _plain(item, f"input[{index}]", check_parts) if isinstance(item, dict) else item
        for index, item in enumerate(items)
    ]


def _plain(item: dict[str, Any], path: str, check_parts: Callable[[list[Any], str], None]) -> dict[str, Any]:
    kept = {name: value for name, value in item.items() if value is not None}
    kind = kept.get("type", "message")
    if not isinstance(kind, str) or kind not in KINDS:
        raise bad_request(f"`{path}.type` must be one of {', '.join(KINDS)}.", f"{path}.type", "unsupported_value")
    for name in _REQUIRED.get(kind, ()):
        if name not in kept:
            raise bad_request(f"`{path}.{name}` is required.", f"{path}.{name}", "invalid_value")
    if kind == "message" and kept["role"] not in ROLES:
        raise bad_request(f"`{path}.role` must be one of {', '.join(ROLES)}.", f"{path}.role", "invalid_value")
    field = {"message": "content", "function_call_output": "output"}.get(kind, "")
    if isinstance(kept.get(field), list):
        check_parts([_as_chat(part) for part in kept[field]], f"{path}.{field}")
    return _whole_answer(kept, path) if kept.get("role") == "assistant" else kept


def _as_chat(part: Any) -> Any:
    return {**part, "type": "text"} if isinstance(part, dict) and part.get("type") == "output_text" else part


def _whole_answer(item: dict[str, Any], path: str) -> dict[str, Any]:
    """Of a turn in several parts vLLM reads the first alone, and of a refusal nothing: all of their text in one. A turn
    that isn't the engine's own, which has an id, may have text alone."""
    parts = item.get("content")
    is_own = "id" in item
    if not isinstance(parts, list) or not parts or (is_own and len(parts) == 1 and not _is_refusal(parts[0])):
        return item
    texts = [_text(part) for part in parts]
    if None in texts:
        message = f"`{path}.content`: an assistant's turn must have text alone."
        raise bad_request(message, f"{path}.content", "unsupported_content")
    text = "".join(filter(None, texts))
    if not is_own:
        return {**item, "content": text}
    first = {"type": "output_text", "annotations": []} if _is_refusal(parts[0]) else parts[0]
    return {**item, "content": [{**first, "text": text}]}


def _is_refusal(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "refusal"


def _text(part: Any) -> str | None:
    text = part.get("refusal" if _is_refusal(part) else "text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else None
