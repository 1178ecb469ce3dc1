"""Content blocks of Anthropic's Messages that vLLM's converter would drop or misread in silence, refused by name."""

from collections.abc import Iterable, Mapping
from typing import Any

from serve_app.http.errors import ApiError, bad_request

KINDS = ("text", "image", "tool_use", "tool_result", "thinking", "redacted_thinking")
IN_RESULTS = ("text", "image")


def check_blocks(fields: Mapping[str, Any], modalities: frozenset[str]) -> None:
    """Of `system` and `messages`. What isn't a list of objects is left to vLLM's own class. Raises ApiError 400."""
    for path, block in _objects(fields.get("system"), "system"):
        _check(block, path, ("text",), frozenset({"text"}))
    for where, message in _objects(fields.get("messages"), "messages"):
        for path, block in _objects(message.get("content"), f"{where}.content"):
            _check(block, path, KINDS, modalities)
            if block.get("type") == "tool_result":
                for inner, part in _objects(block.get("content"), f"{path}.content"):
                    _check(part, inner, IN_RESULTS, modalities)


def _objects(value: Any, path: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    for index, item in enumerate(value if isinstance(value, list) else ()):
        if isinstance(item, dict):
            yield f"{path}[{index}]", item


def _check(block: Mapping[str, Any], path: str, kinds: tuple[str, ...], modalities: frozenset[str]) -> None:
    kind = block.get("type")
    if kind not in kinds:
        raise _unsupported(path, f"must be one of {', '.join(kinds)}")
    if kind == "text" and not isinstance(block.get("text"), str):
        raise bad_request(f"`{path}.text` must be a string.", f"{path}.text", "invalid_value")
    if kind == "image" and "image" not in modalities:
        raise _unsupported(path, f"can't be an image; this model takes {', '.join(sorted(modalities))} only")
    if kind == "image" and not isinstance(block.get("source"), dict):
        raise bad_request(f"`{path}.source` must be an object.", f"{path}.source", "invalid_value")


def _unsupported(path: str, problem: str) -> ApiError:
    return bad_request(f"`{path}.type` {problem}.", f"{path}.type", "unsupported_content")
