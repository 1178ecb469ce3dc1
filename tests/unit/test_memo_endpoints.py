"""The endpoints under /runtime/memo: shapes, tenants, events, the switch, an actor that is away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runtime_actor.errors import ConfigurationError
from runtime_actor.memo_actor import MemoActor
from runtime_actor.messages import RequestAccepted
from runtime_actor.policies.memo import ALL, MAX_PENDING, MemoPolicy
from serve_app.config import load
from serve_app.memo_endpoints import MAX_CALLS
from serve_app.policies.memo_desk import MAX_OPEN_CALLS, MemoDesk
from tests.unit.gateway_bench import Answer, Bench, LocalActor
from tests.unit.policy_kit import ManualClock, settings

TOOLS = [
    {"tool": "read", "invalidated_by": ["write", "deployed"]},
    {"tool": "mine", "tenants": ["ops"]},
]


@pytest.fixture
def bench() -> Bench:
    return Bench(policies=[{"name": "memo", "options": {"tools": TOOLS}}])


def ask(bench: Bench, what: str, tenant: str = "one", **body: Any) -> dict[str, Any]:
    answer = bench.ask("POST", f"/runtime/memo/{what}", tenant, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def keep(bench: Bench, value: Any = 1, tool: str = "read", tenant: str = "one", **arguments: Any) -> None:
    found = ask(bench, "lookup", tenant, tool=tool, arguments=arguments)
    assert found["outcome"] == "run"
    assert ask(bench, "store", tenant, ticket=found["ticket"], value=value) == {"stored": True, "reason": "stored"}


def test_a_result_comes_back_as_it_was(bench: Bench) -> None:
    value = {"text": 'é "\u2028 \U0001f600', "n": [1, 2.5, None, True]}
    keep(bench, value, path="/a")
    hit = ask(bench, "lookup", tool="read", arguments={"path": "/a"})
    assert (hit["outcome"], hit["value"]) == ("hit", value) and hit["age_s"] >= 0.0
    assert ask(bench, "lookup", tool="read", arguments={"path": "/b"})["outcome"] == "run"


def test_tenants_share_nothing(bench: Bench) -> None:
    keep(bench)
    other = ask(bench, "lookup", "ops", tool="read")
    assert other["outcome"] == "run"
    assert ask(bench, "store", ticket=other["ticket"], value=2)["reason"] == "unknown_ticket"
    assert ask(bench, "invalidate", "ops", tool="read") == {"invalidated": 0}
    assert ask(bench, "lookup", tool="mine")["ticket"] is None
    assert ask(bench, "lookup", "ops", tool="mine")["ticket"] is not None


@pytest.mark.parametrize("how", ["event", "tool", "tool_returned"])
def test_events_make_results_void(bench: Bench, how: str) -> None:
    keep(bench)
    if how == "tool_returned":
        event = {"type": "tool_returned", "session_id": "s", "tool": "write"}
        assert bench.ask("POST", "/runtime/events", json=event).status_code == 202
    else:
        assert ask(bench, "invalidate", **{how: "deployed" if how == "event" else "read"}) == {"invalidated": 1}
    assert ask(bench, "lookup", tool="read")["outcome"] == "run"


def test_a_failed_run_is_given_back(bench: Bench) -> None:
    found = ask(bench, "lookup", tool="read")
    assert ask(bench, "lookup", tool="read")["outcome"] == "wait"
    assert ask(bench, "release", ticket=found["ticket"]) == {"released": True}
    assert ask(bench, "lookup", tool="read")["ticket"] is not None


def test_the_switch(bench: Bench) -> None:
    keep(bench)
    bench.gateway._policies.follow([{"name": "memo", "enabled": False, "options": {"tools": TOOLS}}], 1)
    assert ask(bench, "lookup", tool="read") == {"outcome": "run", "ticket": None}
    assert ask(bench, "store", ticket="x", value=1) == {"stored": False, "reason": "off"}
    event = {"type": "tool_returned", "session_id": "s", "tool": "write"}
    assert bench.ask("POST", "/runtime/events", json=event).status_code == 202
    bench.gateway._policies.follow([{"name": "memo", "options": {"tools": TOOLS}}], 1)
    assert ask(bench, "lookup", tool="read")["outcome"] == "run", "nobody listened to what makes results void"
    keep(bench, path="/new")
    bench.gateway._policies.follow([{"name": "memo", "options": {"tools": TOOLS}}, {"name": "fairness"}], 1)
    assert ask(bench, "lookup", tool="read", arguments={"path": "/new"})["outcome"] == "hit", "another policy's switch"


def test_a_gateway_that_takes_over_uses_nothing_that_it_knows_nothing_of(bench: Bench) -> None:
    """The one before it may have owed an invalidation when it ended."""
    keep(bench)
    successor = Bench(policies=[{"name": "memo", "options": {"tools": TOOLS}}])
    handle = bench.gateway._memo._handle
    successor.gateway._memo._resolve = lambda *_: handle
    assert ask(successor, "lookup", tool="read")["outcome"] == "run"
    keep(successor, path="/b")
    assert ask(successor, "lookup", tool="read", arguments={"path": "/b"})["outcome"] == "hit"


def desk_on(actor: MemoActor) -> MemoDesk:
    bench = Bench(policies=[{"name": "memo", "options": {"tools": TOOLS}}])
    desk: MemoDesk = bench.gateway._memo
    desk._resolve = lambda *_: LocalActor(actor)
    return desk


def test_a_request_makes_no_actor() -> None:
    """It is there from the first look-up on."""
    bench = Bench(policies=[{"name": "memo", "options": {"tools": TOOLS}}])
    bench.handle.items = [RequestAccepted("r1", 40, 32).to_wire(), Answer()]
    assert bench.chat().status_code == 200
    assert bench.gateway._memo._handle is None
    ask(bench, "lookup", tool="read")
    assert bench.gateway._memo._handle is not None


def test_a_caller_that_leaves_holds_up_nobody() -> None:
    """It may be the next to run the tool when it is gone already; its ticket is given back, not held for its lease."""

    async def main() -> None:
        desk = desk_on(MemoActor(1 << 20, 1 << 20))
        first = await desk.lookup("one", "read", None, {}, 0.0)
        left = asyncio.create_task(desk.lookup("one", "read", None, {}, 20.0))
        async with asyncio.timeout(20.0):
            while (await desk.state() or {})["waiting"] != 1:
                await asyncio.sleep(0)
            left.cancel()
            await desk.release("one", first["ticket"])
            found = await desk.lookup("one", "read", None, {}, 20.0)
        assert found["ticket"] is not None and (await desk.state() or {})["running"] == 1
        stored = asyncio.create_task(desk.store("one", found["ticket"], b"1"))
        await asyncio.sleep(0)
        stored.cancel()
        assert (await desk.lookup("one", "read", None, {}, 20.0))["outcome"] == "hit", "what was brought is kept"

    asyncio.run(main())


class SlowToTell(MemoActor):
    """An invalidation is done at once and told when `gate` opens."""

    def __init__(self) -> None:
        super().__init__(1 << 20, 1 << 20)
        self.gate = asyncio.Event()
        self.done = 0

    async def invalidate(self, tenant: str, tool: str) -> int:
        dropped = await super().invalidate(tenant, tool)
        self.done += 1
        await self.gate.wait()
        return dropped


def test_what_happens_while_an_invalidation_is_carried_out_is_another_one() -> None:
    async def main() -> None:
        actor = SlowToTell()
        desk = desk_on(actor)
        policy = desk.policy
        assert policy is not None
        key = policy.key("one", "read", None, {})
        assert key is not None
        begun = await desk.lookup("one", "read", None, {}, 0.0)
        await desk.release("one", begun["ticket"])
        first = asyncio.create_task(desk.invalidate("one", None, "deployed"))
        async with asyncio.timeout(20.0):
            while not actor.done:
                await asyncio.sleep(0)
            limits = {"ttl_s": 60.0, "lease_s": 60.0, "sample": 0.0, "max_value_bytes": 1000}
            ticket = (await actor.lookup("one", key.digest, "read", limits, 0.0))["ticket"]
            await actor.store("one", ticket, b"1")
            policy.happened("one", "deployed")
            second = asyncio.create_task(desk.lookup("one", "read", None, {}, 0.0))
            await asyncio.sleep(0.01)
            assert not second.done(), "a look-up waits until it is done"
            actor.gate.set()
            assert await first == 0 and (await second)["outcome"] == "run" and actor.done == 2

    asyncio.run(main())


def test_more_invalidations_than_can_wait_drop_everything() -> None:
    made = MemoPolicy(settings(MemoPolicy, tools=TOOLS), ManualClock())
    for number in range(MAX_PENDING + 5):
        made.happened(f"t{number}", "write")
    assert [(s.tenant, s.tool) for s in made.act()] == [ALL] and made.counters()["dropped_all"] == 1
    bench = Bench(policies=[{"name": "memo", "options": {"tools": TOOLS}}])
    keep(bench)
    for number in range(MAX_PENDING + 5):
        bench.gateway._memo.policy.happened(f"t{number}", "write")
    assert ask(bench, "lookup", tool="read")["outcome"] == "run"


def test_tools_that_are_not_on_the_list_are_owed_nothing(bench: Bench) -> None:
    def away(*_: Any) -> Any:
        raise RuntimeError("no actor")

    desk = bench.gateway._memo
    desk._resolve = away
    for number in range(50):
        bench.ask("POST", "/runtime/memo/invalidate", json={"tool": f"made up {number}"})
    assert len(desk._owed) <= 1


def test_calls_at_a_time_are_bounded_before_a_body_is_read(bench: Bench) -> None:
    seats = bench.gateway._memo_seats
    slots = [seats.take("one") for _ in range(MAX_CALLS // 2)]
    refused = bench.ask(
        "POST", "/runtime/memo/lookup", content=b"no json", headers={"content-type": "application/json"}
    )
    assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
    assert ask(bench, "lookup", "ops", tool="read")["outcome"] == "run", "another tenant's aren't its"
    for slot in slots:
        slot.free()
    assert ask(bench, "lookup", tool="read")["outcome"] == "run" and len(seats) == 0


def test_counters_are_the_operators(bench: Bench) -> None:
    keep(bench)
    ask(bench, "lookup", tool="read")
    state = bench.ask("GET", "/runtime/state", "ops").json()
    memo = state["gateway"]["memo"]
    assert (memo["hits"], memo["misses"], memo["stored"], memo["entries"]) == (1, 1, 1, 1)
    assert "memo" not in bench.ask("GET", "/runtime/state").json()["gateway"]


def test_an_actor_that_is_away_costs_a_run_and_owes_the_invalidation(bench: Bench) -> None:
    keep(bench)
    desk = bench.gateway._memo
    handle, resolve = desk._handle, desk._resolve

    def away(*_: Any) -> Any:
        raise RuntimeError("no actor")

    desk._handle, desk._resolve = None, away
    assert ask(bench, "lookup", tool="read") == {"outcome": "run", "ticket": None}
    assert bench.ask("POST", "/runtime/memo/invalidate", json={"tool": "read"}).status_code == 503
    desk._resolve, desk._retry_at_s = lambda *_: handle, 0.0
    assert ask(bench, "lookup", tool="read")["outcome"] == "run", "dropped before the first look-up"
    desk._resolve = resolve


@pytest.mark.parametrize(
    ("what", "body", "param"),
    [
        ("lookup", {}, "tool"),
        ("lookup", {"tool": ""}, "tool"),
        ("lookup", {"tool": "x" * 300}, "tool"),
        ("lookup", {"tool": "read", "arguments": []}, "arguments"),
        ("lookup", {"tool": "read", "wait_s": 31}, "wait_s"),
        ("lookup", {"tool": "read", "wait_s": True}, "wait_s"),
        ("lookup", {"tool": "read", "version": 3}, "version"),
        ("lookup", {"tool": "read", "other": 3}, None),
        ("store", {"ticket": "x"}, "value"),
        ("store", {"value": 1}, "ticket"),
        ("release", {}, "ticket"),
        ("invalidate", {}, "tool"),
    ],
)
def test_bad_input(bench: Bench, what: str, body: dict[str, Any], param: str | None) -> None:
    answer = bench.ask("POST", f"/runtime/memo/{what}", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert bench.ask("POST", f"/runtime/memo/{what}", None, json=body).status_code == 401


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tools": [{"tool": "x", "ttl": 5}]}, "policies.memo.options.tools[0].ttl: unknown key"),
        ({"tools": [{"tool": "x", "sample": 2}]}, "policies.memo.options.tools[0].sample: 2"),
        ({"max_bytes": 1}, "policies.memo.options.max_bytes: 1"),
        ({"tools": [{"tool": "x", "run_ahead": True}]}, "policies.memo.options.tools[0].run_ahead: True"),
        ({"tools": [{"tool": "x", "run_ahead": "yes"}]}, "policies.memo.options.tools[0].run_ahead: 'yes'"),
        ({"run_ahead": {"at_once": 0}}, "policies.memo.options.run_ahead.at_once: 0"),
        ({"run_ahead": {"max_waste": 1.5}}, "policies.memo.options.run_ahead.max_waste: 1.5"),
        ({"run_ahead": {"wast": 1}}, "policies.memo.options.run_ahead.wast: unknown key"),
        ({"tools": [{"tool": "x"}] * 1025}, "1025 are not allowed"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        load({"model": {"id": "m", "source": "x"}, "policies": [{"name": "memo", "options": options}]})
    assert text in str(error.value)


def test_keys_differ_by_what_matters_only() -> None:
    made = MemoPolicy(settings(MemoPolicy, tools=[{"tool": "x", "ignored": ["trace"]}]), ManualClock())

    def digest(version: str | None = None, **arguments: Any) -> str:
        key = made.key("t", "x", version, arguments)
        assert key is not None
        return key.digest

    assert digest(a=1, b=2) == digest(b=2, a=1) == digest(a=1, b=2, trace="z")
    assert len({digest(a=1), digest(a="1"), digest(a=[1]), digest("2", a=1), digest(), digest(A=1)}) == 6
    assert made.key("t", "y", None, {}) is None
    assert made.key("t", "x", None, {"a": "x" * 300_000}) is None
    assert made.counters() == {"asked": 9, "not_allowed": 1, "too_long": 1}


def test_a_tenant_with_many_runs_under_way_takes_no_place_of_another() -> None:
    bench = Bench(policies=[{"name": "memo", "options": {"tools": TOOLS}}])
    quiet = ask(bench, "lookup", tool="read", session_id="task-1")["ticket"]
    desk = bench.gateway._memo
    for number in range(MAX_OPEN_CALLS + 1):
        desk._note("ops", f"ticket-{number}", "s", "d")
    assert desk._open.get("one", quiet) is not None
    assert len(desk._open) == MAX_OPEN_CALLS
    ask(bench, "release", "ops", ticket=quiet)
    assert desk._open.get("one", quiet) is not None, "a ticket is its own tenant's"
    ask(bench, "release", ticket=quiet)
    assert desk._open.get("one", quiet) is None
