"""What is told once and not again (sessions, anchors) arrives, or is told again where it may not have arrived."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from replicas.anchors import Anchor, AnchorStore
from replicas.cache.anchor_finder import AnchorFinder
from replicas.engine.port import EngineState, HandDown
from runtime_actor.errors import EngineBusy
from runtime_actor.messages import ExchangeReply, ExchangeRequest
from tests.unit.replica_fakes import FakeActor, FakePort, make_reply
from tests.unit.test_exchange import Bench, ended

SESSION = ["w", "s", "", "a", 1.0]


class SlowPort(FakePort):
    """Its answers come when they are let through."""

    async def exchange(self, down: HandDown) -> EngineState:
        await gate(self).wait()
        return await super().exchange(down)


def gate(port: SlowPort) -> asyncio.Event:
    """Open unless a test closes it; made in the test's own event loop."""
    if port.gate is None:
        port.gate = asyncio.Event()
        port.gate.set()
    return port.gate


class SlowActor(FakeActor):
    """The engine's answers come while this one is asked, and at no other time."""

    port: SlowPort

    async def __call__(self, request: ExchangeRequest) -> ExchangeReply:
        gate(self.port).set()
        for _ in range(5):
            await asyncio.sleep(0)
        gate(self.port).clear()
        return await super().__call__(request)


def test_sessions_that_come_up_while_the_actor_is_asked_go_with_the_next_call() -> None:
    async def scenario() -> None:
        port = SlowPort()
        port.state = replace(port.state, sessions=[SESSION])
        actor = SlowActor(make_reply())
        actor.port = port
        bench = Bench(actor, port)
        gate(port).clear()
        await bench.steps(5)
        assert bench.actor.requests[0].report is None
        assert [call.report["sessions"] for call in bench.actor.requests if call.report].count([SESSION]) == 1

    asyncio.run(scenario())


class ForgetfulPort(FakePort):
    """Finds an anchor, tells it once, and its answers can get lost."""

    def __init__(self, finder: AnchorFinder) -> None:
        super().__init__()
        self.finder = finder
        self.is_lost = False

    async def exchange(self, down: HandDown) -> EngineState:
        if down.with_sessions or down.with_anchors:
            self.finder.forget_told()
        found = tuple(Anchor(f.workload, f.agent, f.digest, f.token_ids, None, None) for f in self.finder.take())
        if self.is_lost:
            raise EngineBusy("the answer came too late")
        return replace(await super().exchange(down), anchors=found)


def note(finder: AnchorFinder, agent: str, boundary: bytes = b"x" * 16, times: int = 1) -> None:
    for _ in range(times):
        finder.note(("w", agent), boundary, list(range(64)), 64, "salt", None)


def test_an_anchor_in_a_lost_answer_is_told_again_when_it_is_next_used() -> None:
    async def scenario() -> None:
        finder = AnchorFinder()
        port = ForgetfulPort(finder)
        bench = Bench(FakeActor(), port)
        await bench.steps(2)
        note(finder, "a")
        port.is_lost = True
        await bench.steps(1)
        port.is_lost = False
        await bench.steps(1)
        note(finder, "a")
        await bench.steps(1)
        assert bench.report().anchors == {"w": {"a": [(b"x" * 16).hex(), 64]}}
        asked = [down.with_anchors for down in port.downs]
        await bench.steps(1)
        assert sum(asked) == 1 and not port.downs[-1].with_anchors, "asked for once"

    asyncio.run(scenario())


def test_agents_with_one_prompt_each_have_their_anchor() -> None:
    """Named by their framework, all with the same instructions."""
    finder = AnchorFinder()
    note(finder, "solver 1")
    note(finder, "solver 2")
    assert sorted(found.agent for found in finder.take()) == ["solver 1", "solver 2"]
    store = AnchorStore(cap_bytes=1 << 20, max_anchors=10)
    anchors = [Anchor("w", agent, "d", bytes(256), "salt", None) for agent in ("solver 1", "solver 2")]
    assert [store.add(anchor) for anchor in anchors] == [True, True]
    assert store.unannounced(10) == anchors
    assert store.listing() == {"w": {"solver 1": ["d", 64], "solver 2": ["d", 64]}}
    assert [store.get("w", anchor.agent, "d") for anchor in anchors] == anchors


@pytest.mark.parametrize("served", [10, 1000, 100_000])
def test_an_agent_with_another_prompt_has_another_anchor_soon(served: int) -> None:
    """However long it had the one before."""
    finder = AnchorFinder()
    note(finder, "a", b"old" * 8, served)
    finder.take()
    note(finder, "a", b"new" * 8, 200)
    (found,) = finder.take()
    assert bytes.fromhex(found.digest).startswith(b"new")


def test_an_anchor_that_the_buffer_dropped_is_recorded_again_when_the_actor_is_back() -> None:
    async def scenario() -> None:
        port = FakePort()
        port.state = replace(port.state, anchors=(Anchor("w", "a", "d1", bytes(256), None, None),))
        bench = Bench(FakeActor(make_reply(), None, None), port)
        port.state, first = replace(port.state, anchors=()), port.state
        await bench.steps(1)
        port.state = first
        await bench.steps(1)
        port.state = replace(port.state, anchors=())
        for number in range(8):
            bench.events.add(ended(number))
        await bench.steps(4)
        told = [e["digest"] for call in bench.actor.requests[3:] for e in call.events if e["kind"] == "anchor_recorded"]
        assert bench.events.dropped and told == ["d1"]

    asyncio.run(scenario())
