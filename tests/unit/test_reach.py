"""First-passage algebra against brute force, and the tables' wire form."""

from __future__ import annotations

import random
import struct
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_actor.chain import first_passage, first_passage_within
from runtime_actor.errors import MessageError
from runtime_actor.reach import ReachSettings, compute_tables
from runtime_actor.tables import OTHER, ReachTables
from runtime_actor.transitions import TransitionModel


def random_step(seed: int, n: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = rng.random((n + 1, n + 1)) ** 3
    return (rows / rows.sum(axis=1, keepdims=True))[:, :n]


def by_taboo(step: np.ndarray, target: int, gamma: float, steps: int) -> np.ndarray:
    """Sum of gamma^k P(first visit at step k), pushing one probability vector per start and step."""
    n = step.shape[1]
    totals = []
    for start in range(n + 1):
        here = step[start].copy()
        total, discount = 0.0, gamma
        for _ in range(steps):
            total += discount * here[target]
            here[target] = 0.0
            here = here @ step[:n]
            discount *= gamma
        totals.append(total)
    return np.array(totals)


@given(st.integers(0, 10_000), st.integers(1, 7), st.floats(0.05, 0.95))
@settings(max_examples=50)
def test_first_passage_equals_pushing_probability(seed: int, n: int, gamma: float) -> None:
    step = random_step(seed, n)
    exact = first_passage(step, gamma)
    for target in range(n):
        assert exact[:, target] == pytest.approx(by_taboo(step, target, gamma, 600), abs=1e-8)


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 12), st.floats(0.1, 1.0))
@settings(max_examples=50)
def test_cut_first_passage_equals_pushing_probability(
    seed: int, n: int, steps: int, gamma: float
) -> None:
    step = random_step(seed, n)
    cut = first_passage_within(step, steps, gamma)
    for target in range(n):
        assert cut[:, target] == pytest.approx(by_taboo(step, target, gamma, steps), abs=1e-9)


def test_first_passage_equals_simulation() -> None:
    n, runs, gamma = 4, 20_000, 0.8
    step = random_step(5, n)
    rng = random.Random(11)
    total = np.zeros(n)
    for _ in range(runs):
        seen: set[int] = set()
        state, discount = 0, 1.0
        while discount > 1e-4:
            state = rng.choices(range(n + 1), [*step[state], 1.0 - step[state].sum()])[0]
            discount *= gamma
            if state == n:
                break
            if state not in seen:
                seen.add(state)
                total[state] += discount
    assert total / runs == pytest.approx(first_passage(step, gamma)[0], abs=0.015)


def test_first_passage_refuses_gamma_one() -> None:
    with pytest.raises(ValueError, match="gamma"):
        first_passage(random_step(0, 2), 1.0)
    with pytest.raises(ValueError, match="gamma"):
        ReachSettings(gamma=0.0)
    with pytest.raises(ValueError, match="horizon"):
        ReachSettings(horizon_steps=0)


def busy_model(agents: int, steps: int, seed: int = 1, max_agents: int = 64) -> TransitionModel:
    """Random walk with no structure: the most order-2 pairs a window can hold."""
    rng = random.Random(seed)
    model = TransitionModel(max_agents=max_agents)
    names = [f"a-{rng.getrandbits(64):016x}" for _ in range(agents)]
    for i in range(steps):
        model.observe(f"s-{rng.randrange(32)}", rng.choice(names), i * 0.5)
        if rng.random() < 0.03:
            model.end(f"s-{rng.randrange(32)}", i * 0.5)
    return model


def test_tables_of_a_full_window_fit_25_kb() -> None:
    model = busy_model(agents=80, steps=6000)
    assert model.observed == 4096
    wire = compute_tables(model, workload="w-" + "0" * 16).to_bytes()
    assert len(wire) <= 25_000
    assert len(ReachTables.from_bytes(wire).agents) == 64


def test_tables_of_64_agents_take_a_few_milliseconds() -> None:
    model = busy_model(agents=80, steps=6000)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        compute_tables(model)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.02


def test_no_observation_still_gives_valid_tables() -> None:
    tables = compute_tables(TransitionModel())
    assert tables.agents == (OTHER,)
    assert tables.first.max() == 0.0
    assert ReachTables.from_bytes(tables.to_bytes()).alive(0, 100.0) == 1.0


@given(st.integers(1, 12), st.integers(0, 200), st.integers(0, 1000), st.booleans())
@settings(max_examples=40, deadline=None)
def test_wire_round_trip(agents: int, steps: int, seed: int, cut: bool) -> None:
    model = busy_model(agents, steps, seed, max_agents=8)
    tables = compute_tables(model, ReachSettings(0.9, 6 if cut else None), workload="wörk")
    back = ReachTables.from_bytes(tables.to_bytes())
    assert (back.workload, back.agents) == (tables.workload, tables.agents)
    assert (back.second_pairs == tables.second_pairs).all()
    for name in ("first", "second", "gap_s", "end_probability"):
        assert getattr(back, name) == pytest.approx(getattr(tables, name), rel=1e-3, abs=1e-7)
    assert back.to_bytes() == tables.to_bytes()
    for values in (tables.first, tables.second, tables.end_probability):
        assert ((values >= 0.0) & (values <= 1.0)).all()


@given(st.binary(max_size=200), st.integers(0, 400))
@settings(max_examples=200)
def test_foreign_bytes_are_refused(junk: bytes, cut: int) -> None:
    wire = compute_tables(busy_model(3, 40, 2, max_agents=4)).to_bytes()
    for bad in (junk, wire[: min(cut, len(wire) - 1)], wire + junk + b"x"):
        with pytest.raises(MessageError):
            ReachTables.from_bytes(bad)


def test_wrong_content_is_refused() -> None:
    wire = compute_tables(busy_model(3, 40, 2, max_agents=4)).to_bytes()
    nan = struct.pack("<e", float("nan"))
    with pytest.raises(MessageError, match="within"):
        ReachTables.from_bytes(wire[:-2] + nan)
    with pytest.raises(MessageError, match="version"):
        ReachTables.from_bytes(b"RTB9" + wire[4:])
    with pytest.raises(MessageError, match="bytes"):
        ReachTables.from_bytes("text")  # type: ignore[arg-type]


def test_order_two_is_used_where_it_is_known() -> None:
    """x a y and z a w: after a, only the agent before it tells what comes."""
    model = TransitionModel()
    for i in range(60):
        for agent in ("xay", "zaw")[i % 2]:
            model.observe(f"s{i}", agent, float(i))
        model.end(f"s{i}", float(i))
    tables = compute_tables(model)
    x, a, y, w = (tables.index(name) for name in "xayw")
    assert tables.row(x, a)[y] > 5 * tables.row(x, a)[w]
    assert tables.row(y, a)[y] == tables.first[a][y]
    assert tables.first[a][y] == pytest.approx(tables.first[a][w], rel=0.1)
    assert tables.index("never seen") == len(tables.agents) - 1


def test_a_session_that_ends_for_sure_is_worth_little_and_silence_lowers_it() -> None:
    model = TransitionModel()
    for i in range(40):
        model.observe(f"s{i}", "a", i * 10.0)
        if i % 2:
            model.observe(f"s{i}", "b", i * 10.0 + 2.0)
        model.end(f"s{i}", i * 10.0 + 3.0)
    tables = compute_tables(model)
    a, b = tables.index("a"), tables.index("b")
    assert tables.first[b].max() < 0.05
    assert tables.gap_s[a] == pytest.approx(2.0)
    assert tables.arrivals_per_request == pytest.approx(40 / 60)
    alive = [tables.alive(a, silent_s) for silent_s in (0.0, 1.0, 10.0, 100.0)]
    assert alive[0] == 1.0
    assert alive == sorted(alive, reverse=True)
    assert alive[-1] < 0.01
