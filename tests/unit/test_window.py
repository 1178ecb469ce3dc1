"""The packed window: its bytes, gaps, cuts, and what is refused when it comes from a file."""

from __future__ import annotations

import base64
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_actor.chain import Chain
from runtime_actor.counts import gap_code, gap_seconds
from runtime_actor.errors import CheckpointError
from runtime_actor.transitions import FRESH, TransitionModel
from runtime_actor.workloads import QUIET_S
from tests.unit.runtime_kit import Kit


def test_restore_into_a_smaller_window_keeps_the_newest() -> None:
    model = TransitionModel(window=100)
    for i in range(50):
        model.observe("s", "ab"[i % 2], float(i))
    cut = TransitionModel.restore(model.state(), window=5)
    assert cut.observed == 5
    assert sum(cut.counts().values()) == 5
    cut.check_invariants()


def packed(*step: int) -> str:
    return base64.b64encode(bytes(step)).decode()


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 99},
        {"slots": {}},
        {"slots": 5},
        {"steps": packed(0, 0, 250, 0, 0)},
        {"steps": packed(0, 200, 0, 0, 0)},
        {"steps": packed(0, 0, 0, 255, 0)},
        {"steps": packed(0, 0, 0, 5, 9)},
        {"steps": packed(0, 0, 0, 5)},
        {"steps": "no base64!"},
        {"steps": 7},
        {"sessions": [["s", 1000, 0, 0.0, 1, []]]},
        {"slots": {**TransitionModel(max_agents=4).state()["slots"], "free": [0, 0]}},
        {"slots": {**TransitionModel(max_agents=4).state()["slots"], "names": []}},
        {"slots": {**TransitionModel(max_agents=4).state()["slots"], "activity": [[0.0, float("nan")]] * 3}},
        {"window": "many"},
    ],
)
def test_damaged_state_is_refused(damage: dict) -> None:
    model = TransitionModel(max_agents=4)
    model.observe("s", "a", 0.0)
    with pytest.raises(CheckpointError):
        TransitionModel.restore(model.state() | damage)


def test_state_that_is_no_state_is_refused() -> None:
    for value in (None, [], "x", {}):
        with pytest.raises(CheckpointError):
            TransitionModel.restore(value)


def test_the_window_is_five_bytes_a_step() -> None:
    model = TransitionModel(window=100)
    for i in range(1000):
        model.observe("s", f"agent {i % 7}", float(i))
    assert len(base64.b64decode(model.state()["steps"])) == 500
    steps = list(model._window)
    assert [model.name_of(step.target) for step in steps] == [f"agent {i % 7}" for i in range(900, 1000)]


@given(st.floats(0.02, 59_000.0))
def test_a_gap_comes_back_from_its_code(gap_s: float) -> None:
    assert gap_seconds()[gap_code(gap_s)] == pytest.approx(gap_s, rel=0.036)


def test_short_and_endless_gaps() -> None:
    assert gap_code(None) == 0
    assert gap_code(-3.0) == gap_code(0.0) == 1
    assert gap_code(1e9) == gap_code(math.inf) == len(gap_seconds()) - 1


def test_tenants_that_take_turns_keep_what_was_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forecast's chain takes milliseconds to make: not with each event, however many tenants there are."""
    kit = Kit(table_interval_s=60.0)
    for tenant in ("t1", "t2", "t3"):
        kit.teach("abcdefgh", sessions=40, tenant=tenant)
    kit.exchange()
    made: list[TransitionModel] = []
    chain = TransitionModel.chain

    def counted(model: TransitionModel) -> Chain:
        made.append(model)
        return chain(model)

    monkeypatch.setattr(TransitionModel, "chain", counted)
    for step in range(40):
        for tenant in ("t1", "t2", "t3"):
            kit.exchange(events=[kit.arrived("live", "abcdefgh"[step % 8], tenant)])
    assert len(made) <= 3 * 40 // (320 // FRESH)


def test_what_was_worked_out_is_given_up_when_a_tenant_is_silent() -> None:
    kit = Kit()
    kit.teach("abc", sessions=5, tenant="silent")
    model = kit.runtime.shared.learned.workloads["silent"].model
    assert model.steps.first.any()
    kit.exchange(events=[kit.arrived("s", "a", "other")])
    assert model._steps is not None
    kit.clock.advance(QUIET_S)
    kit.exchange(events=[kit.arrived("s", "b", "other")])
    assert model._steps is None and model._chain is None
