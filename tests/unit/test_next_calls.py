"""Which call follows which: templates over arguments and results, exact repeats, confidence, tenants, bounds."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest

from runtime_actor import next_calls
from runtime_actor.call_places import MAX_CALLS, MAX_PLACES, MAX_RESULT_BYTES, places, result_places, template
from runtime_actor.next_calls import NextCalls, ToolCall

READS = {"user", "order", "search", "onestop", "status"}


def call_of(tool: str, arguments: dict[str, Any], version: str | None = None) -> ToolCall:
    told = {name: value for name, value in arguments.items() if name != "trace"}
    return ToolCall(tool, version, arguments, json.dumps([tool, told], sort_keys=True), ("trace",), tool in READS)


def made(min_support: int = 2, min_confidence: float = 0.5) -> NextCalls:
    return NextCalls(
        lambda tenant, tool, version, told: call_of(tool, dict(told), version), min_support, min_confidence
    )


def make(calls: NextCalls, session: str, tool: str, tenant: str = "t", result: Any = None, **told: Any) -> list[Any]:
    """(tool, arguments) of what is foretold when the call is made and when it came back."""
    call = call_of(tool, told)
    found = calls.called(tenant, session, call)
    if result is not None:
        found = found + calls.returned(tenant, session, call.digest, json.dumps(result).encode())
    calls.check_invariants()
    return [(one.tool, dict(one.arguments)) for one in found]


def orders(user: str) -> list[str]:
    return [f"{user}-order-{n}" for n in range(3)]


def look_up(calls: NextCalls, user: str, tenant: str = "t", mcp: bool = False) -> list[Any]:
    """A session that reads a user and then each of its orders; what was foretold after the user."""
    result: Any = {"user": user, "orders": orders(user)}
    if mcp:
        result = {"content": [{"type": "text", "text": json.dumps(result)}]}
    found = make(calls, user, "user", tenant, result, user_id=user)
    for order in orders(user):
        make(calls, user, "order", tenant, {"state": "shipped"}, order_id=order, detail=1)
    return found


@pytest.mark.parametrize("mcp", [False, True])
def test_a_result_names_the_next_calls(mcp: bool) -> None:
    calls = made()
    assert look_up(calls, "anna", mcp=mcp) == []
    expected = [("order", {"order_id": order, "detail": 1}) for order in orders("bert")]
    assert look_up(calls, "bert", mcp=mcp) == expected


def test_arguments_go_on_to_another_tool() -> None:
    calls = made()
    for number in (1, 2):
        assert make(calls, f"s{number}", "search", origin=f"JF{number}", date=f"May {number}") == []
        make(calls, f"s{number}", "onestop", origin=f"JF{number}", date=f"May {number}")
    assert make(calls, "s3", "search", origin="SEA", date="June") == [("onestop", {"origin": "SEA", "date": "June"})]


def test_the_same_call_after_the_same_call() -> None:
    calls = made()
    for session in ("s1", "s2"):
        assert make(calls, session, "status", result={"ok": 1}) == []
        make(calls, session, "search", text="a", trace=session)
    assert make(calls, "s3", "status") == [("search", {"text": "a", "trace": "s2"})]
    assert make(calls, "s4", "search", text="a") == [], "in this place only"


def test_what_is_wrong_as_often_as_right_is_foretold_no_more() -> None:
    calls = made(min_confidence=0.6)
    look_up(calls, "anna")
    assert look_up(calls, "bert")
    for number in range(9):
        make(calls, f"s{number}", "user", "t", {"orders": [f"never{number}", f"asked{number}"]}, user_id=f"u{number}")
    assert look_up(calls, "carl") == []
    assert calls.counts["foretold"] >= calls.counts["foretold_right"] > 0


def test_a_wrong_guess_is_judged_though_nobody_ran_it() -> None:
    calls = made(min_support=50)
    for number in range(12):
        assert look_up(calls, f"user{number}") == []
    (rules,) = (
        [rule for key, rule in rules.items() if not isinstance(key[2], str)]
        for trigger, rules in calls._rules.part("t").items()
        if trigger == ("tool", "user")
    )
    assert rules[0].confidence == 1.0 and rules[0].hits > 20


def test_what_the_session_did_is_not_foretold_by_a_template() -> None:
    calls = made()
    look_up(calls, "anna")
    look_up(calls, "bert")
    make(calls, "s", "order", order_id=orders("carl")[1], detail=1)
    found = make(calls, "s", "user", result={"orders": orders("carl")}, user_id="carl")
    assert [told["order_id"] for _, told in found] == [orders("carl")[0], orders("carl")[2]]


def test_tools_that_may_not_run_ahead_are_never_foretold() -> None:
    calls = made()
    for user in ("anna", "bert", "carl"):
        make(calls, user, "user", result={"orders": orders(user)}, user_id=user)
        for order in orders(user):
            assert make(calls, user, "cancel", order_id=order) == []
    assert make(calls, "dora", "user", result={"orders": orders("dora")}, user_id="dora") == []


def test_tenants_learn_apart() -> None:
    calls = made()
    look_up(calls, "anna", "one")
    look_up(calls, "bert", "one")
    assert look_up(calls, "carl", "two") == []
    assert look_up(calls, "dora", "one")
    calls.forget("one")
    assert look_up(calls, "emil", "one") == []


def test_several_values_belong_together_in_order() -> None:
    found = places(
        "result", {"legs": [{"from": "JFK", "day": "May 1"}, {"from": "SEA", "day": "May 2"}], "who": "anna"}
    )
    how = template({"at": "SEA", "on": "May 2", "by": "anna", "n": 2, "trace": "x"}, ("trace",), found)
    assert how is not None and how.needs_result
    assert how.fill(found) == [
        {"n": 2, "at": "JFK", "on": "May 1", "by": "anna"},
        {"n": 2, "at": "SEA", "on": "May 2", "by": "anna"},
    ]
    assert how.fill(found[:3] + found[4:]) == [], "an item without one of them: nobody knows which belong together"
    assert template({"n": 5, "x": "no", "y": True, "z": "elsewhere"}, (), found) is None


def test_what_is_looked_at_is_bounded() -> None:
    assert len(places("arguments", {"all": [f"value {n}" for n in range(1000)]})) == MAX_PLACES
    assert places("arguments", {"text": "x" * 1000, "n": 7, "yes": True, "f": 1234.5, "none": None}) == []
    assert result_places(json.dumps(["x" * MAX_RESULT_BYTES]).encode()) == []
    assert result_places(b"{not json") == [] and places("arguments", {"a": "{not json"}) == []
    assert result_places(b"[" * 5000 + b"]" * 5000) == []
    began_s = time.process_time()
    assert places("arguments", {"all": [1] * 1_000_000, "lists": [[]] * 1_000_000}) == []
    assert time.process_time() - began_s < 1.0
    found = places("result", [f"value {n}" for n in range(50)])
    how = template({"x": "value 3"}, (), found)
    assert how is not None and len(how.fill(found)) == MAX_CALLS


@pytest.mark.parametrize("seed", range(6))
def test_random_calls_keep_every_bound(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_calls, "MAX_SESSION_PLACES", 12)
    rng = random.Random(seed)
    calls = made(1, 0.0)
    calls._sessions.cap, calls._rules.cap = 9, 20
    told: set[str] = set()
    for _ in range(1500):
        tool, tenant, session = rng.choice(sorted(READS | {"write"})), rng.choice("ab"), rng.choice("uvwxyz")
        result = {"ids": [f"{tenant}{rng.randrange(30):03}" for _ in range(rng.randrange(12))]}
        found = make(calls, session, tool, tenant, result, id=f"{tenant}{rng.randrange(30):03}", n=rng.randrange(3))
        assert len(calls._sessions) <= 9 and len(calls._rules) <= 20
        assert all(name in READS and told["id"][0] == tenant for name, told in found)
        told |= {name for name, _ in found}
    assert told == READS and calls.counts["foretold_right"] > 0
