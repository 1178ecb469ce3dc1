"""A system prompt whose lines come in another order each time is one agent, and nothing else changes by it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from serve_app.identity import Identity, IdentityResolver
from serve_app.recognition.orders import MAX_ORDERS, OrderIndex

TOOLS = [f"- {name}: does the {name} of what the user has asked for" for name in ("search", "sum", "walk", "draw")]
RULES = ["Use the tools well.", "", "Be brief."]


def send(resolver: IdentityResolver, lines: list[str], *said: str, **fields: Any) -> Identity:
    messages = [{"role": "system", "content": "\n".join(lines)}]
    messages += [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(said)]
    resolved = resolver.resolve("t", {}, {"messages": messages, **fields})
    resolver.accept(resolved)
    resolver.answered(resolved, "So be it.")
    return resolved.identity


@pytest.mark.parametrize("seed", range(5))
def test_the_same_lines_are_one_agent_in_any_order_and_sessions_are_as_with_one_order(seed: int) -> None:
    rng = random.Random(seed)
    shuffled, plain = IdentityResolver(b"secret"), IdentityResolver(b"secret")
    found: list[tuple[Identity, Identity]] = []
    talks: list[tuple[str, ...]] = []
    for _ in range(40):
        if talks and rng.random() < 0.5:
            said = (*rng.choice(talks), "So be it.", f"And what comes after step {rng.randrange(3)} of the work?")
        else:
            said = (f"Please do job {rng.randrange(4)} of the long list of this week.",)
        talks.append(said)
        order = rng.sample(TOOLS + RULES, len(TOOLS + RULES))
        found.append((send(shuffled, order, *said), send(plain, TOOLS + RULES, *said)))
    assert len({one.agent for one, _ in found[2:]}) == 1
    assert len({(one.session, other.session) for one, other in found}) == len({one.session for one, _ in found})
    assert len({one.session for one, _ in found}) == len({other.session for _, other in found})


def test_the_name_of_the_lines_outlives_the_process() -> None:
    names = set()
    for seed in range(3):
        rng, resolver = random.Random(seed), IdentityResolver(b"secret")
        names.add([send(resolver, rng.sample(TOOLS, 4), f"job {n}").agent for n in range(9)][-1])
    assert len(names) == 1


@pytest.mark.parametrize(
    "clock", ["Current time: 2026-03-0{}T06:00:31Z", "Run id: 4f2a9c7{}e1", "x-a-billing-header: {}"]
)
def test_the_same_lines_with_a_clock_or_a_run_id_are_one_agent_in_any_order(clock: str) -> None:
    resolver = IdentityResolver(b"secret")
    agents = []
    for seed in range(6):
        lines = random.Random(seed).sample(TOOLS, 4)
        agents.append(send(resolver, [*lines, clock.format(seed)], f"job {seed}").agent)
    assert len(set(agents[2:])) == 1


def test_another_line_or_another_tool_is_another_agent() -> None:
    resolver = IdentityResolver(b"secret")
    tools = [{"type": "function", "function": {"name": "search"}}]
    for lines in (TOOLS, TOOLS[::-1]):
        agents = [send(resolver, lines, "Do it."), send(resolver, lines, "Do it.", tools=tools)]
        agents += [send(resolver, lines[:3], "Do it."), send(resolver, [*lines, "Role: x"], "Do it.")]
        assert len({identity.agent for identity in agents}) == 4


def test_bounded() -> None:
    index = OrderIndex()
    for n in range(MAX_ORDERS + 100):
        index.of("t", f"line {n}\nline".__str__, f"{n}", b"t")
    assert len(index._known) == len(index._by_lines) == MAX_ORDERS


def test_an_order_may_be_forgotten_at_once() -> None:
    index = OrderIndex()
    index._known.cap = 1
    index._known.part("one")
    for tenant in ("two", "one"):
        assert index.of(tenant, lambda: "line", "digest", b"").first == "digest"
