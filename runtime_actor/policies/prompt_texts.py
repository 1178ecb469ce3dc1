"""Every text of a request that a model will read (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Change = Callable[[str], str]

TEXT_KEYS = frozenset(
    {"content", "text", "refusal", "reasoning", "reasoning_content", "arguments", "description", "output"}
)
"""Of messages and items of an input; what else stands there is a name or data."""
NAME_KEYS = frozenset({"name", "type", "role", "id", "call_id", "tool_call_id", "format", "$ref", "required"})
"""What stands at them refers to something: it is read and never changed. All other strings of tools, documents and a
template's own arguments are text."""
USUAL_NAMES = frozenset(
    {
        *("role", "content", "system", "developer", "user", "assistant", "tool", "type", "text", "input_text"),
        *("function", "name", "description", "parameters", "arguments", "properties", "required", "object", "string"),
        *("integer", "number", "boolean", "array", "items", "enum", "tool_calls", "tool_call_id", "id", "strict"),
        *("message", "output_text", "function_call", "function_call_output", "call_id", "output", "refusal"),
    }
)
"""Of the form itself: nobody said them."""
MAX_DEPTH = 256
"""As deep as a body may ever be (`gateway.max_json_depth`)."""


@dataclass(slots=True)
class Prompt:
    """What a model will read of a request. `names`: of tools, parameters, speakers; each once, without USUAL_NAMES."""

    texts: list[str] = field(default_factory=list)
    names: dict[str, None] = field(default_factory=dict)

    def _text(self, text: str) -> str:
        self.texts.append(text)
        return text

    def _name(self, name: str) -> None:
        if name not in USUAL_NAMES:
            self.names[name] = None


def read(fields: Mapping[str, Any]) -> Prompt:
    """Messages with their parts and tool calls, completion prompts, tools with the schemas of their parameters; of
    Responses the instructions and the input's items; documents and arguments of a chat template."""
    found = Prompt()
    _Reader(found._text, found._name).fields(fields)
    return found


def mapped_texts(fields: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """A copy with each text changed, and no name; what has no text is shared with the original."""
    return _Reader(change, lambda name: None).fields(fields)


def unreadable(fields: Mapping[str, Any]) -> bool:
    """Whether the prompt is token ids, or vectors."""
    prompt = fields.get("prompt")
    has_ids = isinstance(prompt, list) and any(not isinstance(item, str) for item in prompt)
    return has_ids or bool(fields.get("prompt_embeds"))


class _Reader:
    """Calls `change` with each text, in its place the answer, and `note` with each name."""

    def __init__(self, change: Change, note: Callable[[str], None]) -> None:
        self._change = change
        self._note = note

    def fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        changed = dict(fields)
        for name in ("messages", "input"):
            if isinstance(fields.get(name), list):
                changed[name] = [self._said(item, MAX_DEPTH) for item in fields[name]]
        for name in ("tools", "functions", "documents", "chat_template_kwargs"):
            if isinstance(fields.get(name), (list, Mapping)):
                changed[name] = self._told(fields[name], MAX_DEPTH)
        for name in ("instructions", "input", "prompt", "suffix", "chat_template"):
            if isinstance(fields.get(name), str):
                changed[name] = self._change(fields[name])
        prompt = fields.get("prompt")
        if isinstance(prompt, list):
            changed["prompt"] = [self._change(item) if isinstance(item, str) else item for item in prompt]
        return changed

    def _said(self, value: Any, depth: int) -> Any:
        """Of a message or an item."""
        if not depth:
            return value
        if isinstance(value, list):
            return [self._said(item, depth - 1) for item in value]
        if not isinstance(value, Mapping):
            return value
        return {name: self._part(name, item, depth - 1) for name, item in value.items()}

    def _part(self, name: str, value: Any, depth: int) -> Any:
        """A content may be a list of plain strings."""
        if isinstance(value, str):
            if name in TEXT_KEYS:
                return self._change(value)
            if name in NAME_KEYS:
                self._note(value)
            return value
        if isinstance(value, list) and name in TEXT_KEYS:
            return [self._change(item) if isinstance(item, str) else self._said(item, depth) for item in value]
        return self._said(value, depth)

    def _told(self, value: Any, depth: int) -> Any:
        """Of what a template writes as a whole: keys are read too."""
        if isinstance(value, str):
            return self._change(value)
        if not depth:
            return value
        if isinstance(value, list):
            return [self._told(item, depth - 1) for item in value]
        if not isinstance(value, Mapping):
            return value
        made = {}
        for name, item in value.items():
            self._note(name)
            made[name] = self._named(item) if name in NAME_KEYS else self._told(item, depth - 1)
        return made

    def _named(self, value: Any) -> Any:
        for name in value if isinstance(value, list) else (value,):
            if isinstance(name, str):
                self._note(name)
        return value if isinstance(value, (str, list)) else self._told(value, MAX_DEPTH)
