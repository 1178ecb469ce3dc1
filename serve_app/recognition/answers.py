"""The beginning of an answer's text, as the client saw it, for identity alone (see `quotes.py`)."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from serve_app.recognition.quotes import MAX_TEXT_CHARS
from serve_app.streaming import events


class _Function(msgspec.Struct):
    arguments: str | None = None


class _Call(msgspec.Struct):
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None


class _Chunk(msgspec.Struct):
    """A chat completion's chunk, or an event of Responses."""

    choices: list[_Choice] = []
    type: str = ""
    delta: str | None = None


_decoder: msgspec.json.Decoder[_Chunk] = msgspec.json.Decoder(_Chunk)

_TEXT_EVENT = "response.output_text.delta"
_ARGUMENTS_EVENT = "response.function_call_arguments.delta"


class AnswerText:
    """Text of an answer's first choice, up to `MAX_TEXT_CHARS`; the others are told apart by nobody.

    The arguments of its tool calls are part of it: a manager hands its task to another agent in one.
    """

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._chars = 0
        self.streamed_events = 0
        """Events of a stream with content: about the tokens that were made."""

    def __str__(self) -> str:
        return "".join(self._parts)

    def add(self, text: Any) -> None:
        if isinstance(text, str) and text and self._chars < MAX_TEXT_CHARS:
            self._parts.append(text[: MAX_TEXT_CHARS - self._chars])
            self._chars += len(self._parts[-1])

    def add_arguments(self, arguments: Any) -> None:
        """JSON or a piece of it: each string in it is a line of its own."""
        if isinstance(arguments, dict):
            arguments = msgspec.json.encode(arguments).decode()
        if isinstance(arguments, str):
            self.add(arguments.replace('"', "\n").replace("\\n", "\n"))

    def add_response(self, content: Any) -> None:
        """An answer of any route as a plain object; anything else adds nothing."""
        if not isinstance(content, dict):
            return
        choices = content.get("choices")
        message = choices[0].get("message") if isinstance(choices, list) and choices else None
        if isinstance(message, dict):
            self.add(message.get("content"))
            for call in message.get("tool_calls") or ():
                self.add_arguments(call["function"]["arguments"])
        # Messages have their parts at the top, Responses in the items of their output.
        for holder in (content, *(content.get("output") or ())):
            self.add_arguments(holder.get("arguments"))
            parts = holder.get("content") if holder.get("type") == "message" else None
            for part in parts if isinstance(parts, list) else ():
                self.add(part.get("text"))
                self.add_arguments(part.get("input"))

    async def heard(self, stream: AsyncIterator[str]) -> AsyncIterator[str]:
        """The same events, with their text remembered on the way."""
        async for event in stream:
            self.streamed_events += event.count('"delta":') + event.count('"text":')
            yield event
            if self._chars < MAX_TEXT_CHARS:
                for payload in events(event):
                    self._add_chunk(payload)

    def _add_chunk(self, payload: str) -> None:
        try:
            chunk = _decoder.decode(payload)
        except msgspec.MsgspecError:
            return
        if chunk.type == _TEXT_EVENT:
            self.add(chunk.delta)
        elif chunk.type == _ARGUMENTS_EVENT:
            self.add_arguments(chunk.delta)
        for choice in chunk.choices:
            if choice.index == 0 and choice.delta is not None:
                self.add(choice.delta.content)
                for call in choice.delta.tool_calls or ():
                    self.add_arguments(call.function.arguments if call.function is not None else None)
