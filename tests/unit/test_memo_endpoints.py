"""The endpoints under /runtime/memo: shapes, tenants, events, the switch, an actor that is away."""

from __future__ import annotations

from typing import Any

import pytest

from runtime_actor.errors import ConfigurationError
from runtime_actor.policies.memo import MemoPolicy
from serve_app.config import load
from serve_app.policies.memo_desk import MAX_OPEN_CALLS
from tests.unit.gateway_bench import Bench
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
    bench.gateway._policies.follow([{"name": "memo", "options": {"tools": TOOLS}}], 1)
    assert ask(bench, "lookup", tool="read")["outcome"] == "hit"


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
