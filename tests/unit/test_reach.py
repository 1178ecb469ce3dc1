"""First-passage algebra against brute force, and the tables' wire form."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_actor.chain import Chain
from runtime_actor.errors import MessageError
from runtime_actor.reach import ReachSettings, compute_tables
from runtime_actor.tables import OTHER, ReachTables
from runtime_actor.transitions import TransitionModel

EVENTS = st.lists(st.tuples(st.sampled_from("stuv"), st.sampled_from("abcde!"), st.integers(0, 9)), max_size=80)


def model_of(events: list[tuple[str, str, int]], max_agents: int = 8) -> TransitionModel:
    """'!' ends the session; the number is the seconds since the event before."""
    model, now_s = TransitionModel(max_agents=max_agents), 0.0
    for session, agent, gap_s in events:
        now_s += gap_s
        if agent == "!":
            model.end(session, now_s)
        else:
            model.observe(session, agent, now_s)
    return model


def by_taboo(chain: Chain, discount: np.ndarray, target: int, steps: int) -> np.ndarray:
    """Discounted P(first request of `target` at each step), pushing one probability vector a stage."""
    hits = chain.agent_of == target
    totals = []
    for stage in range(len(chain.agent_of)):
        here = np.zeros(len(chain.agent_of))
        here[stage] = 1.0
        total = 0.0
        for _ in range(steps):
            here = (here * discount[chain.agent_of]) @ chain.step
            total += here[hits].sum()
            here[hits] = 0.0
        totals.append(total)
    return np.array(totals)


@given(EVENTS, st.floats(0.05, 0.95), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_first_passage_equals_pushing_probability(events: list, gamma: float, steps: int) -> None:
    chain = model_of(events).chain()
    discount = np.linspace(gamma, 1.0, chain.num_agents)
    cut = chain.passage(discount, steps)
    whole = chain.passage(discount * 0.9)
    for target in range(chain.num_agents):
        assert cut[:, target] == pytest.approx(by_taboo(chain, discount, target, steps), abs=2e-3)
        naive = by_taboo(chain, discount * 0.9, target, 200)
        assert whole[:, target] == pytest.approx(naive, abs=2e-3)


@given(EVENTS)
@settings(max_examples=60, deadline=None)
def test_rows_are_probabilities(events: list) -> None:
    chain = model_of(events).chain()
    for rows, end in ((chain.step, chain.end), (chain.start[None], np.zeros(1))):
        sums = rows.sum(axis=1) + end
        assert ((sums < 1.0 + 1e-9) & (rows >= 0.0).all(axis=1)).all()
    assert chain.step.sum(axis=1) + chain.end == pytest.approx(1.0 if events_seen(events) else 0.0)


def events_seen(events: list) -> bool:
    """Whether any session got past its first request."""
    open_sessions: set[str] = set()
    for session, agent, _ in events:
        if session in open_sessions:
            return True
        if agent != "!":
            open_sessions.add(session)
    return False


def test_first_passage_equals_simulation() -> None:
    """Against 20,000 walks of the chain itself."""
    rng = random.Random(11)
    walk = [(rng.choice("stuv"), rng.choice("aabcd!"), 1) for _ in range(300)]
    chain = model_of(walk).chain()
    n, runs, gamma = chain.num_agents, 20_000, 0.8
    rows = np.column_stack([chain.step, chain.end])
    total = np.zeros(n)
    for _ in range(runs):
        seen: set[int] = set()
        stage, discount = 0, 1.0
        while discount > 1e-3:
            stage = rng.choices(range(len(rows) + 1), rows[stage])[0]
            discount *= gamma
            if stage == len(rows):
                break
            agent = int(chain.agent_of[stage])
            if agent not in seen:
                seen.add(agent)
                total[agent] += discount
    assert total / runs == pytest.approx(chain.passage(np.full(n, gamma))[0], abs=0.015)


def test_settings_refuse_bad_values() -> None:
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
    assert (back.contexts == tables.contexts).all()
    assert (back.waits is None) == (tables.waits is None)
    for name in ("first", "context_values", "context_ends", "gap_s", "end_probability"):
        assert getattr(back, name) == pytest.approx(getattr(tables, name), rel=1e-3, abs=1e-7)
    assert back.to_bytes() == tables.to_bytes()
    for values in (tables.first, tables.context_values, tables.end_probability):
        assert ((values >= 0.0) & (values <= 1.0)).all()


@given(st.binary(max_size=200), st.integers(0, 400))
@settings(max_examples=200, deadline=None)
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
    assert (tables.row(x, a, 3) == tables.row(x, a)).all()
    assert tables.index("never seen") == len(tables.agents) - 1


def test_values_by_visit() -> None:
    model = TransitionModel()
    for i in range(40):
        for agent in "abab":
            model.observe(f"s{i}", agent, float(i))
        model.end(f"s{i}", float(i))
    tables = compute_tables(model)
    a, b = tables.index("a"), tables.index("b")
    assert tables.row(a, b, 1)[a] > 0.5
    assert tables.row(a, b, 2)[a] < 0.05


def test_silence_first_raises_a_value_and_then_lowers_it() -> None:
    """Gaps of two seconds; half of the sessions are never heard of again."""
    model = TransitionModel(max_sessions=2)
    for i in range(80):
        model.observe(f"s{i}", "a", i * 10.0)
        if i % 2:
            model.observe(f"s{i}", "b", i * 10.0 + 2.0)
    tables = compute_tables(model)
    a, b = tables.index("a"), tables.index("b")
    assert tables.gap_s[a] == pytest.approx(2.0, rel=0.036)
    assert tables.arrivals_per_request == pytest.approx(80 / 120)
    values = [float(tables.values(tables.start, a, 1, s)[b]) for s in (0.0, 1.6, 30.0, 3000.0)]
    assert values[0] == pytest.approx(float(tables.row(tables.start, a, 1)[b]), rel=1e-3)
    assert values[1] > values[0] > 10 * values[2]
    assert values[3] < 1e-3
    assert 0.0 <= min(values) <= max(values) <= 1.0


def test_the_first_long_pause_is_not_taken_for_an_end() -> None:
    """A few sessions in quick steps, all ended; then one waits forty times as long as any has yet."""
    model = TransitionModel()
    for i in range(7):
        model.observe(f"s{i}", "a", i * 1.0)
        model.observe(f"s{i}", "b", i * 1.0 + 0.25)
        model.end(f"s{i}", i * 1.0 + 0.25)
    tables = compute_tables(model)
    a, b = tables.index("a"), tables.index("b")
    values = [float(tables.values(tables.start, a, 1, s)[b]) for s in (0.0, 1.0, 3.0, 10.0, 1e5)]
    assert values == sorted(values, reverse=True)
    assert values[3] > 1 / 1024 > values[4]


def test_a_declared_end_leaves_silence_without_meaning() -> None:
    """Every session says when it is over, so one that didn't goes on."""
    model = TransitionModel()
    for i in range(60):
        model.observe(f"s{i}", "a", i * 10.0)
        if i % 2:
            model.observe(f"s{i}", "b", i * 10.0 + 2.0)
        model.end(f"s{i}", i * 10.0 + (2.0 if i % 2 else 0.0))
    tables = compute_tables(model)
    a, b = tables.index("a"), tables.index("b")
    row, at_once, later = (
        float(tables.row(tables.start, a, 1)[b]),
        *(float(tables.values(tables.start, a, 1, silent_s)[b]) for silent_s in (0.0, 1.0)),
    )
    assert later > at_once > 1.5 * row > 0.0
