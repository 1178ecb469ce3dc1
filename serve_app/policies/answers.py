"""An answer's text through the policies' filters, whole or as a stream of events.

Every text of a choice (content, reasoning, completion text, arguments of each tool call) has filters of its
own, so that what is held back of one never shows in another. Log probabilities and ids repeat the text token by
token: an answer that is filtered has none.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from runtime_actor.policies.guard import PolicyFailed
from runtime_actor.policies.host import HostedFilter, unjudged
from serve_app.http.errors import ApiError
from serve_app.policies.whole_texts import REPEATS, change_answer

TEXT_FIELDS = ("content", "reasoning_content", "reasoning", "refusal")
MAX_CHOICES = 128
MAX_TEXTS = 1024
"""Texts of one answer; beyond it the answer is ended, since nobody would have looked at the rest."""

Where = tuple[int, str, int]
"""(choice, field, number of the tool call)."""


class AnswerFilter:
    """The filters of one request. `make` gives a new set for each text."""

    def __init__(self, make: Callable[[], Sequence[HostedFilter]]) -> None:
        self._make = make
        self._texts: dict[Where, Sequence[HostedFilter]] = {}

    def content(self, body: dict[str, Any]) -> None:
        """Filter a whole answer in place. Raises ApiError 503 where a policy fails closed, or its form lets nobody
        look at it."""
        try:
            for choice in _choices(body):
                self._choice(choice, choice.get("message"), ends=True)
            if "choices" not in body:
                # Of Messages, whose streams pass here as chat completions and whose whole answers don't.
                change_answer(body, lambda text: passed(self._make(), text, ends=True))
        except (PolicyFailed, RecursionError) as error:
            raise failed_closed(error) from None

    async def stream(self, events: AsyncIterator[str]) -> AsyncIterator[str]:
        """Events as they may go out. Raises ApiError 503 where a policy fails closed."""
        try:
            async for event in events:
                # Not `splitlines`: a model's text may hold other separators than a stream's own.
                yield "\n".join(self._event(line) for line in event.split("\n"))
        except (PolicyFailed, ValueError, RecursionError) as error:
            raise failed_closed(error) from None

    def _event(self, line: str) -> str:
        if not line.startswith("data: {"):
            return line
        body = json.loads(line[6:])
        for choice in _choices(body):
            self._choice(choice, choice.get("delta"), ends=choice.get("finish_reason") is not None)
        return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}"

    def _choice(self, choice: dict[str, Any], part: Any, ends: bool) -> None:
        index = int(choice.get("index") or 0)
        for name in REPEATS:
            if choice.get(name) is not None:
                choice[name] = None
        for holder, name, where in _texts(index, choice, part):
            holder[name] = self._feed(where, holder[name])
        if ends:
            self._end(index, choice, part)

    def _feed(self, where: Where, text: str) -> str:
        filters = self._texts.get(where)
        if filters is None:
            if len(self._texts) >= MAX_TEXTS:
                raise PolicyFailed("the answer has too many texts")
            filters = self._texts[where] = self._make()
        return passed(filters, text)

    def _end(self, index: int, choice: dict[str, Any], part: Any) -> None:
        """What is held back goes out with the event that ends the choice."""
        for where in [where for where in self._texts if where[0] == index]:
            text = passed(self._texts.pop(where), "", ends=True)
            if text:
                _append(choice, part, where, text)


def passed(filters: Sequence[HostedFilter], text: str, ends: bool = False) -> str:
    """What the filters, one after the other, let through; at the end also what each held back."""
    for one in filters:
        text = one.feed(text) if text else text
        if ends:
            text += one.end()
    return text


def failed_closed(error: Exception) -> ApiError:
    """Of a policy that can't judge, or (anything else) of an answer that nobody could."""
    refusal = unjudged(error.policy if isinstance(error, PolicyFailed) else None)
    return ApiError(refusal.status, refusal.message, code=refusal.code, headers={"retry-after": "1"})


def _choices(body: Any) -> Iterator[dict[str, Any]]:
    choices = body.get("choices") if isinstance(body, dict) else None
    yield from (choice for choice in (choices or [])[:MAX_CHOICES] if isinstance(choice, dict))


def _texts(index: int, choice: dict[str, Any], part: Any) -> Iterator[tuple[dict[str, Any], str, Where]]:
    """(where it is, its name there, which text it belongs to) of everything that a model wrote."""
    if isinstance(choice.get("text"), str):
        yield choice, "text", (index, "text", 0)
    if not isinstance(part, dict):
        return
    for name in TEXT_FIELDS:
        if isinstance(part.get(name), str):
            yield part, name, (index, name, 0)
    for place, call in enumerate(part.get("tool_calls") or ()):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            yield function, "arguments", (index, "arguments", int(call.get("index") or place))


def _append(choice: dict[str, Any], part: Any, where: Where, text: str) -> None:
    _, name, number = where
    if name == "text":
        choice["text"] = (choice.get("text") or "") + text
        return
    if not isinstance(part, dict):
        part = choice["delta"] = {}
    if name != "arguments":
        part[name] = (part.get(name) or "") + text
        return
    for place, call in enumerate(part.get("tool_calls") or ()):
        if int(call.get("index") or place) == number:
            call["function"]["arguments"] += text
            return
    part.setdefault("tool_calls", []).append({"index": number, "function": {"arguments": text}})
