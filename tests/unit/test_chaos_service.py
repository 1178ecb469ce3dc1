"""What the matrix of faults calls served again."""

from __future__ import annotations

import pytest

from tests.fault.chaos.load import CUT, OK, UNANSWERED, VARIED, WRONG, Load, Outcome
from tests.fault.chaos.rows import ROWS, _result
from tests.fault.chaos.service import WINDOW_ANSWERS, service


def answers(first_s: float, last_s: float, every_s: float) -> list[Outcome]:
    n = round((last_s - first_s) / every_s)
    return [Outcome(OK, first_s + (i - 1) * every_s, first_s + i * every_s) for i in range(n)]


def test_the_remaining_replicas_rate_counts_from_its_first_answer() -> None:
    # Ten a second, a fault at 10, nothing until 13, two a second until 20, five until 40, ten again.
    outcomes = [*answers(0, 10, 0.1), *answers(13, 20, 0.5), *answers(20, 40, 0.2), *answers(40, 60, 0.1)]
    found = service(outcomes, fault_s=10.0, whole_s=40.0, remaining=0.5)
    assert found.again_s == pytest.approx(10.0, abs=0.01)
    assert (found.before, found.afterwards) == (pytest.approx(10.0), pytest.approx(10.0))
    assert found.meanwhile == pytest.approx((14 + 100 - 1) / 26.8, rel=0.01)


def test_what_was_in_flight_and_what_failed_has_to_end_first() -> None:
    late = [Outcome(OK, 9.5, 12.0), Outcome("500", 12.0, 15.0)]
    outcomes = [*answers(0, 10, 0.1), *answers(11, 40, 0.1), *late]
    found = service(outcomes, fault_s=10.0, whole_s=40.0, remaining=0.5)
    assert found.settled_s == 5.0
    assert found.again_s == pytest.approx(5.0, abs=0.11)


def test_too_few_answers_are_no_rate() -> None:
    outcomes = answers(0, 10, 0.1) + answers(20, 20 + WINDOW_ANSWERS - 1, 1.0)
    found = service(outcomes, fault_s=10.0, whole_s=40.0, remaining=0.5)
    assert (found.again_s, found.meanwhile) == (None, None)


def test_only_what_a_fault_can_not_but_cost_may_fail() -> None:
    load = Load("http://unused", "m", callers=1, turns=1)
    load.outcomes = [Outcome(kind, 0.0, 1.0) for kind in (OK, VARIED, CUT, "500", "ConnectError", WRONG, UNANSWERED)]
    state = {"gateway": {"retries": 3}, "agents": [{"requests": 2}]}
    found = {row.name: _result(row, load, state, state, 0.0, 1.0, "") for row in ROWS}
    assert all(
        (result.failed, result.wrong, result.unanswered, result.lost) == (3, 1, 1, 2) for result in found.values()
    )
    expected = {"replica killed": 2, "HTTP proxy killed": 2, "actor killed": 3, "calm": 3}
    assert {name: found[name].unexpected for name in expected} == expected
