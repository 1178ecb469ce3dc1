"""Two tenants on one gateway, one runtime and one engine: neither sees, hits or ends anything of the other's."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.identity import SESSION_ID, IdentityResolver
from tests.simulated_bench import SimulatedBench

ZEBRA = "You are the ZEBRA-17 planner of the harbour. " + "Plan each step with care and say why. " * 40


def ask(bench: SimulatedBench, tenant: str, *texts: str, session: str | None = "s1", **more: Any) -> httpx.Response:
    messages = [{"role": "system", "content": ZEBRA}]
    messages += [{"role": "user", "content": text} for text in texts]
    headers = {"x-session-id": session} if session else {}
    body = {"messages": messages, "max_tokens": 2, **more}
    answer = asyncio.run(bench.send("POST", "/v1/chat/completions", tenant, json=body, headers=headers))
    assert answer.status_code == 200, answer.text
    return answer


def cached(answer: httpx.Response) -> int:
    return int(answer.headers["x-agent-runtime-cached-tokens"])


def get(bench: SimulatedBench, tenant: str, path: str) -> httpx.Response:
    return asyncio.run(bench.send("GET", path, tenant))


def test_no_hit_over_tenants() -> None:
    bench = SimulatedBench()
    hits = [cached(ask(bench, tenant, "hi")) for tenant in ("one", "one", "two", "two")]
    assert hits[0] == hits[2] == 0 and hits[1] == hits[3] > 300


@pytest.mark.parametrize("stream", [False, True])
def test_no_hit_with_a_salt_that_a_client_names(stream: bool) -> None:
    bench = SimulatedBench()
    ask(bench, "one", "hi")
    real = bench.engine.last_salt
    assert real
    for salt in ("one", real):
        answer = ask(bench, "two", "hi " + salt, session=None, cache_salt=salt, stream=stream)
        assert "cache_salt=rejected" in answer.headers["x-agent-runtime-hints"]
        assert bench.engine.last_salt != real
        if salt == "one":
            assert cached(answer) == 0


def test_completions_and_token_ids_are_apart_too() -> None:
    bench = SimulatedBench()

    def complete(tenant: str, prompt: Any) -> int:
        body = {"prompt": prompt, "max_tokens": 1}
        return cached(asyncio.run(bench.send("POST", "/v1/completions", tenant, json=body)))

    for prompt in ("word " * 400, list(range(500))):
        assert [complete(tenant, prompt) > 0 for tenant in ("one", "one", "two", "two")] == [False, True, False, True]


def test_a_group_shares_what_it_was_told_to_share_and_no_more() -> None:
    bench = SimulatedBench(cache_groups={"house": ["one", "two"]})
    first = ask(bench, "one", "hi")
    second = ask(bench, "two", "hi")
    assert cached(second) > 300 and cached(ask(bench, "ops", "hi")) == 0
    for name in ("agent", "session"):
        assert first.headers[f"x-agent-runtime-{name}"] != second.headers[f"x-agent-runtime-{name}"]
    assert_sees_nothing_of_the_other(bench, first)


def test_the_runtime_shows_a_tenant_its_own() -> None:
    bench = SimulatedBench()
    first = ask(bench, "one", "step 1")
    ask(bench, "one", "step 1", "step 2")
    ask(bench, "two", "hi", session="mine")
    assert_sees_nothing_of_the_other(bench, first)


def assert_sees_nothing_of_the_other(bench: SimulatedBench, first: httpx.Response) -> None:
    """`first` is an answer that "one" got in the session it calls s1."""
    agent, session = (first.headers[f"x-agent-runtime-{name}"] for name in ("agent", "session"))
    get(bench, "one", "/runtime/state")
    bench.report()
    own = get(bench, "one", "/runtime/state").text
    assert agent in own and "ZEBRA-17" in own and '"sim"' in own
    seen = get(bench, "two", "/runtime/state")
    assert seen.status_code == 200
    for secret in (agent, session, '"one"', "key-one"):
        assert secret not in seen.text
    for replica in seen.json()["replicas"]:
        assert "total_blocks" not in replica and "running" not in replica
        assert agent not in replica["resident"]
    assert agent not in get(bench, "two", "/runtime/state?tenant=one").text
    assert get(bench, "two", f"/runtime/predict?session_id={session}").status_code == 404
    assert get(bench, "one", f"/runtime/predict?session_id={session}").status_code == 200
    assert '"one"' in get(bench, "ops", "/runtime/state").text


@pytest.mark.parametrize("name", ["s1", "forged"])
def test_an_event_ends_ones_own_session_only(name: str) -> None:
    bench = SimulatedBench()
    session = ask(bench, "one", "hi").headers["x-agent-runtime-session"]
    event = {"type": "session_ended", "session_id": session if name == "forged" else name}
    answer = asyncio.run(bench.send("POST", "/runtime/events", "two", json=event))
    assert answer.status_code == 202
    get(bench, "two", "/runtime/state")
    record = bench.runtime.shared.session("one", session)
    assert record is not None and not record.ended
    assert bench.gateway._routing.session("one", session) is not None
    asyncio.run(bench.send("POST", "/runtime/events", "one", json=event))
    get(bench, "one", "/runtime/state")
    record = bench.runtime.shared.session("one", session)
    assert record is None or record.ended


def test_anothers_session_id_joins_nothing() -> None:
    bench = SimulatedBench()
    session = ask(bench, "one", "hi").headers["x-agent-runtime-session"]
    ask(bench, "two", "hi", session=session)
    get(bench, "ops", "/runtime/state")
    record = bench.runtime.shared.session("one", session)
    assert record is not None and record.requests == 1


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=40)


@settings(deadline=None)
@given(NAMES, NAMES, st.binary(min_size=16, max_size=16))
def test_ids_depend_on_secret_and_tenant(declared: str, other: str, secret: bytes) -> None:
    mine, elsewhere = IdentityResolver(secret), IdentityResolver(b"of another installation")
    session = mine.session_id("one", declared)
    assert session == mine.session_id("one", declared)
    if not SESSION_ID.match(declared):
        assert SESSION_ID.match(session)
        assert session != mine.session_id("two", declared) and session != elsewhere.session_id("one", declared)
        assert session == mine.session_id("one", other) or other != declared
    # One tenant's name can't be made to run into the other's id.
    assert mine._id("s", "ab", b"c") != mine._id("s", "a", b"bc")


def test_logs_hold_no_prompt_and_no_key(caplog: pytest.LogCaptureFixture) -> None:
    bench = SimulatedBench()
    with caplog.at_level("DEBUG"):
        ask(bench, "one", "WALRUS-99 is a secret")
        asyncio.run(bench.send("POST", "/v1/chat/completions", None, json={"messages": "WALRUS-99"}))
        bad = {"messages": [{"role": "user", "content": "WALRUS-99"}], "max_tokens": "WALRUS-99", "tools": "WALRUS-99"}
        refused = asyncio.run(bench.send("POST", "/v1/chat/completions", "one", json=bad))
        assert refused.status_code == 400 and "WALRUS" not in refused.text
        get(bench, "ops", "/runtime/state")
    assert "WALRUS" not in caplog.text and "ZEBRA" not in caplog.text and "key-one" not in caplog.text
    dump = json.dumps(bench.runtime.dump())
    assert "WALRUS" not in dump and "key-one" not in dump
