"""What identity remembers of an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from serve_app.recognition.answers import AnswerText
from serve_app.recognition.quotes import MAX_TEXT_CHARS


def chunk(text: str | None, index: int = 0) -> str:
    return f"data: {json.dumps({'id': 'x', 'choices': [{'index': index, 'delta': {'content': text}}]})}\n\n"


def heard(*sent: str) -> tuple[AnswerText, list[str]]:
    answer = AnswerText()

    async def stream() -> AsyncIterator[str]:
        for event in sent:
            yield event

    async def main() -> list[str]:
        return [event async for event in answer.heard(stream())]

    return answer, asyncio.run(main())


def test_a_streams_text_is_put_together_and_passed_on() -> None:
    sent = (chunk(None) + chunk("Hel"), chunk("lo"), chunk("other", index=1), "data: [DONE]\n\n")
    answer, passed = heard(*sent)
    assert str(answer) == "Hello" and passed == list(sent)


def test_errors_and_usage_add_nothing() -> None:
    answer, _ = heard('data: {"error":{"message":"x"}}\n\n', 'data: {"choices":[],"usage":{"prompt_tokens":3}}\n\n')
    assert str(answer) == ""


def test_bounded() -> None:
    answer, passed = heard(*[chunk("a" * 1000) for _ in range(40)])
    assert len(str(answer)) == MAX_TEXT_CHARS and len(passed) == 40


def test_a_plain_answer() -> None:
    answer = AnswerText()
    answer.add_response({"choices": [{"message": {"content": "Hello"}}, {"message": {"content": "no"}}]})
    answer.add_response({"choices": []})
    answer.add_response({"choices": [{"message": {"content": None}}]})
    assert str(answer) == "Hello"
