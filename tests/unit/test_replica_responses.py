"""vLLM's Responses inside a replica, with a serving object of our own in its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter
from vllm.entrypoints.serve.engine.protocol import ErrorInfo, ErrorResponse
from vllm.exceptions import GenerationError

from replicas.engine.responses import create_response
from replicas.requests import CURRENT_REQUEST
from replicas.responses_call import ResponsesCall
from replicas.tracked_response import tracked_response
from runtime_actor.messages import OWNER_XARG, OwnerTag

CALL = ResponsesCall(
    {"model": "m", "input": "hi", "stream": True, "vllm_xargs": {OWNER_XARG: OwnerTag("w", "a", "s").encode()}}
)


class Event(SimpleNamespace):
    def model_dump_json(self, **_: Any) -> str:
        return f'{{"type":"{self.type}"}}'


class Serving:
    """Answers with `outcome`: a response, events (an exception among them is raised), or an exception."""

    def __init__(self, outcome: Any) -> None:
        self._outcome = outcome
        self.records: list[Any] = []
        self.is_closed = False

    async def create_responses(self, request: Any, raw_request: Any) -> Any:
        assert request.input == "hi" and raw_request is None
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._stream() if isinstance(self._outcome, list) else self._outcome

    async def _stream(self) -> AsyncIterator[Any]:
        try:
            for item in self._outcome:
                if item == "engine":
                    self.records.append(CURRENT_REQUEST.get())
                elif isinstance(item, GenerationError):
                    self._fail(item)
                elif isinstance(item, BaseException):
                    raise item
                else:
                    yield Event(type=item)
        finally:
            self.is_closed = True

    @staticmethod
    def _fail(failure: GenerationError) -> None:
        """As vLLM does: it has no event for an error, and fails to make one."""
        try:
            raise failure
        except GenerationError:
            TypeAdapter(int).validate_json('{"error": {}}')

    def create_error_response(self, error: Exception) -> ErrorResponse:
        return ErrorResponse(error=ErrorInfo(message=str(error), type="t", code=500))


def engine(serving: Serving) -> Any:
    return SimpleNamespace(_app_state=SimpleNamespace(openai_serving_responses=serving))


def items(serving: Serving) -> list[Any]:
    async def main() -> list[Any]:
        return [item async for item in create_response(engine(serving), CALL, None)]

    return asyncio.run(main())


def kinds(item: list[str]) -> list[str]:
    return [text.split("\n")[0].removeprefix("event: ") for text in item]


START = ["response.created", "response.in_progress"]
DELTA, END = "response.output_text.delta", "response.completed"


def test_announcements_come_with_what_the_engine_says_first() -> None:
    serving = Serving([*START, "engine", DELTA, DELTA, END])
    assert [kinds(item) for item in items(serving)] == [[*START, DELTA], [DELTA], [END]]
    assert serving.is_closed


def test_the_engine_runs_in_the_requests_own_context() -> None:
    """Else nobody would count what it generates for this request."""
    serving = Serving([*START, "engine", DELTA, END])
    record = SimpleNamespace(accepted=asyncio.Event(), finish_reason=None)
    ledger: Any = SimpleNamespace(begin=lambda _: record, finish=lambda *_, **__: None)

    async def open_stream() -> Any:
        return create_response(engine(serving), CALL, None)

    async def main() -> list[Any]:
        return [item async for item in tracked_response(open_stream, CALL, ledger, "r1")]

    assert len(asyncio.run(main())) == 2
    assert serving.records == [record]


@pytest.mark.parametrize(
    "outcome",
    [
        [*START, GenerationError()],
        [*START, DELTA, GenerationError()],
        GenerationError(),
        ErrorResponse(error=ErrorInfo(message="Internal server error", type="t", code=500)),
    ],
)
def test_a_failure_of_the_engine_is_an_error_item(outcome: Any) -> None:
    last = items(Serving(outcome))[-1]
    assert last.error.message == "Internal server error" and last.error.code == 500


def test_what_the_engine_refuses_after_the_announcement_is_the_clients() -> None:
    (refusal,) = items(Serving([*START, ValueError("The grammar does not compile.")]))
    assert refusal.error.message == "The grammar does not compile."


def test_other_faults_are_raised() -> None:
    with pytest.raises(RuntimeError, match="ours"):
        items(Serving([*START, RuntimeError("ours")]))


def test_a_whole_response_is_plain() -> None:
    whole = SimpleNamespace(model_dump=lambda **_: {"id": "resp_1"})
    assert items(Serving(whole)) == [{"id": "resp_1"}]


def test_an_engine_without_it_says_which_route_to_use() -> None:
    async def main() -> list[Any]:
        return [item async for item in create_response(SimpleNamespace(), CALL, None)]

    (refusal,) = asyncio.run(main())
    assert refusal.error.code == 404 and "/v1/chat/completions" in refusal.error.message
