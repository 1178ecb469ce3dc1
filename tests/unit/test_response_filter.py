"""Answers of Responses and Messages through filters: no text of them passes by, in whatever form it comes again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from runtime_actor.policies.base import GATEWAY, OutputFilter, Policy, RequestView
from runtime_actor.policies.guard import PolicyFailed
from runtime_actor.policies.host import PolicyHost
from runtime_actor.settings import PluggedSettings
from serve_app.http.errors import ApiError
from serve_app.policies import response_filter
from serve_app.policies.answers import AnswerFilter
from serve_app.policies.response_filter import ResponseFilter
from tests.unit.policy_kit import ManualClock, view


class Hider:
    """Replaces "secret", also where it comes in two pieces."""

    def __init__(self) -> None:
        self.held = ""

    def feed(self, text: str) -> str:
        text = (self.held + text).replace("secret", "*")
        keep = next((n for n in range(min(5, len(text)), 0, -1) if "secret".startswith(text[-n:])), 0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def end(self) -> str:
        held, self.held = self.held, ""
        return held


class Hiding(Policy):
    name = "hiding"
    seat = GATEWAY
    in_place = True
    made = 0

    def output(self, request: RequestView) -> OutputFilter:
        type(self).made += 1
        return Hider()


def filters(kind: type[Any]) -> Any:
    host = PolicyHost([Hiding(PluggedSettings("hiding"), ManualClock())], 3)
    request = view()
    return kind(lambda: host.outputs(request))


def event(kind: str, **values: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **values})}\n\n"


def message(text: str) -> dict[str, Any]:
    return {"type": "message", "content": [{"type": "output_text", "text": text, "logprobs": [{"token": text}]}]}


def played(events: list[str]) -> list[dict[str, Any]]:
    async def source() -> AsyncIterator[str]:
        for each in events:
            yield each

    async def main() -> str:
        return "".join([out async for out in filters(ResponseFilter).stream(source())])

    text = asyncio.run(main())
    blocks = [block.split("\n") for block in text.split("\n\n") if block]
    parsed = [json.loads(lines[1][6:]) for lines in blocks]
    assert [lines[0] for lines in blocks] == [f"event: {body['type']}" for body in parsed]
    return parsed


def test_a_text_that_is_told_four_times_is_filtered_four_times() -> None:
    at = {"output_index": 0, "content_index": 0, "item_id": "i", "sequence_number": 5}
    whole = "the secret is secret, se"
    parsed = played(
        [
            event("response.created", response={"output": []}),
            event("response.output_text.delta", delta="the sec", logprobs=[{"token": "sec"}], **at),
            event("response.output_text.delta", delta="ret is secret, se", **at),
            event("response.output_text.done", text=whole, **at),
            event("response.content_part.done", part={"type": "output_text", "text": whole}, **at),
            event("response.output_item.done", item=message(whole), output_index=0),
            event("response.completed", response={"output": [message(whole)], "usage": {"output_tokens": 3}}),
        ]
    )
    hidden = "the * is *, se"
    deltas = [body for body in parsed if body["type"].endswith("text.delta")]
    assert "".join(body["delta"] for body in deltas) == hidden
    assert deltas[0]["logprobs"] == [] and deltas[-1]["item_id"] == "i", "what was held back is a piece of its own"
    assert [body["text"] for body in parsed if body["type"].endswith("text.done")] == [hidden]
    assert "secret" not in json.dumps(parsed)
    assert json.dumps(parsed).count(hidden) == 4
    assert parsed[-1]["response"]["usage"] == {"output_tokens": 3}


def test_arguments_and_reasoning_are_texts_of_their_own() -> None:
    call = {"type": "function_call", "name": "f", "arguments": '{"a": "secret"}'}
    parsed = played(
        [
            event("response.reasoning_text.delta", delta="sec", output_index=0, content_index=0),
            event("response.function_call_arguments.delta", delta='{"a": "secret"}', output_index=1),
            event("response.function_call_arguments.done", arguments='{"a": "secret"}', output_index=1),
            event("response.reasoning_text.done", text="sec", output_index=0, content_index=0),
            event("response.output_item.done", output_index=1, item=call),
            event(
                "response.output_item.done",
                output_index=0,
                item={"type": "reasoning", "content": [{"text": "sec"}], "summary": [{"text": "a secret"}]},
            ),
        ]
    )
    texts = json.dumps(parsed)
    assert "secret" not in texts and texts.count("sec") == 3, "what only begins like it is told: piece, whole, item"


def test_events_that_are_done_without_pieces_are_filtered_too() -> None:
    (body,) = played([event("response.output_text.done", text="secret", output_index=0, content_index=0)])
    assert body["text"] == "*"


def test_each_text_is_looked_through_once() -> None:
    Hiding.made = 0
    played([event("response.output_item.done", item=message("a secret"), output_index=n) for n in range(20)])
    assert Hiding.made == 1


def test_a_whole_answer() -> None:
    body = {"output": [message("secret"), {"type": "function_call", "arguments": "secret"}], "id": "secret-id"}
    filters(ResponseFilter).content(body)
    assert "secret" not in json.dumps(body["output"]) and body["id"] == "secret-id"


def test_a_whole_answer_of_messages() -> None:
    body = {
        "type": "message",
        "content": [
            {"type": "thinking", "thinking": "a secret"},
            {"type": "text", "text": "secret"},
            {"type": "tool_use", "name": "f", "input": {"to": ["secret", 3], "deep": {"x": "secrets"}}},
        ],
    }
    filters(AnswerFilter).content(body)
    assert "secret" not in json.dumps(body)
    assert body["content"][2]["input"] == {"to": ["*", 3], "deep": {"x": "*s"}}  # type: ignore[index]


def test_what_a_client_may_ask_for_beside_the_text_repeats_none_of_it() -> None:
    """Raw messages and token ids: whoever has the tokenizer reads the text in them."""
    raw = [{"type": "raw_message_tokens", "message": "a secret", "tokens": [1, 2]}]
    told = {"output": [message("secret")], "output_messages": raw, "input_messages": raw}
    body = json.loads(json.dumps(told))
    filters(ResponseFilter).content(body)
    (ended,) = played([event("response.completed", response=told)])
    for found in (body, ended["response"]):
        assert "secret" not in json.dumps(found)
        assert found["output_messages"] is None and found["input_messages"] is None


def test_names_numbers_and_depths_of_a_tools_input() -> None:
    deep: Any = "secret"
    for _ in range(150):
        deep = {"in": [deep]}
    body = {"type": "message", "content": [{"type": "tool_use", "input": {"secret": 5, "deep": deep}}]}
    filters(AnswerFilter).content(body)
    assert "secret" not in json.dumps(body)
    assert body["content"][0]["input"]["*"] == 5  # type: ignore[index]
    with pytest.raises(ApiError) as error:
        for _ in range(5000):
            deep = [deep]
        filters(AnswerFilter).content({"content": [{"type": "tool_use", "input": deep}]})
    assert (error.value.status, error.value.message) == (503, "This answer can't be judged.")


def test_an_event_that_cannot_be_read_ends_the_answer() -> None:
    async def source() -> AsyncIterator[str]:
        yield "data: {broken\n\n"

    async def main(kind: type[Any]) -> None:
        async for _ in filters(kind).stream(source()):
            pass

    for kind in (ResponseFilter, AnswerFilter):
        with pytest.raises(ApiError):
            asyncio.run(main(kind))


def test_texts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_filter, "MAX_TEXTS", 3)
    made = filters(ResponseFilter)
    with pytest.raises(PolicyFailed):
        for number in range(5):
            made._whole(f"text {number}")
