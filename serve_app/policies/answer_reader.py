"""The whole text of an answer's first choice as the client got it, for policies that build on it."""

from __future__ import annotations

from typing import Any

import msgspec

from runtime_actor.policies.base import MAX_ANSWER_CHARS
from serve_app.streaming import events

END_OF_RESPONSE = "response.completed"
TEXT_OF_RESPONSE = "response.output_text.delta"


class _Delta(msgspec.Struct):
    content: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    """A chunk of chat completions or completions, or an event of Responses."""

    choices: list[_Choice] = []
    type: str = ""
    delta: Any = None


_decoder: msgspec.json.Decoder[_Chunk] = msgspec.json.Decoder(_Chunk)


class AnswerReader:
    """`text` is None until the answer has come to its end, and for one with tool calls, or one that is too long."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._chars = 0
        self._is_whole = False
        self._is_plain = True

    @property
    def text(self) -> str | None:
        return "".join(self._parts) if self._is_whole and self._is_plain else None

    def feed(self, event: str) -> None:
        """One piece of a stream."""
        if not self._is_plain:
            return
        for payload in events(event):
            try:
                self._chunk(_decoder.decode(payload))
            except msgspec.MsgspecError:
                continue

    def _chunk(self, chunk: _Chunk) -> None:
        if chunk.type == TEXT_OF_RESPONSE:
            self._add(chunk.delta)
        elif chunk.type == END_OF_RESPONSE:
            self._is_whole = True
        elif chunk.type.startswith("response.function_call"):
            self._is_plain = False
        for choice in chunk.choices:
            if choice.index != 0:
                continue
            self._add(choice.text)
            if choice.delta is not None:
                self._add(choice.delta.content)
                self._is_plain = self._is_plain and not choice.delta.tool_calls
            self._is_whole = self._is_whole or choice.finish_reason is not None

    def whole(self, body: dict[str, Any]) -> None:
        """An answer of any route that isn't a stream."""
        choices = body.get("choices")
        if isinstance(choices, list):
            for choice in choices[:1]:
                message = choice.get("message") or {}
                self._add(message.get("content"))
                self._add(choice.get("text"))
                self._is_plain = self._is_plain and not message.get("tool_calls")
        else:
            self._parts_of(body)
            for item in body.get("output") or ():
                self._is_plain = self._is_plain and item.get("type") != "function_call"
                self._parts_of(item)
        self._is_whole = True

    def _parts_of(self, holder: dict[str, Any]) -> None:
        """Messages have their parts at the top, Responses in the items of their output."""
        content = holder.get("content") if holder.get("type") == "message" else None
        for part in content if isinstance(content, list) else ():
            self._add(part.get("text"))
            self._is_plain = self._is_plain and part.get("type") != "tool_use"

    def _add(self, text: Any) -> None:
        if not isinstance(text, str) or not text:
            return
        self._chars += len(text)
        self._is_plain = self._is_plain and self._chars <= MAX_ANSWER_CHARS
        if self._is_plain:
            self._parts.append(text)
        else:
            self._parts.clear()
