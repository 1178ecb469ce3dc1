"""Calls run ahead, end to end: decorators, the MCP proxy as its own process, what stops them, and failures."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters

from agent_client.ahead import MAX_QUEUED, AsyncAhead, Offer, PlainAhead
from agent_client.memo import Memo
from tests.gateway_kit import wait_for
from tests.unit.gateway_bench import KEYS, Bench, listening

TOOLS = [
    {"tool": "user"},
    {"tool": "order", "read_only": True, "run_ahead": True, "invalidated_by": ["cancel"]},
    {"tool": "cancel", "read_only": True, "run_ahead": True},
]
POLICIES = [{"name": "memo", "options": {"tools": TOOLS, "run_ahead": {"at_once": 3}}}]


@pytest.fixture
def bench() -> Bench:
    return Bench(policies=POLICIES, max_in_flight=256)


@pytest.fixture
def served(bench: Bench) -> Iterator[str]:
    with listening(bench) as url:
        yield url


def counts(url: str) -> dict[str, int]:
    answer = httpx.get(f"{url}/runtime/state", headers={"authorization": f"Bearer {KEYS['ops']}"})
    found: dict[str, int] = answer.json()["gateway"]["memo"]
    return found


class Shop:
    """Users with three orders each, and what was looked up."""

    def __init__(self, memo: Memo, ahead: bool = True) -> None:
        self.runs: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.user = memo.tool("user")(self._user)
        self.order = memo.tool("order", ahead=ahead)(self._order)

    def _user(self, user_id: str) -> dict[str, Any]:
        self.runs.append(user_id)
        return {"orders": [f"{user_id}-{n}" for n in range(3)]}

    def _order(self, order_id: str) -> str:
        assert self.gate.wait(20.0)
        self.runs.append(order_id)
        if order_id.startswith("lost"):
            raise LookupError(order_id)
        return order_id.upper()


def teach(memo: Memo, shop: Shop) -> None:
    for user in ("anna", "bert"):
        with memo.session(user):
            for order in shop.user(user)["orders"]:
                shop.order(order)
    wait_for(lambda: memo.plain_ahead.is_idle, 20.0, "what was expected has been run")
    shop.runs.clear()


def test_plain_functions(served: str) -> None:
    memo = Memo(served, "k1")
    shop = Shop(memo)
    teach(memo, shop)
    before = counts(served)
    with memo.session("carl"):
        orders = shop.user("carl")["orders"]
        wait_for(lambda: memo.plain_ahead.is_idle, 20.0, "its orders have been looked up")
        assert sorted(shop.runs) == ["carl", *orders]
        assert [shop.order(order) for order in orders[:2]] == ["CARL-0", "CARL-1"]
    assert len(shop.runs) == 4, "nothing was run twice"
    after = counts(served)
    assert after["ahead_issued"] - before.get("ahead_issued", 0) == 3
    assert after["ahead_used"] - before.get("ahead_used", 0) == 2
    httpx.post(f"{served}/runtime/memo/invalidate", json={"event": "cancel"}, headers={"authorization": "Bearer k1"})
    assert counts(served)["ahead_wasted"] - before.get("ahead_wasted", 0) == 1
    memo.close()


def test_who_asks_meanwhile_waits_for_the_same_run(served: str) -> None:
    memo = Memo(served, "k1")
    shop = Shop(memo)
    teach(memo, shop)
    with memo.session("carl"):
        shop.gate.clear()
        first = shop.user("carl")["orders"][0]
        wait_for(lambda: counts(served)["running"] == 3, 20.0, "all three run")
        answers: list[str] = []
        caller = threading.Thread(target=lambda: answers.append(shop.order(first)))
        caller.start()
        wait_for(lambda: counts(served)["waiting"] == 1, 20.0, "the program waits for one of them")
        shop.gate.set()
        caller.join(20.0)
    assert answers == ["CARL-0"] and shop.runs.count(first) == 1
    memo.close()


def test_a_failure_is_silent_and_not_kept(served: str, caplog: pytest.LogCaptureFixture) -> None:
    memo = Memo(served, "k1")
    shop = Shop(memo)
    teach(memo, shop)
    with caplog.at_level(logging.INFO, "agent_client"), memo.session("lost"):
        orders = shop.user("lost")["orders"]
        wait_for(lambda: memo.plain_ahead.is_idle, 20.0, "they have failed")
        assert not caplog.records
        assert counts(served)["ahead_failed"] == 3 and counts(served)["running"] == 0
        with pytest.raises(LookupError):
            shop.order(orders[0])
    memo.close()


@pytest.mark.parametrize("why", ["not offered", "no session", "none at once", "another tenant", "switched off"])
def test_nothing_is_run_ahead(served: str, bench: Bench, why: str) -> None:
    teacher = Memo(served, "k1")
    teach(teacher, Shop(teacher))
    memo = Memo(served, "k2" if why == "another tenant" else "k1", ahead_at_once=0 if why == "none at once" else 4)
    shop = Shop(memo, ahead=why != "not offered")
    if why == "switched off":
        bench.gateway._policies.follow([{"name": "memo", "enabled": False, "options": {"tools": TOOLS}}], 1)
    if why == "no session":
        shop.user("carl")
    else:
        with memo.session("carl"):
            shop.user("carl")
    assert memo.plain_ahead.is_idle and shop.runs == ["carl"]
    teacher.close()
    memo.close()


def test_async_functions_run_so_many_at_a_time(served: str) -> None:
    runs: list[str] = []

    async def main() -> None:
        gate, started = asyncio.Event(), []
        gate.set()
        async with Memo(served, "k1", ahead_at_once=2) as memo:

            @memo.tool("user")
            async def user(user_id: str) -> list[str]:
                return [f"{user_id}-{n}" for n in range(3)]

            @memo.tool("order", ahead=True)
            async def order(order_id: str) -> str:
                started.append(order_id)
                await gate.wait()
                runs.append(order_id)
                return order_id

            async def until(holds: Callable[[], bool]) -> None:
                async with asyncio.timeout(20.0):
                    while not holds():
                        await asyncio.sleep(0.01)

            for name in ("anna", "bert"):
                with memo.session(name):
                    for one in await user(name):
                        await order(one)
            await until(lambda: memo.async_ahead.is_idle)
            gate.clear()
            with memo.session("carl"):
                orders = await user("carl")
                await until(lambda: set(started[-2:]) == set(orders[:2]))
                assert (await asyncio.to_thread(counts, served))["running"] == 2
                gate.set()
                await until(lambda: memo.async_ahead.is_idle)
                assert sorted(runs[-3:]) == orders and [await order(one) for one in orders] == orders

    asyncio.run(main())
    assert len(runs) == 9 and counts(served)["ahead_used"] >= 3


def test_closing_gives_back_what_runs(served: str) -> None:
    memo = Memo(served, "k1")
    shop = Shop(memo)
    teach(memo, shop)
    shop.gate.clear()
    with memo.session("carl"):
        shop.user("carl")
    wait_for(lambda: counts(served)["running"] == 3, 20.0, "all three run")
    memo.close()
    assert counts(served)["running"] == 0 and counts(served)["ahead_failed"] == 3
    shop.gate.set()
    wait_for(lambda: memo.plain_ahead.is_idle, 20.0, "the threads end")


def test_an_async_close_ends_what_runs(served: str) -> None:
    started: list[str] = []

    async def main() -> None:
        async with Memo(served, "k1", session="s") as memo:

            async def forever(told: dict[str, Any]) -> None:
                started.append(told["order_id"])
                await asyncio.Event().wait()

            memo.async_ahead.offers["order"] = Offer(None, forever)
            call = {"tool": "order", "version": None, "arguments": {"order_id": "x"}}
            memo.async_ahead.take({"ahead": [call]})
            async with asyncio.timeout(20.0):
                while not started:
                    await asyncio.sleep(0.01)
            assert (await asyncio.to_thread(counts, served))["running"] == 1

    asyncio.run(main())
    assert counts(served)["running"] == 0


class SlowWay:
    """Look-ups that are answered once `gate` is open."""

    def __init__(self) -> None:
        self.asked, self.gate = threading.Event(), threading.Event()
        self.ended: list[tuple[str, bool]] = []

    def ticket_ahead(self, tool: str, version: str | None, arguments: dict[str, Any]) -> str | None:
        self.asked.set()
        assert self.gate.wait(20.0)
        return "ticket"

    def end_ahead(self, ticket: str, offer: Offer, result: Any, failed: bool) -> None:
        self.ended.append((ticket, failed))

    async def aticket_ahead(self, tool: str, version: str | None, arguments: dict[str, Any]) -> str | None:
        return await asyncio.to_thread(self.ticket_ahead, tool, version, arguments)

    async def aend_ahead(self, ticket: str, offer: Offer, result: Any, failed: bool) -> None:
        self.end_ahead(ticket, offer, result, failed)


def never(told: dict[str, Any]) -> Any:
    raise AssertionError("it is run")


@pytest.mark.parametrize("is_async", [False, True])
def test_closing_while_it_asks_begins_nothing(is_async: bool) -> None:
    way = SlowWay()
    answer = {"ahead": [{"tool": "order", "version": None, "arguments": {}}]}
    opener = threading.Timer(0.1, way.gate.set)

    def plainly() -> None:
        ahead = PlainAhead(way, 1)
        ahead.offers["order"] = Offer(None, never)
        ahead.take(answer)
        assert way.asked.wait(20.0)
        opener.start()
        ahead.close()

    async def main() -> None:
        ahead = AsyncAhead(way, 1)
        ahead.offers["order"] = Offer(None, never)
        ahead.take(answer)
        assert await asyncio.to_thread(way.asked.wait, 20.0)
        opener.start()
        await ahead.aclose()

    asyncio.run(main()) if is_async else plainly()
    assert way.ended == [("ticket", True)]
    opener.join()


def test_what_waits_in_the_client_is_bounded() -> None:
    gate, looked = threading.Event(), []

    class Way:
        def ticket_ahead(self, tool: str, version: str | None, arguments: dict[str, Any]) -> str | None:
            assert gate.wait(20.0)
            looked.append(arguments["n"])
            return None

        def end_ahead(self, ticket: str, offer: Offer, result: Any, failed: bool) -> None:
            raise AssertionError("nothing was run")

    ahead = PlainAhead(Way(), 2)
    ahead.offers["order"] = Offer("1", lambda told: None)
    wrong: list[Any] = [None, {"tool": "order"}, {"tool": "order", "version": "2", "arguments": {}}, {"tool": 7}]
    ahead.take({"ahead": wrong})
    assert ahead.is_idle
    calls = [{"tool": "order", "version": "1", "arguments": {"n": n}} for n in range(100)]
    ahead.take({"ahead": calls})
    gate.set()
    wait_for(lambda: ahead.is_idle, 20.0, "all have been looked up")
    assert MAX_QUEUED <= len(looked) <= MAX_QUEUED + 2


# --- the MCP proxy ------------------------------------------------------------------------------------------


def test_the_mcp_proxy_runs_ahead(served: str, bench: Bench, tmp_path: Path) -> None:
    """Programs of their own for the proxy and the server behind it, a session each."""
    log = tmp_path / "runs"
    root = str(Path(__file__).parents[2])
    program = str(Path(__file__).with_name("mcp_upstream.py"))
    proxy = ["-m", "agent_client.mcp_proxy", "--runtime", served, "--", sys.executable, program, str(log)]
    env = {**os.environ, "PYTHONPATH": root, "AGENT_RUNTIME_API_KEY": "k1"}
    parameters = StdioServerParameters(command=sys.executable, args=proxy, env=env, cwd=root)

    def ran() -> list[str]:
        return [line.split()[0] for line in log.read_text().splitlines()]

    async def one_session(user: str, waits_for: int, tools: tuple[str, ...]) -> None:
        async with Client(parameters) as client:
            await client.call_tool("user", {"user_id": user})
            async with asyncio.timeout(60.0):
                while len(ran()) < waits_for:
                    await asyncio.sleep(0.02)
            for tool in tools:
                for number in range(3):
                    assert not (await client.call_tool(tool, {"order_id": f"{user}-{number}"})).is_error

    for user in ("anna", "bert"):
        asyncio.run(one_session(user, 1, ("order", "cancel")))
    policy = bench.gateway._memo.policy
    assert policy is not None
    before, foretold = len(ran()), policy.counters()["foretold"]
    asyncio.run(one_session("carl", before + 4, ("order",)))
    assert policy.counters()["foretold"] - foretold >= 6, "its orders, and that they are cancelled"
    assert sorted(ran()[before:]) == ["order"] * 3 + ["user"], (
        "the orders once each, before they were asked for; nothing that says of itself that it changes something"
    )
    state = counts(served)
    assert state["ahead_used"] >= 3 and state["running"] == 0


# --- over HTTP ----------------------------------------------------------------------------------------------


def ask(bench: Bench, what: str, tenant: str = "one", **body: Any) -> dict[str, Any]:
    answer = bench.ask("POST", f"/runtime/memo/{what}", tenant, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def played(bench: Bench, session: str) -> dict[str, Any]:
    """A user and its orders; what came with the user's result."""
    ticket = ask(bench, "lookup", tool="user", arguments={"user_id": session}, session_id=session)["ticket"]
    told = ask(bench, "store", ticket=ticket, value={"orders": [f"{session}-1", f"{session}-2"]})
    for number in (1, 2):
        found = ask(bench, "lookup", tool="order", arguments={"order_id": f"{session}-{number}"}, session_id=session)
        ask(bench, "store", ticket=found["ticket"], value=number)
    return told


def test_answers_name_calls_and_look_ups_ahead_are_checked(bench: Bench) -> None:
    for session in ("anna", "bert"):
        told = played(bench, session)
    assert told["ahead"] == [
        {"tool": "order", "version": None, "arguments": {"order_id": f"bert-{number}"}} for number in (1, 2)
    ]
    user = {"tool": "user", "arguments": {"user_id": "bert"}}
    again = ask(bench, "lookup", **user, session_id="other")
    assert again["outcome"] == "hit" and "ahead" not in again, "they are kept already"
    ahead = {"tool": "order", "arguments": {"order_id": "x"}, "ahead": True}
    assert ask(bench, "lookup", **ahead)["ticket"]
    assert ask(bench, "lookup", **ahead) == {"outcome": "refused", "reason": "running"}
    assert ask(bench, "lookup", **user, ahead=True) == {"outcome": "refused", "reason": "not_allowed"}
    assert ask(bench, "lookup", tool="unknown", ahead=True) == {"outcome": "refused", "reason": "not_allowed"}


@pytest.mark.parametrize(("field", "value"), [("session_id", 7), ("session_id", ""), ("ahead", 1), ("ahead", "yes")])
def test_bad_input(bench: Bench, field: str, value: Any) -> None:
    answer = bench.ask("POST", "/runtime/memo/lookup", json={"tool": "order", field: value})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field


def test_a_prediction_that_fails_costs_nothing_but_itself(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = bench.gateway._memo.policy
    assert policy is not None

    def broken(*_: Any) -> Any:
        raise KeyError("broken")

    monkeypatch.setattr(policy, "called", broken)
    played(bench, "anna")
    rows = {row["name"]: row for row in bench.ask("GET", "/runtime/state", "ops").json()["policies"]}
    assert rows["memo"]["failures"] == 3 and rows["memo"]["enabled"]
