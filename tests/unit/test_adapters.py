"""Adapters: what they are worth by who speaks next, what a replica loads for it, and what has to go."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.adapters import AdapterFailed, AdapterKeeper
from replicas.simulation.adapters import SimulatedAdapters
from runtime_actor.errors import EngineBusy
from runtime_actor.policies.adapters import IDLE_S
from runtime_actor.runtime import AgentRuntime
from tests.unit.gateway_bench import Bench
from tests.unit.runtime_kit import Kit

ADAPTERS = {"a": "poet", "b": "judge", "c": "clerk"}
POLICIES = [{"name": "kv_cache"}, {"name": "adapters"}]


def taught(policies: list[dict[str, Any]] | None = None) -> Kit:
    """Sessions that walk a, b, c; each agent with its adapter."""
    kit = Kit(policies=POLICIES if policies is None else policies)
    kit.exchange(report=kit.report())
    for number in range(20):
        for agent in "abc":
            kit.clock.advance(1.0)
            kit.runtime.handle([kit.arrived(f"taught-{number}", agent, adapter=ADAPTERS[agent])])
        kit.runtime.handle([kit.ended(f"taught-{number}")])
    return kit


def test_a_replica_hears_which_adapters_its_sessions_need_next() -> None:
    kit = taught()
    kit.runtime.handle([kit.arrived("s", "a", adapter="poet")])
    assert kit.exchange(report=kit.report()).adapters == {
        "judge": pytest.approx(1.0, abs=0.01),
        "clerk": pytest.approx(1.0, abs=0.01),
    }
    kit.runtime.handle([kit.arrived("s", "b", adapter="judge")])
    values = kit.exchange(report=kit.report()).adapters
    assert values["clerk"] > 0.99 and "poet" not in values
    kit.runtime.handle([kit.ended("s")])
    assert kit.exchange(report=kit.report()).adapters == {}


def test_sessions_move_and_fall_silent() -> None:
    kit = taught()
    kit.exchange("r2", report=kit.report("r2"))
    kit.runtime.handle([kit.arrived("s", "a", adapter="poet")])
    assert "judge" in kit.exchange(report=kit.report()).adapters
    kit.runtime.handle([kit.arrived("s", "b", adapter="judge", replica="r2")])
    assert kit.exchange(report=kit.report()).adapters == {}
    assert "clerk" in kit.exchange("r2", report=kit.report("r2")).adapters
    kit.clock.advance(IDLE_S + 1.0)
    assert kit.exchange("r2", report=kit.report("r2")).adapters == {}


moves = st.lists(st.tuples(st.sampled_from("st"), st.sampled_from("abc"), st.sampled_from(["r1", "r2", "r3"])))


@settings(deadline=None, max_examples=30)
@given(moves)
def test_each_replica_hears_what_the_sessions_there_need_and_no_more(moves: list[tuple[str, str, str]]) -> None:
    """Wherever sessions move, with other needs or the same."""
    kit = taught()
    policy = kit.runtime.host.get("adapters").policy
    for session, agent, replica in moves:
        kit.runtime.handle([kit.arrived(session, agent, adapter=ADAPTERS[agent], replica=replica)])
        for name in ("r1", "r2", "r3"):
            assert kit.exchange(name, report=kit.report(name)).adapters == policy._values(name)


def test_agents_without_an_adapter_need_none_and_tenants_are_apart() -> None:
    kit = taught()
    kit.teach("xyz", tenant="other")
    kit.runtime.handle([kit.arrived("o", "x", "other")])
    assert kit.exchange(report=kit.report()).adapters == {}
    kit.runtime.handle([kit.arrived("p", "a", "other")])
    assert kit.exchange(report=kit.report()).adapters == {}, "that agent's adapter is another tenant's knowledge"


@pytest.mark.parametrize(
    "policies", [[{"name": "kv_cache"}], [{"name": "kv_cache"}, {"name": "adapters", "enabled": False}]]
)
def test_off_nothing_is_said(policies: list[dict[str, Any]]) -> None:
    kit = taught(policies)
    kit.runtime.handle([kit.arrived("s", "a", adapter="poet")])
    assert kit.exchange(report=kit.report()).adapters == {}


def test_switched_off_while_it_runs_it_says_no_more() -> None:
    kit = taught()
    kit.runtime.handle([kit.arrived("s", "a", adapter="poet")])
    assert kit.exchange(report=kit.report()).adapters
    kit.runtime.set_policy("adapters", {"enabled": False})
    assert kit.exchange(report=kit.report()).adapters == {}
    kit.runtime.set_policy("adapters", {"enabled": True})
    assert kit.exchange(report=kit.report()).adapters == {}, "what it said before is not what it says now"


# --- after a failure ----------------------------------------------------------------------------------


def test_a_replica_that_was_cut_off_hears_again_what_it_needs() -> None:
    kit = taught()
    kit.runtime.handle([kit.arrived("s", "a", adapter="poet")])
    before = kit.exchange(report=kit.report()).adapters
    kit.clock.advance(kit.runtime.settings.replica_timeout_s + 1.0)
    assert kit.runtime.state()["replicas"] == [], "it counts as gone"
    assert kit.exchange(report=kit.report()).adapters == before != {}


def test_a_session_may_be_known_before_its_replica() -> None:
    """As where another replica takes a dead one's place, and its first request is told before its first report."""
    kit = taught()
    kit.runtime.handle([kit.arrived("s", "a", adapter="poet", replica="r2")])
    kit.exchange(report=kit.report())
    assert set(kit.exchange("r2", report=kit.report("r2")).adapters) == {"judge", "clerk"}


def test_values_for_replicas_that_never_report_are_bounded() -> None:
    kit = taught([{"name": "kv_cache"}, {"name": "adapters"}])
    most = kit.runtime.settings.max_replicas
    for number in range(most + 20):
        kit.runtime.handle([kit.arrived(f"s{number}", "a", adapter="poet", replica=f"made-up-{number}")])
        kit.exchange(report=kit.report())
    assert len(kit.runtime._adapters) == most
    newest = f"made-up-{most + 19}"
    assert kit.exchange(newest, report=kit.report(newest)).adapters, "the ones told of longest ago go"


def test_another_replica_in_a_dead_ones_place_loads_what_is_forecast_and_serves_the_rest_on_demand() -> None:
    kit = taught()
    kit.runtime.handle([kit.arrived("s", "a", adapter="poet")])
    kit.exchange(report=kit.report())
    made, port = keeper(names=tuple(ADAPTERS.values()))
    kit.runtime.handle([kit.arrived("s", "a", adapter="poet", replica="r2")])
    made.take_values(kit.exchange("r2", report=kit.report("r2")).adapters)
    asyncio.run(made.step())
    assert held(port) == {"judge", "clerk"} and made.counts["loaded_ahead"] == 2
    for name, counted in (("judge", "hidden"), ("poet", "on_demand")):
        made.request_began(name)
        asyncio.run(port.use(name))
        assert name in held(port) and made.counts[counted] == 1
        made.request_ended(name)
    assert kit.exchange(report=kit.report()).adapters == {}, "nothing is needed where the session was"


def test_a_new_actor_knows_an_agents_adapter_from_its_next_request_on() -> None:
    before = taught()
    kit = taught([])
    kit.runtime = AgentRuntime.restore(before.runtime.dump(), before.runtime.settings, 0, kit.clock, epoch=2)
    kit.exchange(report=kit.report())
    kit.runtime.handle([kit.arrived("s", "a", adapter="poet")])
    assert kit.exchange(report=kit.report()).adapters == {}, "which adapters the others have is in no checkpoint"
    kit.runtime.handle([kit.arrived("s", "b", adapter="judge"), kit.arrived("s", "c", adapter="clerk")])
    kit.runtime.handle([kit.arrived("s2", "a", adapter="poet")])
    assert set(kit.exchange(report=kit.report()).adapters) == {"judge", "clerk"}


# --- the replica --------------------------------------------------------------------------------------


def keeper(slots: int = 2, names: Iterable[str] = "abcd") -> tuple[AdapterKeeper, SimulatedAdapters]:
    port = SimulatedAdapters(slots, 0.0)
    return AdapterKeeper(port, frozenset(names)), port


def held(port: SimulatedAdapters) -> set[str]:
    return asyncio.run(port.loaded())


def test_the_most_needed_are_loaded_and_the_least_needed_goes() -> None:
    made, port = keeper()
    made.take_values({"a": 0.9, "b": 0.5, "c": 0.4, "unknown": 1.0, "d": float("nan")})
    asyncio.run(made.step())
    assert held(port) == {"a", "b"}
    made.take_values({"c": 0.8, "a": 0.6})
    asyncio.run(made.step())
    assert held(port) == {"a", "c"}, "b isn't needed any more"
    assert made.counts["wasted"] == 1, "it was loaded and never used"
    made.take_values({"d": 0.5})
    made.request_began("a")
    made.request_began("c")
    asyncio.run(made.step())
    assert held(port) == {"a", "c"} and made.counts["no_room"] == 1, "both are in use"
    made.request_ended("a")
    asyncio.run(made.step())
    assert held(port) == {"c", "d"}


def test_what_the_engine_drops_before_anybody_used_it_is_wasted_too() -> None:
    made, port = keeper()
    made.take_values({"a": 0.9, "b": 0.8})
    asyncio.run(made.step())
    made.request_began("b")
    for adapter in "bcd":
        asyncio.run(port.use(adapter))
    made.take_values({"c": 0.9})
    asyncio.run(made.step())
    assert held(port) == {"c", "d"} and made.counts["wasted"] == 1, "a; b was used"


def test_what_is_needed_as_much_stays() -> None:
    made, port = keeper(slots=1)
    made.take_values({"a": 0.5})
    asyncio.run(made.step())
    made.take_values({"a": 0.5, "b": 0.5})
    asyncio.run(made.step())
    assert held(port) == {"a"} and port.loads == 1


def test_requests_for_the_model_itself_do_not_ask_the_engine() -> None:
    made, _ = keeper()
    for adapter, is_awake in (("the-model", False), ("a", True)):
        made.request_began(adapter)
        made.request_ended(adapter)
        assert made._wake.is_set() == is_awake


def test_without_values_the_engine_is_left_alone() -> None:
    made, port = keeper()
    asyncio.run(port.use("a"))
    asyncio.run(made.step())
    assert (held(port), made.counts["loaded_ahead"], port.loads) == ({"a"}, 0, 1)


def test_faults_of_the_engine_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    made, port = keeper()

    async def failing(_: str) -> None:
        raise AdapterFailed("rank 64 is too large")

    async def busy() -> set[str]:
        raise EngineBusy("stuck")

    monkeypatch.setattr(port, "load", failing)
    made.take_values({"a": 0.9})
    asyncio.run(made.step())
    assert made.counts["failed"] == 1 and made.as_row()["loaded"] == []
    monkeypatch.setattr(port, "loaded", busy)
    asyncio.run(made.step())
    assert made.counts["busy"] == 1


@given(
    st.lists(st.tuples(st.sampled_from(["began", "ended", "values"]), st.sampled_from("abcd"), st.floats(0.01, 1.0)))
)
def test_no_more_than_its_slots_and_never_one_in_use(steps: list[tuple[str, str, float]]) -> None:
    made, port = keeper()
    running: list[str] = []
    unload = port.unload

    async def watched(name: str) -> None:
        assert name not in running
        await unload(name)

    port.unload = watched  # type: ignore[method-assign]
    for what, name, value in steps:
        if what == "began" and (name in running or len(set(running)) < 2):
            made.request_began(name)
            running.append(name)
            asyncio.run(port.use(name))
        elif what == "ended" and name in running:
            running.remove(name)
            made.request_ended(name)
        else:
            made.take_values({name: value})
            asyncio.run(made.step())
        assert len(held(port)) <= 2


def played(is_on: bool, sessions: int = 20) -> tuple[int, int]:
    """(requests whose adapter had to be loaded first, requests) of sessions that walk three agents, two slots."""
    kit = taught(POLICIES if is_on else POLICIES[:1])
    port = SimulatedAdapters(2, 0.0)
    made = AdapterKeeper(port, frozenset(ADAPTERS.values()))
    misses = 0
    for number, agent in itertools.product(range(sessions), "abc"):
        kit.clock.advance(1.0)
        before = port.loads
        made.request_began(ADAPTERS[agent])
        asyncio.run(port.use(ADAPTERS[agent]))
        misses += port.loads - before
        kit.runtime.handle([kit.arrived(f"s{number}", agent, adapter=ADAPTERS[agent])])
        made.request_ended(ADAPTERS[agent])
        made.take_values(kit.exchange(report=kit.report()).adapters)
        asyncio.run(made.step())
    return misses, 3 * sessions


def test_loads_are_hidden_that_the_engines_own_order_would_make_requests_wait_for() -> None:
    stock, requests = played(is_on=False)
    ahead, _ = played(is_on=True)
    assert stock == requests, "three adapters in turn in two slots: the one unused for longest is always the next"
    assert ahead <= 0.4 * requests, "only a session's first agent, which nobody could foresee, still waits"


# --- the gateway ----------------------------------------------------------------------------------------


def test_an_adapter_is_a_model_that_requests_name() -> None:
    bench = Bench(policies=POLICIES)
    config = bench.gateway._settings.config
    model = config.model.model_copy(update={"adapters": {"poet": "/nowhere"}})
    settings = bench.gateway._settings
    changed = config.model_copy(update={"model": model})
    bench.gateway._settings = dataclasses.replace(settings, config=changed)
    listed = bench.ask("GET", "/v1/models").json()["data"]
    assert [card["id"] for card in listed] == ["m", "poet"]
    assert bench.ask("GET", "/v1/models/poet").status_code == 200
    bench.chat(model="poet")
    bench.chat(model="m")
    asked = [request.model for request, _ in bench.handle.requests]
    assert asked[0] == "poet" and asked[-1] == "m" and set(asked) == {"poet", "m"}
    assert bench.chat(model="other").status_code == 404
