"""Filters over answers: whole, and streams cut at every place."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from runtime_actor.policies.base import OutputFilter, Policy, RequestView
from runtime_actor.policies.catalogue import NoClock
from runtime_actor.policies.host import PolicyHost
from runtime_actor.settings import PluggedSettings
from serve_app.http.errors import ApiError
from serve_app.policies.answers import AnswerFilter
from tests.unit.policy_kit import view

SECRET = "hunter2"


class Redact:
    """Replaces SECRET, holding back what may be its beginning."""

    def __init__(self) -> None:
        self.held = ""

    def feed(self, text: str) -> str:
        if "boom" in text:
            raise RuntimeError("broken on purpose")
        text = (self.held + text).replace(SECRET, "[x]")
        keep = next((n for n in range(len(SECRET) - 1, 0, -1) if text.endswith(SECRET[:n])), 0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def end(self) -> str:
        held, self.held = self.held, ""
        return held


class Redacting(Policy):
    name = "redacting"

    def output(self, request: RequestView) -> OutputFilter | None:
        return Redact()


def answer_filter(fail_closed: bool = False) -> AnswerFilter:
    host = PolicyHost([Redacting(PluggedSettings("redacting", fail_closed=fail_closed), NoClock())], 100)
    return AnswerFilter(lambda: host.outputs(view()))


def stream(filtered: AnswerFilter, bodies: list[Any], together: int = 1) -> str:
    lines = [f"data: {json.dumps(body)}\n\n" for body in bodies] + ["data: [DONE]\n\n"]
    items = ["".join(lines[i : i + together]) for i in range(0, len(lines), together)]

    async def events() -> AsyncIterator[str]:
        for item in items:
            yield item

    async def main() -> str:
        return "".join([event async for event in filtered.stream(events())])

    return asyncio.run(main())


def said(text: str, field: str = "content", choice: int = 0) -> str:
    parts = []
    for line in text.split("\n"):
        if line.startswith("data: {"):
            for found in json.loads(line[6:])["choices"]:
                if found["index"] == choice:
                    parts.append(found["delta"].get(field) or "")
    return "".join(parts)


def delta(text: str | None, choice: int = 0, finish: str | None = None, **more: Any) -> dict[str, Any]:
    part = {} if text is None else {"content": text}
    return {"choices": [{"index": choice, "delta": {**part, **more}, "finish_reason": finish}]}


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("cut", range(1, 12))
def test_a_stream_cut_anywhere(cut: int, together: int) -> None:
    text = f"my {SECRET} is {SECRET}, hun"
    bodies = [delta(text[i : i + cut]) for i in range(0, len(text), cut)] + [delta(None, finish="stop")]
    out = stream(answer_filter(), bodies, together)
    assert said(out) == "my [x] is [x], hun"
    assert out.endswith("data: [DONE]\n\n")


def test_other_separators_of_lines_are_text() -> None:
    text = f"a\u2028{SECRET}\x85\x0c b"
    body = json.dumps(delta(text, finish="stop"), ensure_ascii=False)

    async def events() -> AsyncIterator[str]:
        yield f"data: {body}\n\ndata: [DONE]\n\n"

    async def main() -> str:
        return "".join([event async for event in answer_filter().stream(events())])

    out = asyncio.run(main())
    assert said(out) == "a\u2028[x]\x85\x0c b" and out.endswith("\n\ndata: [DONE]\n\n")


def test_choices_and_fields_have_filters_of_their_own() -> None:
    bodies = [
        delta("hun", 0),
        delta("ter2", 1, reasoning_content="hun"),
        delta("ter2", 0, reasoning_content="hun"),
        delta(None, 0, reasoning_content="ter2", finish="stop"),
        delta(None, 1, finish="stop"),
    ]
    out = stream(answer_filter(), bodies)
    assert (said(out), said(out, choice=1)) == ("[x]", "ter2")
    assert said(out, "reasoning_content") == "[x]" and said(out, "reasoning_content", 1) == "hun"


def test_arguments_of_tool_calls_and_log_probabilities() -> None:
    def call(text: str, **more: Any) -> dict[str, Any]:
        part = delta(None, tool_calls=[{"index": 0, "function": {"arguments": text}}])
        part["choices"][0] |= {"logprobs": {"content": [{"token": SECRET}]}, **more}
        return part

    out = stream(answer_filter(), [call('{"p": "hunt'), call('er2"}'), delta(None, finish="tool_calls")])
    assert SECRET not in out and "[x]" in out


def test_token_ids_repeat_no_text() -> None:
    part = delta(SECRET, finish="stop")
    part["choices"][0] |= {"token_ids": [1, 2], "routed_experts": "AA=="}
    assert '"token_ids":null' in (out := stream(answer_filter(), [part])) and "AA==" not in out
    body = {"choices": [{"index": 0, "text": SECRET, "token_ids": [1, 2]}]}
    answer_filter().content(body)
    assert body["choices"][0] == {"index": 0, "text": "[x]", "token_ids": None}


def test_a_whole_answer() -> None:
    body = {
        "choices": [
            {"index": 0, "message": {"content": f"a {SECRET}", "tool_calls": None}, "logprobs": {"content": []}},
            {"index": 1, "text": f"{SECRET}!"},
        ],
        "usage": {},
    }
    answer_filter().content(body)
    assert body["choices"][0]["message"]["content"] == "a [x]"
    assert body["choices"][0]["logprobs"] is None and body["choices"][1]["text"] == "[x]!"


def test_a_failing_filter() -> None:
    bodies = [delta("good "), delta("boom "), delta(SECRET), delta(None, finish="stop")]
    assert said(stream(answer_filter(), bodies)) == f"good boom {SECRET}"
    with pytest.raises(ApiError) as ended:
        stream(answer_filter(fail_closed=True), bodies)
    assert ended.value.code == "policy_unavailable"
    with pytest.raises(ApiError) as error:
        answer_filter(fail_closed=True).content({"choices": [{"index": 0, "text": "boom"}]})
    assert error.value.status == 503
