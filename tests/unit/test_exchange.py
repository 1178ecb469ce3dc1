"""The exchange loop against a scripted actor, a fake engine and a clock that never sleeps."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace

from replicas.anchors import Anchor, AnchorStore
from replicas.clock import SystemClock
from replicas.engine.port import EngineState, HandDown
from replicas.engine_feed import EngineFeed
from replicas.exchange import ExchangeLoop, ReplicaName
from replicas.metrics import ReplicaStats
from replicas.settings import ExchangeSettings
from runtime_actor.event_buffer import EventBuffer
from runtime_actor.messages import PrefetchAction, ReplicaReport, SessionEnded
from tests.unit.replica_fakes import FakeActor, FakeClock, FakePort, make_action, make_reply


@dataclass
class Bench:
    """A loop with everything around it."""

    actor: FakeActor
    port: FakePort = field(default_factory=FakePort)
    clock: FakeClock = field(default_factory=FakeClock)
    settings: ExchangeSettings = field(default_factory=ExchangeSettings)
    actions: list[PrefetchAction] = field(default_factory=list)
    switches: list[bool] = field(default_factory=list)
    adapters: list[dict] = field(default_factory=list)
    config_version: int = 0
    silent_s: float = 0.0

    def __post_init__(self) -> None:
        self.events = EventBuffer(max_events=4, max_bytes=1 << 20)
        self.anchors = AnchorStore(cap_bytes=1 << 20, max_anchors=8)
        self.stats = ReplicaStats()
        self.feed = EngineFeed(self.port, self.clock)
        numbers = iter(range(10_000))
        self.loop = ExchangeLoop(
            name=ReplicaName("r1", "n1"),
            call=self.actor,
            feed=self.feed,
            events=self.events,
            anchors=self.anchors,
            stats=self.stats,
            on_action=self.actions.append,
            on_prefetch_switch=self.switches.append,
            on_adapters=self.adapters.append,
            policies=lambda: [{"name": "adapters"}],
            silent_s=lambda: self.silent_s,
            next_event_id=lambda: f"r1:{next(numbers)}",
            clock=self.clock,
            settings=self.settings,
            config_version=self.config_version,
        )

    async def steps(self, count: int) -> None:
        for _ in range(count):
            await self.loop.step()

    def report(self, call: int = -1) -> ReplicaReport:
        return ReplicaReport.from_wire(self.actor.requests[call].report)


def ended(number: int) -> SessionEnded:
    return SessionEnded(f"e{number}", 0.0, "t", "w", "s")


def test_a_stuck_engine_is_reported_as_such() -> None:
    async def scenario() -> None:
        bench = Bench(FakeActor(make_reply()))
        await bench.steps(1)
        assert bench.report().silent_s == 0.0
        bench.silent_s = 12.0
        bench.port.busy = True
        await bench.steps(1)
        assert bench.report().silent_s == 12.0, "it still has the last state, and says how little that means"

    asyncio.run(scenario())


def test_events_and_report_go_up_and_tables_come_down() -> None:
    async def scenario() -> None:
        bench = Bench(FakeActor(make_reply(tables={"w": b"t"}, ended=[["w", "s1"]])))
        bench.events.add(ended(1))
        await bench.steps(1)
        request = bench.actor.requests[0]
        assert [event["event_id"] for event in request.events] == ["e1"]
        assert (request.epoch, request.version, bench.report().total_blocks) == (0, 0, 100)
        assert bench.port.downs[-1].tables == {"w": b"t"}
        assert bench.port.downs[-1].ended == (("w", "s1"),)
        await bench.steps(1)
        assert (bench.actor.requests[1].epoch, bench.actor.requests[1].version) == (7, 1)

    asyncio.run(scenario())


def test_what_an_away_actor_missed_goes_up_later_and_the_rest_is_counted() -> None:
    async def scenario() -> None:
        bench = Bench(FakeActor(None, None))
        for number in range(3):
            bench.events.add(ended(number))
        await bench.steps(1)
        for number in range(3, 6):
            bench.events.add(ended(number))
        await bench.steps(2)
        assert [e["event_id"] for e in bench.actor.requests[-1].events] == ["e2", "e3", "e4", "e5"]
        assert bench.report().dropped_events == 2
        assert bench.stats.exchange_failures == 2
        assert not bench.loop.actor_is_away

    asyncio.run(scenario())


def test_the_engine_keeps_its_tables_while_the_actor_is_away() -> None:
    async def scenario() -> None:
        bench = Bench(FakeActor(make_reply(tables={"w": b"t"}), None, None))
        await bench.steps(3)
        assert [down.tables for down in bench.port.downs if down.tables] == [{"w": b"t"}]

    asyncio.run(scenario())


def test_a_new_epoch_hears_of_sessions_and_anchors_again() -> None:
    async def scenario() -> None:
        port = FakePort()
        anchor = Anchor("w", "a", "d1", bytes(4 * 64), None, None)
        port.state = replace(port.state, anchors=(anchor,), sessions=[["w", "s", "", "a", 1.0]])
        bench = Bench(FakeActor(make_reply(), make_reply(), make_reply(epoch=8), make_reply(epoch=8)), port)
        await bench.steps(2)
        assert bench.report(0).anchors == {"w": {"a": ["d1", 64]}}
        assert bench.report(1).sessions == [["w", "s", "", "a", 1.0]]
        port.state = replace(port.state, anchors=())
        await bench.steps(2)
        recorded = [
            [e["digest"] for e in request.events if e["kind"] == "anchor_recorded"] for request in bench.actor.requests
        ]
        assert recorded == [["d1"], [], [], ["d1"]]
        assert [bool(bench.report(i).sessions) for i in range(4)] == [False, True, False, True]
        assert bench.actor.requests[3].epoch == 8

    asyncio.run(scenario())


def test_a_busy_engine_holds_nothing_up_and_loses_nothing() -> None:
    async def scenario() -> None:
        port = FakePort(busy=True)
        bench = Bench(FakeActor(make_reply(tables={"w": b"old", "v": b"v"}, ended=[["w", "s1"]])), port)
        await bench.steps(1)
        assert bench.actor.requests[0].report is None
        bench.actor.script = [make_reply(tables={"w": b"new"}, policy={"mode": "lru", "weight": 1})]
        await bench.steps(1)
        port.busy = False
        await bench.steps(1)
        (down,) = port.downs
        assert (down.tables, down.ended) == ({"v": b"v", "w": b"new"}, (("w", "s1"),))
        assert down.policy == ("lru", 1.0) and down.with_sessions
        assert bench.report().policy == "reach"

    asyncio.run(scenario())


def test_an_engine_call_that_fails_oddly_loses_nothing() -> None:
    async def scenario() -> None:
        bench = Bench(FakeActor(make_reply(tables={"w": b"t"})), OddPort())
        await bench.steps(2)
        assert [down.tables for down in bench.port.downs] == [{"w": b"t"}]
        assert bench.feed.busy_calls == 2

    asyncio.run(scenario())


class OddPort(FakePort):
    """Fails twice in a way that no contract foresees."""

    failures = 0

    async def exchange(self, down: HandDown) -> EngineState:
        self.failures += 1
        if self.failures <= 2:
            raise OSError("broken pipe")
        return await super().exchange(down)


def test_policy_is_handed_down_when_it_changes() -> None:
    async def scenario() -> None:
        reach = {"mode": "reach", "weight": 1.0, "prefetch": True}
        lru = {"mode": "lru", "weight": 1.0, "prefetch": False}
        bench = Bench(FakeActor(*(make_reply(policy=policy) for policy in (reach, reach, lru, {"mode": 3}))))
        await bench.steps(4)
        policies = [down.policy for down in bench.port.downs if down.policy]
        assert policies == [("reach", 1.0), ("lru", 1.0)]
        assert bench.switches == [True, True, False]
        assert bench.stats.bad_messages == 1

    asyncio.run(scenario())


SHAPING = {"name": "batch_shaping", "enabled": True, "options": {"window": 8}}
OFF = {**SHAPING, "enabled": False}


def handed(bench: Bench) -> list[list[dict]]:
    return [json.loads(down.queue_policies) for down in bench.port.downs if down.queue_policies is not None]


def test_policies_of_the_queue_are_handed_down_when_they_change() -> None:
    async def scenario() -> None:
        said = [[SHAPING], [SHAPING], [OFF], [OFF], [], []]
        bench = Bench(FakeActor(*(make_reply(policies=policies) for policies in said)))
        await bench.steps(6)
        assert handed(bench) == [[SHAPING], [OFF], []], "who was told isn't told again"
        bench = Bench(FakeActor(make_reply(policies=[{**SHAPING, "options": {"x": 10**40}}]), make_reply()))
        await bench.steps(1)
        assert handed(bench)[0][0]["options"] == {"x": 10**40}, "numbers that msgpack can't hold"
        bench.actor.script = [make_reply(policies=[{"name": object()}], tables={"w": b"t"})]
        await bench.steps(1)
        assert bench.stats.bad_messages == 1 and len(handed(bench)) == 1
        assert bench.port.downs[-1].tables == {"w": b"t"}, "the rest of the answer is taken"

    asyncio.run(scenario())


def test_a_new_replica_and_a_restarted_actor() -> None:
    async def scenario() -> None:
        actor = FakeActor(make_reply(policies=[OFF]), make_reply(epoch=8, policies=[OFF]), make_reply(policies=[OFF]))
        bench = Bench(actor)
        await bench.steps(2)
        assert handed(bench) == [[OFF]], "an actor that came back says the same: no news"
        fresh = Bench(actor)
        await fresh.steps(1)
        assert handed(fresh) == [[OFF]], "a new replica's engine has only what was configured"

    asyncio.run(scenario())


def test_an_older_deployments_policies_wait_for_the_actor_to_be_configured() -> None:
    async def scenario() -> None:
        replies = [make_reply(policies=[OFF], config_version=version) for version in (3, 4, 5)]
        bench = Bench(FakeActor(*replies), config_version=4)
        await bench.steps(1)
        assert handed(bench) == []
        await bench.steps(2)
        assert handed(bench) == [[OFF]]

    asyncio.run(scenario())


def test_a_call_without_an_answer_may_still_be_carried_out() -> None:
    """The engine was told A; B got no answer, and before it is told again the operator is back at A."""

    async def scenario() -> None:
        port = FakePort()
        policy_a, policy_b = {"mode": "reach", "weight": 1.0}, {"mode": "lru", "weight": 1.0}
        bench = Bench(FakeActor(make_reply(policies=[SHAPING], policy=policy_a)), port)
        await bench.steps(1)
        port.busy = True
        bench.actor.script = [make_reply(policies=[OFF], policy=policy_b)]
        await bench.steps(1)
        assert bench.feed.busy_calls > 0
        bench.actor.script = [make_reply(policies=[SHAPING], policy=policy_a)] * 2
        await bench.steps(1)
        port.busy = False
        await bench.steps(1)
        assert handed(bench)[-1] == [SHAPING] and len(handed(bench)) == 2
        assert [down.policy for down in port.downs if down.policy] == [("reach", 1.0)] * 2

    asyncio.run(scenario())


def test_adapters_go_down_and_what_became_of_them_goes_up() -> None:
    async def scenario() -> None:
        bench = Bench(FakeActor(make_reply(adapters={"poet": 0.8})))
        await bench.steps(1)
        assert bench.adapters == [{"poet": 0.8}]
        assert {"name": "adapters"} in bench.report().policies

    asyncio.run(scenario())


def test_a_malformed_action_costs_only_itself() -> None:
    async def scenario() -> None:
        good = make_action().to_wire()
        bench = Bench(FakeActor(make_reply(actions=[{**good, "value": "high"}, good])))
        await bench.steps(1)
        assert [action.action_id for action in bench.actions] == ["p1"]
        assert bench.stats.bad_messages == 1

    asyncio.run(scenario())


def run_pause(bench: Bench, next_call_s: float) -> list[tuple[bool, float]]:
    bench.clock.waits.clear()
    asyncio.run(bench.loop._pause(bench.clock.now_s, next_call_s))
    return [(for_events, round(wait_s, 6)) for for_events, wait_s in bench.clock.waits]


def test_events_wake_the_loop_after_the_least_gap() -> None:
    bench = Bench(FakeActor())
    bench.events.add(ended(1))
    started_s = bench.clock.now_s
    assert run_pause(bench, 1.0) == [(False, 0.1), (True, 0.9)]
    assert abs(bench.clock.now_s - started_s - 0.1) < 1e-9


def test_without_events_the_loop_calls_when_the_actor_said() -> None:
    bench = Bench(FakeActor())
    started_s = bench.clock.now_s
    run_pause(bench, 1.0)
    assert abs(bench.clock.now_s - started_s - 1.0) < 1e-9


def test_while_the_actor_is_away_events_dont_hasten_the_next_call() -> None:
    async def scenario() -> Bench:
        bench = Bench(FakeActor(None))
        bench.events.add(ended(1))
        assert await bench.loop.step() == bench.settings.away_retry_s
        return bench

    bench = asyncio.run(scenario())
    assert run_pause(bench, 1.0) == [(False, 0.1), (False, 0.9)]


def test_the_actor_sets_the_pace_within_bounds() -> None:
    async def scenario() -> None:
        bench = Bench(
            FakeActor(
                make_reply(next_call_s=0.0),
                make_reply(next_call_s=900.0),
                make_reply(next_call_s=0.0, min_gap_s=0.7),
            )
        )
        assert [await bench.loop.step() for _ in range(3)] == [0.1, 5.0, 0.7]

    asyncio.run(scenario())


def test_a_wait_that_is_cancelled_as_its_event_comes_is_cancelled() -> None:
    async def scenario() -> None:
        event = asyncio.Event()
        task = asyncio.ensure_future(SystemClock().wait(event, 60.0))
        await asyncio.sleep(0)
        event.set()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()

    asyncio.run(scenario())
