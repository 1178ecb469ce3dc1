"""Agents, sessions and tenants over HTTP, and the endpoints under /runtime."""

from __future__ import annotations

import http.client
import json
import time

import httpx
import pytest

from tests.gateway_kit import (
    MODEL,
    agents,
    assert_error,
    body,
    cached,
    chat,
    ours,
    state,
    wait_for,
)
from tests.server_kit import KEYS, Filler, Server

BILLING = "x-anthropic-billing-header: cc_version=2.1.9.{0}; cc_entrypoint=cli; cch={0};"


def test_billing_line_costs_neither_agent_nor_cache(client: httpx.Client, filler: Filler) -> None:
    text = filler(400)
    first, second = (chat(client, "hi", BILLING.format(n) + "\n" + text) for n in ("aaa", "bbb"))
    assert ours(first, "agent") == ours(second, "agent")
    assert cached(second) >= 352
    wait_for(lambda: agents(client)[ours(first, "agent")]["requests"] == 2, 5, "two requests of one agent")


def test_clock_line_costs_no_agent_and_stays_in_the_prompt(client: httpx.Client, filler: Filler) -> None:
    head, tail = filler(250), filler(200)
    clock = "\nCurrent date and time: Monday, March 9, 2026 at 06:00:{} PM PDT\n"
    first, second = (chat(client, "hi", head + clock.format(s) + tail) for s in ("31", "33"))
    assert ours(first, "agent") == ours(second, "agent")
    assert cached(second) >= 192
    tokens = filler.count(head) + filler.count(clock.format("31")) + filler.count(tail)
    assert abs(first.json()["usage"]["prompt_tokens"] - tokens) < 30


def test_a_users_text_is_never_touched(client: httpx.Client) -> None:
    text = BILLING.format("aaa") + "\nhi"
    answer = chat(client, text)
    counted = client.post("/tokenize", json={"model": MODEL, "messages": [{"role": "user", "content": text}]})
    assert counted.status_code == 200, counted.text
    assert answer.json()["usage"]["prompt_tokens"] == counted.json()["count"]


def test_an_ordinary_sentence_makes_another_agent(client: httpx.Client, filler: Filler) -> None:
    text = filler(50)
    first, second = (chat(client, "hi", f"{text} You know the rules of {year}.") for year in (2024, 2025))
    assert ours(first, "agent") != ours(second, "agent")


@pytest.mark.parametrize("blank", ["", "   ", "null"])
def test_blank_session_headers(server: Server, filler: Filler, blank: str) -> None:
    sessions = set()
    for _ in range(5):
        # httpx refuses to send a header of blanks; others don't.
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
        headers = {"authorization": f"Bearer {KEYS['one']}", "x-session-id": blank}
        connection.request("POST", "/v1/chat/completions", json.dumps(body(filler(8))), headers)
        answer = connection.getresponse()
        assert answer.status == 200
        sessions.add(answer.getheader("x-agent-runtime-session"))
        connection.close()
    assert len(sessions) == 5 and not sessions & {"", None}


def test_spellings_of_one_session(client: httpx.Client) -> None:
    names = ("x-session-id", "X-Session-ID", "session-id", "X-Dynamo-Session-ID", "x-claude-code-session-id")
    answers = [chat(client, headers={name: "spelled"}) for name in names] + [chat(client, session_id="spelled")]
    assert len({ours(answer, "session") for answer in answers}) == 1


def test_request_ids_do_not_split_a_session(client: httpx.Client) -> None:
    headers = [{"x-session-id": "kept", "x-request-id": f"r{n}", "x-client-request-id": f"c{n}"} for n in range(3)]
    assert len({ours(chat(client, headers=h), "session") for h in headers}) == 1


def test_two_ids_are_decided_the_same_each_time(client: httpx.Client) -> None:
    both = {"x-session-id": "first", "session-id": "second"}
    decided = {ours(chat(client, headers=both), "session") for _ in range(3)}
    assert decided == {ours(chat(client, headers={"x-session-id": "first"}), "session")}


def test_long_session_id_is_not_echoed(client: httpx.Client) -> None:
    answer = chat(client, headers={"x-session-id": "a" * 5000})
    assert answer.status_code == 200
    assert all(len(value) < 1024 and "a" * 257 not in value for value in answer.headers.values())


def test_turns_without_a_hint_are_one_session(client: httpx.Client, filler: Filler) -> None:
    system = filler(150)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "start"}]
    sessions, prompts, hits, agent_ids = set(), [], [], set()
    for turn in range(4):
        messages.append({"role": "system", "content": f"<total_tokens>{4999 - turn} tokens left</total_tokens>"})
        answer = client.post("/v1/chat/completions", json={"model": MODEL, "max_tokens": 12, "messages": messages})
        sessions.add(ours(answer, "session"))
        agent_ids.add(ours(answer, "agent"))
        prompts.append(answer.json()["usage"]["prompt_tokens"])
        hits.append(cached(answer))
        reply = answer.json()["choices"][0]["message"]["content"]
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": f"turn {turn}"}]
    assert len(sessions) == len(agent_ids) == 1
    assert all(hit >= prompt - 64 for hit, prompt in zip(hits[1:], prompts, strict=False))
    (agent,) = agent_ids
    assert not [t for t in state(client)["transitions"] if t["from"] == t["to"] == agent]


def test_hints_are_clipped_and_reported(client: httpx.Client) -> None:
    answer = chat(
        client,
        headers={"x-vllm-priority": "-999", "x-gateway-inference-fairness-id": "f1"},
        priority=-1_000_000,
        cache_salt="mine",
        nvext={"agent_hints": {"priority": 10**9, "strict_priority": True}},
    )
    assert answer.status_code == 200
    hints = dict(pair.split("=") for pair in ours(answer, "hints").split(", "))
    assert hints["priority"] == hints["nvext.agent_hints.priority"] == "clipped"
    for name in (
        "cache_salt",
        "x-vllm-priority",
        "nvext.agent_hints.strict_priority",
        "x-gateway-inference-fairness-id",
    ):
        assert hints[name] == "rejected"


def test_tenants_see_nothing_of_each_other(server: Server, filler: Filler) -> None:
    system = f"ZEBRA-17 {filler(300)}"
    headers = {"x-session-id": "s1"}
    with server.client("one") as one, server.client("two") as two, server.client("ops") as operator:
        mine = [chat(one, f"turn {n}", system, headers) for n in range(3)]
        theirs = chat(two, "turn 0", system, headers)
        assert cached(theirs) == 0 and cached(mine[2]) > 0
        assert ours(theirs, "agent") != ours(mine[0], "agent")
        assert ours(theirs, "session") != ours(mine[0], "session")
        fresh = {"x-session-id": "only-of-one"}
        chat(one, "turn", system, fresh)
        assert_error(two.get("/runtime/predict", params={"session_id": "only-of-one", "horizon": 2}), 404)
        session = ours(mine[0], "session")
        assert_error(two.get("/runtime/predict", params={"session_id": session, "horizon": 2}), 404)
        ended = {"type": "session_ended", "session_id": session}
        assert two.post("/runtime/events", json=ended).status_code == 202
        assert one.get("/runtime/predict", params={"session_id": "s1", "horizon": 2}).status_code == 200
        for path in ("/runtime/state", "/runtime/"):
            text = two.get(path).text
            assert ours(mine[0], "agent") not in text and session not in text
        assert [a["requests"] for a in state(two)["agents"] if "ZEBRA-17" in a["label"]] == [1]
        assert ours(mine[0], "agent") in agents(operator)


def test_prediction_follows_what_was_seen(server: Server, filler: Filler) -> None:
    """A tenant of its own: all other tests' agents have just been active, so none would leave its slot to these."""
    with server.client("forecasts") as client:
        follows_what_was_seen(client, filler)


def follows_what_was_seen(client: httpx.Client, filler: Filler) -> None:
    planner, coder = f"Planner {filler(60)}", f"Coder {filler(60)}"
    for n in range(6):
        first = chat(client, "plan", planner, {"x-session-id": f"team-{n}"})
        second = chat(client, "code", coder, {"x-session-id": f"team-{n}"})
    chat(client, "plan", planner, {"x-session-id": "team-next"})
    answer = client.get("/runtime/predict", params={"session_id": "team-next", "horizon": 2}).json()
    assert answer["agent"] == ours(first, "agent") and answer["horizon"] == 2
    forecast = {entry["agent"]: entry["probability"] for entry in answer["forecast"]}
    assert all(0 <= p <= 1 for p in forecast.values())
    assert max(forecast, key=lambda agent: forecast[agent]) == ours(second, "agent")
    rows = {(t["from"], t["to"]): t for t in state(client)["transitions"]}
    assert rows[ours(first, "agent"), ours(second, "agent")]["count"] >= 6
    for horizon in ("0", "-1", "1000000", "soon"):
        error = assert_error(client.get(f"/runtime/predict?session_id=team-next&horizon={horizon}"), 400)
        assert error["param"] == "horizon"
    assert_error(client.get("/runtime/predict?horizon=1"), 400)


def test_events(client: httpx.Client) -> None:
    headers = {"x-session-id": "evented"}
    chat(client, headers=headers)
    tool = {"type": "tool_returned", "session_id": "evented", "tool": "search", "duration_s": 0.5}
    ended = {"type": "session_ended", "session_id": "evented"}
    assert client.post("/runtime/events", json={"events": [tool, ended]}).json() == {"accepted": 2}
    for bad, param in (
        ({**tool, "duration_s": -1}, "duration_s"),
        ({**tool, "tool": 5}, "tool"),
        ({"type": "rain"}, "type"),
        ({"type": "session_ended"}, "session_id"),
        ({"events": []}, "events"),
        ({"events": [ended, {"type": "session_ended"}]}, "events[1].session_id"),
    ):
        assert assert_error(client.post("/runtime/events", json=bad), 400)["param"] == param


def test_policy_is_the_operators(server: Server) -> None:
    with server.client("one") as one, server.client("ops") as operator:
        assert_error(one.post("/runtime/policy", json={"mode": "lru"}), 403)
        assert_error(operator.post("/runtime/policy", json={"mode": "lur"}), 400)
        assert_error(operator.post("/runtime/policy", json={"speed": 1}), 400)
        assert_error(operator.post("/runtime/policy", content=b"{}"), 415)
        try:
            changed = operator.post("/runtime/policy", json={"mode": "lru", "prefetch": False})
            assert changed.status_code == 200 and changed.json()["mode"] == "lru"
            wait_for(lambda: {r["policy"] for r in state(operator)["replicas"]} == {"lru"}, 20, "lru everywhere")
        finally:
            back = operator.post("/runtime/policy", json={"mode": "reach", "prefetch": True})
        assert back.status_code == 200
        wait_for(lambda: {r["policy"] for r in state(operator)["replicas"]} == {"reach"}, 20, "reach again")


def test_a_session_stays_on_its_replica_and_strangers_spread(server: Server, filler: Filler) -> None:
    """A tenant of its own: what others have taught would draw strangers to where their next agents' anchors are."""
    with server.client("strangers") as client:
        session = {"x-session-id": f"sticky-{time.time()}"}
        system = filler(300)
        homes = {ours(chat(client, f"turn {n}", system, session), "replica") for n in range(4)}
        assert len(homes) == 1
        served = [ours(chat(client, filler(200)), "replica") for _ in range(20)]
        # Where the view of the cluster is too old the choice is random: three of twenty, but for 1 in 2,500.
        assert len(set(served)) == 2 and min(served.count(replica) for replica in set(served)) >= 3, served
