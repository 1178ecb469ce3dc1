"""TransitionModel against naive counting over the whole event list."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_actor.counts import MAX_VISITS
from runtime_actor.tables import OTHER
from runtime_actor.transitions import END, START, TransitionModel

SESSIONS = ["s1", "s2", "s3", "s4", "s5"]
AGENTS = ["a", "b", "c", "d", "e"]
EVENT = st.tuples(st.sampled_from(SESSIONS), st.sampled_from([*AGENTS, END]), st.integers(min_value=0, max_value=9))
EVENTS = st.lists(EVENT, max_size=120)


class Naive:
    """Keeps every step for ever and cuts the list when asked."""

    def __init__(self, window: int, max_sessions: int) -> None:
        self.window = window
        self.max_sessions = max_sessions
        self.steps: list[tuple[str, str, str, float | None]] = []
        self.live: list[tuple[str, str, str, float]] = []

    def observe(self, session: str, agent: str, t_s: float) -> None:
        for i, (name, previous, current, last_s) in enumerate(self.live):
            if name == session:
                self.steps.append((previous, current, agent, t_s - last_s))
                del self.live[i]
                self.live.append((session, current, agent, t_s))
                return
        self.steps.append((START, START, agent, None))
        self.live.append((session, START, agent, t_s))
        if len(self.live) > self.max_sessions:
            self.end(self.live[0][0])

    def end(self, session: str) -> None:
        for i, (name, previous, current, _) in enumerate(self.live):
            if name == session:
                self.steps.append((previous, current, END, None))
                del self.live[i]
                return

    @property
    def kept(self) -> list[tuple[str, str, str, float | None]]:
        return self.steps[-self.window :]

    def counts(self) -> dict[tuple[str, str], int]:
        return dict(Counter((b, c) for _, b, c, _ in self.kept if b != c))

    def repeats(self) -> dict[str, int]:
        return dict(Counter(b for _, b, c, _ in self.kept if b == c))

    def second(self) -> dict[tuple[str, str], dict[str, int]]:
        rows: dict[tuple[str, str], Counter[str]] = {}
        for a, b, c, _ in self.kept:
            if b != START:
                rows.setdefault((a, b), Counter())[c] += 1
        return {pair: dict(row) for pair, row in rows.items()}


def play(events: list, *targets: object) -> None:
    t_s = 0.0
    for session, agent, gap_s in events:
        t_s += gap_s
        for target in targets:
            if agent == END:
                target.end(session, t_s) if isinstance(target, TransitionModel) else target.end(session)
            else:
                target.observe(session, agent, t_s)


def named_second(model: TransitionModel) -> dict[tuple[str, str], dict[str, int]]:
    rows: dict[tuple[str, str], Counter[str]] = {}
    for (previous, current, _), row in model.steps.contexts.items():
        named = rows.setdefault((model.name_of(previous), model.name_of(current)), Counter())
        for (slot, _), count in row.items():
            named[model.name_of(slot)] += count
    return {pair: dict(row) for pair, row in rows.items()}


def named_stages(model: TransitionModel) -> dict[tuple[str, int], dict[tuple[str, int], int]]:
    pairs = model.steps.stage_pairs.tolist()
    return {
        (model.name_of(slot), visits): {(model.name_of(s), v): k for a, b, s, v, k in pairs if (a, b) == (slot, visits)}
        for slot, visits, *_ in pairs
    }


@given(EVENTS, st.integers(1, 40), st.integers(1, 5))
@settings(deadline=None)
def test_counts_equal_naive_counting(events: list, window: int, max_sessions: int) -> None:
    model, naive = TransitionModel(window, 8, max_sessions), Naive(window, max_sessions)
    play(events, model, naive)
    model.check_invariants()
    assert model.counts() == naive.counts()
    assert model.repeats() == naive.repeats()
    assert named_second(model) == naive.second()
    gaps = [gap for _, _, _, gap in naive.kept if gap is not None]
    assert float(model.steps.gap_s_sum.sum()) == pytest.approx(sum(gaps), rel=0.036, abs=0.02 * len(gaps))
    assert int(model.steps.gap_count.sum()) == len(gaps)
    assert [(s, model.name_of(p.current)) for s, p in model.sessions.items()] == [(s, c) for s, _, c, _ in naive.live]


@given(EVENTS, st.integers(1, 40), st.integers(2, 4))
@settings(deadline=None)
def test_few_slots_keep_totals_and_bounds(events: list, window: int, max_agents: int) -> None:
    model, naive = TransitionModel(window, max_agents, 5), Naive(window, 5)
    play(events, model, naive)
    model.check_invariants()
    assert int(model.steps.first.sum()) == len(naive.kept)
    assert len(model.agents) <= max_agents - 1
    assert set(model.agents) <= set(AGENTS)


@given(EVENTS, st.integers(1, 40), st.integers(2, 8))
@settings(deadline=None)
def test_state_comes_back_exactly_through_json(events: list, window: int, max_agents: int) -> None:
    model = TransitionModel(window, max_agents, 4)
    play(events, model)
    back = TransitionModel.restore(json.loads(json.dumps(model.state())))
    assert back.state() == model.state()
    more = [("s1", "a", 1), ("s9", "f", 2), ("s1", END, 0), ("s2", "c", 0)]
    play(more, model)
    play(more, back)
    assert back.state() == model.state()
    assert (back.steps.first == model.steps.first).all()


def test_start_end_and_repeats() -> None:
    model = TransitionModel()
    for agent in "aab":
        model.observe("s", agent, 0.0)
    assert model.end("s", 1.0)
    assert not model.end("s", 2.0)
    assert model.counts() == {(START, "a"): 1, ("a", "b"): 1, ("b", END): 1}
    assert model.repeats() == {"a": 1}
    assert model.probabilities() == {(START, "a"): 1.0, ("a", "b"): 1.0, ("b", END): 1.0}


def test_visits_tell_the_rounds_of_a_team_apart() -> None:
    model = TransitionModel()
    for i in range(20):
        for agent in "abcabc":
            model.observe(f"s{i}", agent, float(i))
        model.end(f"s{i}", float(i))
    assert named_stages(model)["c", 1] == {("a", 2): 20}
    assert named_stages(model)["c", 2] == {(END, 0): 20}
    for agent in "abc":
        model.observe("now", agent, 99.0)
    assert model.forecast("now", 1)["a"] > 0.9
    for agent in "abc":
        model.observe("now", agent, 99.0)
    assert model.forecast("now", 9)["a"] < 0.1


def test_many_visits_count_as_the_last_stage() -> None:
    model = TransitionModel()
    for _ in range(50):
        model.observe("s", "a", 0.0)
    assert int(model.steps.stage_pairs[:, [1, 3]].max()) == MAX_VISITS
    model.check_invariants()


def test_interleaved_sessions_learn_their_own_order() -> None:
    model = TransitionModel()
    for turn in range(30):
        for session in range(16):
            model.observe(f"s{session}", "abc"[(turn + session) % 3], float(turn))
    assert set(model.counts()) <= {(START, x) for x in "abc"} | {("a", "b"), ("b", "c"), ("c", "a")}


def test_expire_ends_silent_sessions() -> None:
    model = TransitionModel()
    model.observe("quiet", "a", 0.0)
    model.observe("loud", "a", 50.0)
    assert model.expire(100.0, 60.0) == ["quiet"]
    assert list(model.sessions) == ["loud"]
    assert model.counts()[("a", END)] == 1


def test_a_clock_that_steps_back_gives_no_negative_gap() -> None:
    model = TransitionModel()
    model.observe("s", "a", 10.0)
    model.observe("s", "b", 5.0)
    assert float(model.steps.gap_s_sum.max()) == pytest.approx(0.01)
    assert model.sessions["s"].t_s == 10.0


def test_predictability_of_a_cycle_is_high_and_of_noise_low() -> None:
    cycle, one = TransitionModel(), TransitionModel()
    for i in range(300):
        cycle.observe("s", "abcd"[i % 4], float(i))
        one.observe("s", "a", float(i))
    assert cycle.predictability() > 0.99
    assert one.predictability() == 0.0
    assert TransitionModel().predictability() == 0.0


@given(EVENTS)
@settings(deadline=None)
def test_predictability_equals_its_formula(events: list) -> None:
    model = TransitionModel(max_agents=8)
    play(events, model)
    counts = model.counts()
    total = sum(counts.values())
    to, source = Counter(), Counter()
    for (i, j), k in counts.items():
        to[j] += k
        source[i] += k
    free = -sum(k / total * math.log(k / total) for k in to.values())
    given_current = -sum(k / total * math.log(k / source[i]) for (i, _), k in counts.items())
    expected = 1.0 - given_current / free if free > 0 else 0.0
    assert model.predictability() == pytest.approx(min(max(expected, 0.0), 1.0), abs=1e-9)


@given(EVENTS, st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_forecast_is_probable_and_grows_with_the_horizon(events: list, horizon: int) -> None:
    model = TransitionModel(max_agents=5)
    play(events, model)
    for session in model.sessions:
        near, far = model.forecast(session, horizon), model.forecast(session, horizon + 1)
        assert set(near) == {*model.agents, OTHER}
        assert all(0.0 <= p <= 1.0 for p in near.values())
        assert all(far[agent] >= p - 1e-9 for agent, p in near.items())
        assert sum(model.forecast(session, 1).values()) <= 1.0 + 1e-9


def test_forecast_follows_what_was_taught() -> None:
    model = TransitionModel()
    for i in range(20):
        for agent in "abc":
            model.observe(f"s{i}", agent, float(i))
        model.end(f"s{i}", float(i))
    model.observe("now", "a", 99.0)
    near, far = model.forecast("now", 1), model.forecast("now", 2)
    assert near["b"] > 0.9 and near["c"] < 0.05
    assert far["c"] > 0.85


def test_forecast_refuses_bad_input() -> None:
    model = TransitionModel()
    model.observe("s", "a", 0.0)
    with pytest.raises(ValueError, match="horizon"):
        model.forecast("s", 0)
    with pytest.raises(KeyError):
        model.forecast("unknown", 1)
    with pytest.raises(ValueError, match="window"):
        TransitionModel(window=0)
