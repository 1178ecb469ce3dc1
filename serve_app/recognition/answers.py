"""The beginning of an answer's text, as the client saw it, for identity alone (see `quotes.py`)."""

from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec

from serve_app.recognition.quotes import MAX_TEXT_CHARS
from serve_app.recognition.turns import arguments_of, turn_of
from serve_app.streaming import events


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None


class _Item(msgspec.Struct):
    type: str = ""
    name: str | None = None


class _Chunk(msgspec.Struct):
    """A chat completion's chunk, or an event of Responses."""

    choices: list[_Choice] = []
    type: str = ""
    delta: str | None = None
    item: _Item | None = None


_decoder: msgspec.json.Decoder[_Chunk] = msgspec.json.Decoder(_Chunk)

_TEXT_EVENT = "response.output_text.delta"
_ARGUMENTS_EVENT = "response.function_call_arguments.delta"
_ITEM_EVENT = "response.output_item.added"


class AnswerText:
    """Text of an answer's first choice, up to `MAX_TEXT_CHARS`; of the others, together as much, their turns alone.

    The arguments of its tool calls are part of it: a manager hands its task to another agent in one.
    """

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._chars = 0
        self._turn: list[str] = []
        self._turn_chars = 0
        self._others: dict[int, list[str]] = {}
        self._other_chars = 0
        self.streamed_events = 0
        """Events of a stream with content: about the tokens that were made."""

    def __str__(self) -> str:
        return "".join(self._parts)

    @property
    def turn(self) -> int | None:
        """See `turns.turn_of`."""
        return turn_of(self._turn) if self._turn_chars < MAX_TEXT_CHARS else None

    @property
    def other_turns(self) -> tuple[int, ...]:
        """Of the choices beside the first: a client may go on from any."""
        if self._other_chars >= MAX_TEXT_CHARS:
            return ()
        turns = (turn_of(self._others[index]) for index in sorted(self._others))
        return tuple(turn for turn in turns if turn is not None)

    def add(self, text: Any) -> None:
        if isinstance(text, str):
            self._add_to_turn(text)
            self._add_line(text)

    def add_name(self, name: Any) -> None:
        """Of a tool that is called: no text of the answer's, but part of the turn."""
        if isinstance(name, str):
            self._add_to_turn(name)

    def add_arguments(self, arguments: Any) -> None:
        """JSON or a piece of it: each string in it is a line of its own."""
        text = arguments_of(arguments)
        self._add_to_turn(text)
        self._add_line(text.replace('"', "\n").replace("\\n", "\n"))

    def _add_line(self, text: str) -> None:
        if text and self._chars < MAX_TEXT_CHARS:
            self._parts.append(text[: MAX_TEXT_CHARS - self._chars])
            self._chars += len(self._parts[-1])

    def _add_to_turn(self, text: str) -> None:
        if self._turn_chars < MAX_TEXT_CHARS:
            self._turn.append(text)
            self._turn_chars += len(text)

    def _add_choice(self, index: int, content: Any, calls: Iterable[tuple[Any, Any]]) -> None:
        """Of the choice of that number: its text, names and arguments of its calls."""
        if index == 0:
            self.add(content)
            for name, arguments in calls:
                self.add_name(name)
                self.add_arguments(arguments)
            return
        pieces = [content, *(piece for name, arguments in calls for piece in (name, arguments_of(arguments)))]
        for piece in pieces:
            if isinstance(piece, str) and self._other_chars < MAX_TEXT_CHARS:
                self._others.setdefault(index, []).append(piece)
                self._other_chars += len(piece)

    def add_response(self, content: Any) -> None:
        """An answer of any route as a plain object; anything else adds nothing."""
        if not isinstance(content, dict):
            return
        choices = content.get("choices")
        for index, choice in enumerate(choices if isinstance(choices, list) else ()):
            message = choice.get("message")
            if isinstance(message, dict):
                called = [call["function"] for call in message.get("tool_calls") or ()]
                calls = [(function.get("name"), function["arguments"]) for function in called]
                self._add_choice(index, message.get("content"), calls)
        # Messages have their parts at the top, Responses in the items of their output.
        for holder in (content, *(content.get("output") or ())):
            if holder.get("type") == "function_call":
                self.add_name(holder.get("name"))
            self.add_arguments(holder.get("arguments"))
            parts = holder.get("content") if holder.get("type") == "message" else None
            for part in parts if isinstance(parts, list) else ():
                self.add(part.get("text"))
                self.add_name(part.get("name"))
                self.add_arguments(part.get("input"))

    async def heard(self, stream: AsyncIterator[str]) -> AsyncIterator[str]:
        """The same events, with their text remembered on the way."""
        async for event in stream:
            self.streamed_events += event.count('"delta":') + event.count('"text":')
            yield event
            if self._chars < MAX_TEXT_CHARS or self._turn_chars < MAX_TEXT_CHARS:
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
        elif chunk.type == _ITEM_EVENT and chunk.item is not None:
            self.add_name(chunk.item.name)
        for choice in chunk.choices:
            if choice.delta is not None:
                called = [call.function for call in choice.delta.tool_calls or () if call.function is not None]
                calls = [(function.name, function.arguments) for function in called]
                self._add_choice(choice.index, choice.delta.content, calls)
