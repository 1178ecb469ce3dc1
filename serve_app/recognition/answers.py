"""The beginning of an answer's text, as the client saw it, for identity alone (see `quotes.py`)."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from serve_app.recognition.quotes import MAX_TEXT_CHARS
from serve_app.streaming import events


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


_decoder: msgspec.json.Decoder[_Chunk] = msgspec.json.Decoder(_Chunk)


class AnswerText:
    """Text of an answer's first choice, up to `MAX_TEXT_CHARS`; the others are told apart by nobody."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._chars = 0

    def __str__(self) -> str:
        return "".join(self._parts)

    def add(self, text: Any) -> None:
        if isinstance(text, str) and text and self._chars < MAX_TEXT_CHARS:
            self._parts.append(text[: MAX_TEXT_CHARS - self._chars])
            self._chars += len(self._parts[-1])

    def add_response(self, content: Any) -> None:
        """A chat completion as a plain object; anything else adds nothing."""
        choices = content.get("choices") if isinstance(content, dict) else None
        message = choices[0].get("message") if isinstance(choices, list) and choices else None
        if isinstance(message, dict):
            self.add(message.get("content"))

    async def heard(self, stream: AsyncIterator[str]) -> AsyncIterator[str]:
        """The same events, with their text remembered on the way."""
        async for event in stream:
            yield event
            if self._chars < MAX_TEXT_CHARS:
                for payload in events(event):
                    self._add_chunk(payload)

    def _add_chunk(self, payload: str) -> None:
        try:
            chunk = _decoder.decode(payload)
        except msgspec.MsgspecError:
            return
        for choice in chunk.choices:
            if choice.index == 0 and choice.delta is not None:
                self.add(choice.delta.content)
