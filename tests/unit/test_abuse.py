"""A client that invents an agent with each request, or floods one session: bounded, and nobody else's loss."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.anchors import Anchor, AnchorStore
from replicas.cache.block_owner import SESSION, BlockOwner
from replicas.cache.ownership import OwnerDirectory
from replicas.cache.residency import count_residency
from replicas.cache.settings import ValueSettings
from replicas.cache.sharing import SharedPrefixes
from runtime_actor.messages import MAX_REPORTED_AGENTS, OwnerTag
from runtime_actor.settings import RuntimeSettings
from tests.simulated_bench import SimulatedBench
from tests.unit.runtime_kit import Kit

SMALL = 40
"""Cap of every map in these tests: a flood of a few hundred is far beyond it."""


def small_bench() -> SimulatedBench:
    bench = SimulatedBench(
        runtime=RuntimeSettings(max_known_agents=SMALL, max_sessions=SMALL, max_event_ids=SMALL, max_log_events=64)
    )
    gateway = bench.gateway
    gateway._routing.max_sessions = SMALL
    for fair in fair_maps(bench):
        fair.cap = SMALL
    return bench


def fair_maps(bench: SimulatedBench) -> list[Any]:
    gateway, identities = bench.gateway, bench.gateway._identities
    return [
        gateway._routing._sessions,
        gateway._routing._agents,
        identities.conversations._ends,
        identities.conversations._said,
        identities.conversations._ended,
        identities.quotes._lines,
        identities.quotes._homes,
        identities.orders._known,
        identities.orders._by_lines,
        identities.templates._texts,
        identities.templates._by_line,
        identities.templates._sessions,
    ]


async def chat(bench: SimulatedBench, tenant: str, system: str, history: list[str], **more: Any) -> httpx.Response:
    messages = [{"role": "system", "content": system}]
    for index, text in enumerate(history):
        messages.append({"role": ("user", "assistant")[index % 2], "content": text})
    headers = more.pop("headers", {})
    body = {"messages": messages, "max_tokens": 1, **more}
    return await bench.send("POST", "/v1/chat/completions", tenant, json=body, headers=headers)


async def flood(bench: SimulatedBench, kind: str, count: int) -> None:
    for number in range(count):
        system = f"Agent number {number} of a kind that was never there before, and {number} more words."
        headers = {"x-session-id": f"s{number}"} if kind == "sessions" else {}
        if kind == "one session":
            system, headers = "You are the one who never stops asking.", {"x-session-id": "always"}
        text = f"A line of some length with the number {number} in it"
        answer = await chat(bench, "one", system, [text], headers=headers)
        assert answer.status_code == 200
        if number % 16 == 0:
            await bench.gateway._exchange.flush()
            bench.report()
    await bench.gateway._exchange.flush()
    bench.report()


@pytest.mark.parametrize("kind", ["agents", "sessions", "one session"])
def test_a_flood_by_one_tenant_costs_another_nothing(kind: str) -> None:
    async def scenario() -> None:
        bench = small_bench()
        system = "You keep the books of the harbour and answer in one line."
        history = ["What came in on Monday with the first tide?"]
        first = await chat(bench, "two", system, history)
        await bench.gateway._exchange.flush()
        bench.report()
        before = (await bench.send("GET", "/runtime/state", "two")).json()
        await flood(bench, kind, 150)
        after = (await bench.send("GET", "/runtime/state", "two")).json()
        for part in ("agents", "transitions", "workloads"):
            assert after[part] == before[part]
        session = first.headers["x-agent-runtime-session"]
        assert bench.gateway._routing.session("two", session) is not None
        history += [first.json()["choices"][0]["message"]["content"], "And on Tuesday?"]
        second = await chat(bench, "two", system, history)
        assert second.headers["x-agent-runtime-session"] == session, "its conversation is still known"
        assert all(len(fair) <= fair.cap for fair in fair_maps(bench))
        await bench.gateway._exchange.flush()
        bench.runtime.check_invariants()
        assert bench.runtime.reports_invalid == 0

    asyncio.run(scenario())


def test_a_checkpoint_stays_as_small_however_long_the_flood() -> None:
    async def scenario() -> list[int]:
        bench = small_bench()
        sizes = []
        for _ in range(3):
            await flood(bench, "agents", 80)
            sizes.append(len(repr(bench.runtime.dump())))
        return sizes

    sizes = asyncio.run(scenario())
    assert sizes[2] < 1.2 * sizes[1]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), min_size=1, max_size=150))
def test_the_actor_keeps_each_tenant_within_its_bounds(steps: list[tuple[int, int]]) -> None:
    kit = Kit(max_known_agents=8, max_sessions=8, max_agents=4, window=16, max_event_ids=16, max_log_events=32)
    kit.exchange(events=[kit.arrived("quiet", "b", tenant="two")], report=kit.report())
    quiet = kit.runtime.state("two")["agents"]
    for agent, session in steps:
        kit.exchange(events=[kit.arrived(f"s{session}", f"a{agent}", tenant="one")])
    workload = kit.runtime.shared.learned.workloads["one"]
    assert len(workload.agents) <= 8 and len(workload.sessions) <= 8 and len(workload.model.sessions) <= 8
    assert kit.runtime.state("two")["agents"] == quiet
    kit.runtime.check_invariants()


def test_more_agents_in_a_cache_than_a_report_names_dont_hide_the_replica() -> None:
    owner_of: list[BlockOwner | None] = []
    for number in range(MAX_REPORTED_AGENTS + 200):
        owner_of += [BlockOwner(SESSION, (("one", f"a{number}"),))] * (1 + number % 3)
    resident, _ = count_residency(owner_of)
    assert len(resident["one"]) == MAX_REPORTED_AGENTS and max(resident["one"].values()) == 3
    store = AnchorStore(cap_bytes=1 << 20, max_anchors=1000)
    for number in range(MAX_REPORTED_AGENTS + 200):
        store.add(Anchor("one", f"a{number}", f"d{number}", b"\1\0\0\0", None, None))
    listing = store.listing()
    assert len(listing["one"]) == MAX_REPORTED_AGENTS and f"a{MAX_REPORTED_AGENTS + 199}" in listing["one"]
    kit = Kit()
    kit.exchange(report=kit.report(resident=resident, anchors=listing))
    assert kit.runtime.reports_invalid == 0 and len(kit.runtime.state()["replicas"]) == 1
    kit.exchange(report=kit.report(resident={"one": {f"a{n}": 1 for n in range(MAX_REPORTED_AGENTS + 1)}}))
    assert kit.runtime.reports_invalid == 1


def hashes(text: str, count: int) -> list[bytes]:
    return [f"{text}-{number:06}".encode() for number in range(count)]


def test_an_engine_keeps_a_tenants_owners_through_anothers_flood() -> None:
    directory = OwnerDirectory(
        ValueSettings(max_sessions=20, max_shared_owners=10), prefixes=SharedPrefixes(max_prefixes=4096)
    )

    def arrive(workload: str, agent: str, session: str, blocks: list[bytes]) -> Any:
        claim = directory.arrive(f"{workload}{agent}{session}", OwnerTag(workload, agent, session), blocks)
        directory.finished(f"{workload}{agent}{session}")
        return claim

    anchor = hashes("anchor", 4)
    for session in ("s1", "s2", "s3"):
        mine = arrive("two", "a", session, [*anchor, session.encode() * 4])
    assert next(iter(mine.owners)).agents == (("two", "a"),)
    for number in range(300):
        for session in ("x", "y"):
            arrive("one", f"a{number}", f"{session}{number}", [*hashes(f"flood{number}", 4), b"end" + session.encode()])
    directory.check_invariants()
    again = arrive("two", "a", "s4", [*anchor, b"new"])
    assert next(iter(again.owners)) is next(iter(mine.owners)), "the anchor's owner was not retired"
    live = {row[1] for row in directory.sessions(0.0) if row[0] == "two"}
    assert live == {"s1", "s2", "s3", "s4"}


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": f"f{n}", "parameters": {}}} for n in range(20_000)]},
        {"messages": [{"role": "user", "content": "x"}] * 5000},
        {"user": "u" * 100_000},
        {"metadata": {f"k{n}": "v" * 100 for n in range(1000)}},
        {"stop": ["s" * 1000] * 100},
        {"logit_bias": {str(n): 1 for n in range(10_000)}},
    ],
)
def test_large_parts_are_answered(fields: dict[str, Any]) -> None:
    bench = SimulatedBench()
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, **fields}
    answer = asyncio.run(bench.send("POST", "/v1/chat/completions", json=body))
    assert answer.status_code in (200, 400), answer.text
    assert sum(len(name) + len(value) for name, value in answer.headers.items()) < 2048
    if answer.status_code == 400:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert len(answer.content) < 2048
