"""A guess in the gateway: joined, replaced, thrown away, and never anybody else's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from replicas.simulation.engine import CostModel
from runtime_actor.messages import RequestAccepted
from runtime_actor.policies.base import GuessEnded, GuessSuggestion
from runtime_actor.policies.speculation import SpeculationPolicy
from runtime_actor.settings import RuntimeSettings
from serve_app.generation import Call
from serve_app.hints import AHEAD_PRIORITY
from serve_app.policies import ahead
from serve_app.policies.ahead import Ahead, Guess, HedgedCall, JoinedCall
from tests.simulated_bench import SimulatedBench
from tests.unit.policy_kit import ManualClock, settings, view

ACCEPTED = RequestAccepted("r1", 40, 8).to_wire()
FIELDS = {"messages": [{"role": "user", "content": "hi"}]}


def suggestion(wait_s: float = 30.0, session: str = "s") -> GuessSuggestion:
    return GuessSuggestion("speculation", "t", "t", session, "a", "chat", FIELDS, 50, wait_s)


class Scripted:
    """A call whose items come as `feed` gives them; None ends it."""

    def __init__(self, *items: Any) -> None:
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.cancelled = 0
        for item in items:
            self.queue.put_nowait(item)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (item := await self.queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    def cancel(self) -> None:
        self.cancelled += 1


async def turns(count: int = 8) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def held(call: Call) -> tuple[Ahead, list[GuessEnded]]:
    told: list[GuessEnded] = []
    return Ahead(lambda _: call, told.append), told


def test_what_is_there_and_what_is_still_to_come_are_the_clients() -> None:
    async def main() -> None:
        call = Scripted(ACCEPTED, "one")
        running, told = held(call)
        running.start(suggestion())
        await turns()
        guess = running.take(view("t", "a", method="chat", fields=dict(FIELDS)))
        assert guess is not None and len(running) == 0
        joined = JoinedCall(guess, lambda: pytest.fail("no call of its own"), lambda ok: running.joined(guess, ok))
        items = aiter(joined)
        assert [await anext(items), await anext(items)] == [ACCEPTED, "one"]
        call.queue.put_nowait("two")
        call.queue.put_nowait(None)
        assert [item async for item in items] == ["two"]
        assert told == [GuessEnded("t", "t", "s", True, 0)]

    asyncio.run(main())


@pytest.mark.parametrize(
    "items", [(), (RuntimeError("gone"),), ('data: {"error": {"message": "no", "code": 400}}\n\n',)]
)
def test_a_guess_that_comes_to_nothing_is_replaced(items: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not begun, failed or refused: the client's request goes its own way."""
    monkeypatch.setattr(ahead, "JOIN_WAIT_S", 0.01)

    async def main() -> None:
        call, own = Scripted(*items), Scripted(ACCEPTED, "mine", None)
        running, told = held(call)
        guess = Guess(suggestion(), call)
        joined = JoinedCall(guess, lambda: own, lambda ok: running.joined(guess, ok))
        assert [item async for item in joined] == [ACCEPTED, "mine"]
        assert told == [GuessEnded("t", "t", "s", False, 50)]

    asyncio.run(main())


def test_a_client_that_leaves_while_it_waits_for_its_guess_ends_it_and_the_budget_is_given_back() -> None:
    async def main() -> None:
        policy = hedger()
        call = Scripted()
        running = Ahead(lambda _: call, policy.observe)
        running.start(suggestion())
        policy._account("t").at_stake["s"] = 50
        guess = running.take(view("t", "a", method="chat", fields=dict(FIELDS)))
        assert guess is not None
        joined = JoinedCall(guess, lambda: pytest.fail("sent"), lambda ok: running.joined(guess, ok))
        waiting = asyncio.create_task(anext(aiter(joined)))
        await turns()
        waiting.cancel()
        joined.cancel()
        joined.cancel()
        await turns()
        assert call.cancelled and policy._account("t").at_stake == {}
        assert policy.counters()["wasted"] == 1

    asyncio.run(main())


def test_a_long_answer_is_its_clients_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "MAX_ITEMS", 8)

    async def main() -> None:
        call = Scripted(ACCEPTED, "one")
        guess = Guess(suggestion(), call)
        items = aiter(JoinedCall(guess, lambda: pytest.fail("sent"), lambda _: None))
        got = [await anext(items)]
        for number in range(50):
            call.queue.put_nowait(number)
        call.queue.put_nowait(None)
        await turns(200)
        assert [*got, *[item async for item in items]] == [ACCEPTED, "one", *range(50)]
        unasked = Guess(suggestion(), Scripted(*range(50)))
        await turns(200)
        assert isinstance(unasked.failed, RuntimeError)

    asyncio.run(main())


def test_another_request_or_the_end_of_the_session_or_time_ends_it() -> None:
    async def main() -> None:
        other = {"messages": [{"role": "user", "content": "something else"}]}
        ends: list[Callable[[Ahead], Any]] = [
            lambda running: running.take(view("t", "a", method="chat", fields=other)),
            lambda running: running.take(view("t", "b", method="chat", fields=FIELDS)),
            lambda running: running.end("t", "s"),
            lambda running: running.end_all(),
        ]
        for end in ends:
            call = Scripted(ACCEPTED, "one")
            running, told = held(call)
            running.start(suggestion())
            await turns()
            assert running.take(view("t", "a", session="another", method="chat", fields=FIELDS)) is None
            assert len(running) == 1
            assert end(running) is None
            assert call.cancelled == 1 and len(running) == 0
            assert told == [GuessEnded("t", "t", "s", False, 41)], "prompt and one token"
        call = Scripted()
        running, told = held(call)
        running.start(suggestion(wait_s=0.01))
        async with asyncio.timeout(5.0):
            while not told:
                await asyncio.sleep(0.005)
        assert call.cancelled == 1 and told[0].wasted_tokens == 50

    asyncio.run(main())


def test_one_that_can_not_be_sent_is_told() -> None:
    async def main() -> None:
        told: list[GuessEnded] = []

        def broken(_: GuessSuggestion) -> Call:
            raise RuntimeError("no replica")

        running = Ahead(broken, told.append)
        running.start(suggestion())
        assert len(running) == 0 and told == [GuessEnded("t", "t", "s", False, 0)]

    asyncio.run(main())


# --- hedging ----------------------------------------------------------------------------------------


def hedger(**options: Any) -> SpeculationPolicy:
    return SpeculationPolicy(settings(SpeculationPolicy, **options), ManualClock())


def test_the_first_to_speak_goes_on_and_the_other_is_ended() -> None:
    async def main() -> None:
        policy = hedger(hedge_share=0.5)
        for _ in range(4):
            policy.began(0.1)
        slow, quick = Scripted(), Scripted(ACCEPTED, "x", None)
        hedged = HedgedCall(lambda elsewhere: quick if elsewhere else slow, 0.01, policy)
        assert [item async for item in hedged] == [ACCEPTED, "x"]
        assert (slow.cancelled, quick.cancelled) == (1, 0)
        assert policy.counters()["hedged"] == policy.counters()["hedges_won"] == 1

    asyncio.run(main())


def test_a_quick_one_is_not_sent_again_and_the_share_bounds_the_rest() -> None:
    async def main() -> None:
        policy = hedger(hedge_share=0.25)
        quick = Scripted(ACCEPTED, None)
        assert [i async for i in HedgedCall(lambda _: quick, 5.0, policy)] == [ACCEPTED]
        assert policy.may_hedge() is False
        for _ in range(8):
            policy.began(0.1)
        assert [policy.may_hedge() for _ in range(4)] == [True, True, False, False]

    asyncio.run(main())


def test_a_failed_first_one_counts_only_if_both_fail() -> None:
    async def main() -> None:
        policy = hedger(hedge_share=0.5)
        for _ in range(4):
            policy.began(0.1)
        first, second = Scripted(), Scripted(RuntimeError("second"))
        hedged = HedgedCall(lambda elsewhere: second if elsewhere else first, 0.01, policy)
        asyncio.get_running_loop().call_later(0.05, first.queue.put_nowait, ACCEPTED)
        asyncio.get_running_loop().call_later(0.05, first.queue.put_nowait, None)
        assert [item async for item in hedged] == [ACCEPTED]

    asyncio.run(main())


def test_how_slow_is_slow() -> None:
    policy = hedger(hedge_share=0.1, hedge_factor=2.0)
    request = view(method="chat", fields=FIELDS)
    assert policy.hedge_after_s(request) is None, "nothing is known yet"
    for number in range(128):
        policy.began(1.0 if number % 10 == 0 else 0.2)
    assert policy.hedge_after_s(request) == pytest.approx(2.0)
    assert policy.hedge_after_s(view(method="chat", fields={**FIELDS, "tools": [{}]})) is None
    assert policy.hedge_after_s(view(method="responses", fields=FIELDS)) is None
    assert hedger().hedge_after_s(request) is None, "off unless a share is configured"


# --- the whole gateway ------------------------------------------------------------------------------

COST = CostModel(prefill_s_per_token=0.0, decode_s_per_token=0.0, num_blocks=256, max_model_len=4096)


async def pipeline(bench: SimulatedBench, number: int, stream: bool) -> list[str]:
    """Two agents, the second asked about the first one's answer; the last answer's headers tell the replica."""
    text, said = f"Task: number {number} of all of them", []
    for agent in ("planner", "coder"):
        body = {
            "max_tokens": 4,
            "stream": stream,
            "messages": [{"role": "system", "content": f"You are {agent}."}, {"role": "user", "content": text}],
        }
        answer = await bench.send("POST", "/v1/chat/completions", json=body, headers={"x-session-id": f"s{number}"})
        assert answer.status_code == 200, answer.text
        said.append(answer.text)
        text = f"Task: number {number} of all of them; {agent} said:\n{'simulated ' * 4}"
        await turns(50)
    await bench.send("POST", "/runtime/events", json={"type": "session_ended", "session_id": f"s{number}"})
    return said


@pytest.mark.parametrize("stream", [False, True])
def test_a_pipeline_is_served_from_its_guesses_and_reads_the_same(stream: bool) -> None:
    async def main(enabled: bool) -> tuple[list[list[str]], dict[str, int], list[int]]:
        runtime = RuntimeSettings.from_dict({"policies": [{"name": "speculation", "enabled": enabled}]})
        bench = SimulatedBench(runtime=runtime, cost=COST)
        bench.gateway._policies.configure(runtime.policies)
        priorities: list[int] = []
        sent = bench.engine.chat

        def chat(request: Any, raw: Any = None) -> Any:
            priorities.append(request.priority)
            return sent(request, raw)

        bench.engine.chat = chat  # type: ignore[method-assign]
        said = [await pipeline(bench, number, stream) for number in range(30)]
        policy = bench.gateway._policies.speculation
        return said, dict(policy.counters()) if policy is not None else {}, priorities

    said, counts, priorities = asyncio.run(main(True))
    plain, nothing, stock = asyncio.run(main(False))
    assert nothing == {} and set(stock) == {0}
    assert counts["joined"] >= 12 and counts.get("wasted", 0) == 0, counts
    assert priorities.count(AHEAD_PRIORITY) == counts["joined"]
    assert len(priorities) == len(stock) == 60, "each request ran once"
    assert [[_without_ids(text) for text in each] for each in said] == [
        [_without_ids(text) for text in each] for each in plain
    ]


def test_a_standby_that_takes_over_guesses_again() -> None:
    """It has the policies from the actor, learns the pipeline itself, and answers meanwhile as ever."""

    async def main() -> None:
        runtime = RuntimeSettings.from_dict({"policies": [{"name": "speculation", "enabled": True}]})
        bench = SimulatedBench(runtime=runtime, cost=COST)
        bench.runtime.config_version = bench.gateway._settings.version
        await bench.gateway._exchange._step()
        first = [await pipeline(bench, number, stream=False) for number in range(20)]
        assert bench.gateway._policies.speculation.counters()["joined"] > 0
        bench.take_over()
        assert bench.gateway._policies.speculation is None, "else nothing was told by the actor"
        await bench.gateway._exchange._step()
        second = [await pipeline(bench, number, stream=False) for number in range(20, 40)]
        assert bench.gateway._policies.speculation.counters()["joined"] > 0
        bare = [[[_without_ids(text) for text in each] for each in said] for said in (first, second)]
        assert bare[0] == bare[1], "the same lengths and texts before and after"

    asyncio.run(main())


def _without_ids(text: str) -> list[str]:
    """Contents, ends and counts of an answer; ids and times are fresh each time."""
    return [part for part in text.split('"') if "simulated" in part or "length" in part or "tokens" in part]
