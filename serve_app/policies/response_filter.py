"""A stream of Responses through the policies' filters.

It says each text twice and more: in pieces, whole when it is done, and again in its item and in the response. The
pieces are filtered as they pass; what is whole is replaced by what became of the pieces.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from runtime_actor.policies.guard import PolicyFailed
from runtime_actor.policies.host import HostedFilter
from serve_app.policies.answers import MAX_TEXTS, failed_closed, passed
from serve_app.policies.whole_texts import TEXT_KEYS, change_answer, change_item

Where = tuple[str, Any, Any, Any]
"""(kind, item, part, part of the summary) of one text."""
DELTA, DONE = ".delta", ".done"


class _Text:
    """One text: its filters, what came of it, and what went out."""

    def __init__(self, filters: Sequence[HostedFilter]) -> None:
        self.filters = filters
        self.came: list[str] = []
        self.went: list[str] = []


class ResponseFilter:
    """The filters of one request. `make` gives a new set for each text."""

    def __init__(self, make: Callable[[], Sequence[HostedFilter]]) -> None:
        self._make = make
        self._texts: dict[Where, _Text] = {}
        self._known: dict[str, str] = {}
        """What came whole -> what goes out for it."""

    def content(self, body: dict[str, Any]) -> None:
        """Filter a whole answer in place. Raises ApiError 503 where a policy fails closed."""
        try:
            change_answer(body, self._whole)
        except (PolicyFailed, RecursionError) as error:
            raise failed_closed(error) from None

    async def stream(self, events: AsyncIterator[str]) -> AsyncIterator[str]:
        """Events as they may go out. Raises ApiError 503 where a policy fails closed."""
        try:
            async for event in events:
                yield "".join(self._block(block) for block in event.split("\n\n") if block)
        except (PolicyFailed, ValueError, RecursionError) as error:
            raise failed_closed(error) from None

    def _block(self, block: str) -> str:
        lines = block.split("\n")
        for index, line in enumerate(lines):
            if line.startswith("data: {"):
                body = json.loads(line[6:])
                before = self._event(body)
                lines[index] = f"data: {_text(body)}"
                return before + "\n".join(lines) + "\n\n"
        return block + "\n\n"

    def _event(self, body: dict[str, Any]) -> str:
        """Change it in place; what has to go out before it."""
        kind = str(body.get("type"))
        if body.get("logprobs"):
            body["logprobs"] = []
        if kind.endswith(DELTA) and isinstance(body.get("delta"), str):
            body["delta"] = self._piece(self._where(kind, DELTA, body), body["delta"])
            return ""
        before = self._finished(kind, body) if kind.endswith(DONE) else ""
        for name in TEXT_KEYS:
            if isinstance(body.get(name), str):
                body[name] = self._whole(body[name])
        for name in ("part", "item"):
            change_item(body.get(name), self._whole)
        if isinstance(body.get("response"), dict):
            change_answer(body["response"], self._whole)
        return before

    def _where(self, kind: str, end: str, body: dict[str, Any]) -> Where:
        places = (body.get("output_index"), body.get("content_index"), body.get("summary_index"))
        return kind.removesuffix(end), *places

    def _piece(self, where: Where, piece: str) -> str:
        text = self._texts.get(where)
        if text is None:
            if len(self._texts) + len(self._known) >= MAX_TEXTS:
                raise PolicyFailed("the answer has too many texts")
            text = self._texts[where] = _Text(self._make())
        out = passed(text.filters, piece)
        text.came.append(piece)
        text.went.append(out)
        return out

    def _finished(self, kind: str, body: dict[str, Any]) -> str:
        """A text is done: what was held back of it goes out in a piece of its own."""
        text = self._texts.pop(self._where(kind, DONE, body), None)
        if text is None:
            return ""
        rest = passed(text.filters, "", ends=True)
        self._known["".join(text.came)] = "".join(text.went) + rest
        if not rest:
            return ""
        places = {name: value for name, value in body.items() if name not in (*TEXT_KEYS, "type")}
        delta = {**places, "type": kind.removesuffix(DONE) + DELTA, "delta": rest}
        return f"event: {delta['type']}\ndata: {_text(delta)}\n\n"

    def _whole(self, text: str) -> str:
        if not text:
            return text
        known = self._known.get(text)
        if known is None:
            if len(self._texts) + len(self._known) >= MAX_TEXTS:
                raise PolicyFailed("the answer has too many texts")
            known = self._known[text] = passed(self._make(), text, ends=True)
        return known


def _text(body: dict[str, Any]) -> str:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))
