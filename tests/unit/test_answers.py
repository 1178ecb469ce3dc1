"""What identity remembers of an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from serve_app.recognition.answers import AnswerText
from serve_app.recognition.quotes import MAX_TEXT_CHARS
from serve_app.recognition.turns import turn_of_message


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


TASK = "When is the water high enough at the north quay?"


def test_a_task_handed_over_in_a_call_is_a_line_of_its_own() -> None:
    arguments = json.dumps({"task": f"{TASK}\nSay it briefly.", "depth": 11})
    call = {"id": "c", "type": "function", "function": {"name": "pilot", "arguments": arguments}}
    plain = [
        {"choices": [{"message": {"content": None, "tool_calls": [call]}}]},
        {"output": [{"type": "function_call", "name": "pilot", "arguments": arguments}]},
        {"type": "message", "content": [{"type": "tool_use", "id": "c", "name": "pilot", "input": {"task": TASK}}]},
    ]
    for content in plain:
        answer = AnswerText()
        answer.add_response(content)
        assert TASK in str(answer).split("\n"), content
    pieces = (arguments[:9], arguments[9:30], arguments[30:])
    deltas = [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in pieces]
    chunks = (f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n" for delta in deltas)
    assert TASK in str(heard(*chunks)[0]).split("\n")
    kind = "response.function_call_arguments.delta"
    events = (f"event: {kind}\ndata: {json.dumps({'type': kind, 'delta': piece})}\n\n" for piece in pieces)
    assert TASK in str(heard(*events)[0]).split("\n")


def test_a_turn_is_the_same_however_it_came_and_in_the_history_that_follows() -> None:
    arguments = json.dumps({"task": TASK, "depth": 11})
    call = {"id": "c", "type": "function", "function": {"name": "pilot", "arguments": arguments}}
    message = {"role": "assistant", "content": "Let me ask.", "tool_calls": [call]}
    compact = json.dumps({"task": TASK, "depth": 11}, separators=(",", ":"))
    kept = {**message, "content": " Let me ask.\n", "tool_calls": [{**call, "id": "d"}]}
    kept["tool_calls"] = [{**call, "function": {"name": "pilot", "arguments": compact}}]
    text = {"type": "output_text", "text": "Let me ask."}
    used = {"type": "tool_use", "id": "c", "name": "pilot", "input": {"task": TASK, "depth": 11}}
    turns = []
    for content in (
        {"choices": [{"message": message}]},
        {"output": [{"type": "message", "content": [text]}, {"type": "function_call", **call["function"]}]},
        {"type": "message", "content": [{"type": "text", "text": "Let me ask."}, used]},
    ):
        answer = AnswerText()
        answer.add_response(content)
        turns.append(answer.turn)
    deltas = [
        {"content": "Let me "},
        {"content": "ask."},
        {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "pilot", "arguments": ""}}]},
        *({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in (arguments[:9], arguments[9:])),
    ]
    chunks = (f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n" for delta in deltas)
    turns.append(heard(*chunks)[0].turn)
    events = [
        {"type": "response.output_text.delta", "delta": "Let me ask."},
        {"type": "response.output_item.added", "item": {"type": "function_call", "name": "pilot", "arguments": ""}},
        {"type": "response.function_call_arguments.delta", "delta": arguments},
    ]
    turns.append(heard(*(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events))[0].turn)
    assert {turn_of_message(kept), *turns} == {turns[0]} and turns[0] is not None


def test_what_makes_no_turn() -> None:
    assert AnswerText().turn is None and heard(*[chunk("a" * 1000) for _ in range(40)])[0].turn is None
    assert turn_of_message({"role": "user", "content": "Hello"}) is None
    assert turn_of_message({"role": "assistant", "content": None}) is None
    plain, called = {"role": "assistant", "content": "Hello"}, {"function": {"name": "a", "arguments": "{}"}}
    other = {"function": {"name": "b", "arguments": "{}"}}
    turns = [turn_of_message({**plain, "tool_calls": calls}) for calls in ([], [called], [other], [called, other])]
    assert len(set(turns)) == 4


def test_every_choice_is_a_turn_that_may_be_gone_on_from() -> None:
    """Agents that search sample several next steps of one request and go on from each of them."""
    whole = AnswerText()
    whole.add_response({"choices": [{"message": {"content": text}} for text in ("to the weir", "home")]})
    parts = (chunk("to the "), chunk("ho", index=1), chunk("weir"), chunk("me", index=1))
    streamed, _ = heard(*parts)
    turns = [turn_of_message({"role": "assistant", "content": text}) for text in ("to the weir", "home")]
    for answer in (whole, streamed):
        assert [answer.turn, *answer.other_turns] == turns and str(answer) == "to the weir"


def test_of_many_choices_as_much_is_kept_as_of_one() -> None:
    answer, _ = heard(*[chunk("a" * 1000, index) for _ in range(40) for index in range(3)])
    assert answer.turn is None and answer.other_turns == ()
