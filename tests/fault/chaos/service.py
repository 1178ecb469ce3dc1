"""When callers are served again after a fault, apart from when all that was there is there again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.fault.chaos.load import OK, VARIED, Outcome

WINDOW_ANSWERS = 12
"""Answers that a rate is taken from: three of each of four callers."""


@dataclass(frozen=True, slots=True)
class Service:
    """Times from the fault on, rates in answers a second.

    `settled_s`: until the last request that began before the fault, or failed, had ended. `again_s`: until the first
    WINDOW_ANSWERS in a row, none before `settled_s`, that came as fast as the remaining replicas' share of the rate
    before; None if there were none before the replacement was there. Rates: before the fault, from `settled_s` until
    the replacement was there, and from then on; None where there are too few answers to tell.
    """

    settled_s: float
    again_s: float | None
    before: float | None
    meanwhile: float | None
    afterwards: float | None

    def told(self) -> str:
        again = "(never)" if self.again_s is None else f"{self.again_s:.1f} s"
        rates = ["?" if rate is None else f"{rate:.1f}" for rate in (self.before, self.meanwhile, self.afterwards)]
        return (
            f"those in flight had ended after {self.settled_s:.1f} s, the remaining replicas' rate was there after "
            f"{again}; "
            f"{rates[0]} answers a second before, {rates[1]} until it was whole, {rates[2]} then"
        )


def service(outcomes: Sequence[Outcome], fault_s: float, whole_s: float, remaining: float) -> Service:
    """`fault_s`, `whole_s`: on the outcomes' clock. `remaining`: share of the replicas that live on, in (0, 1]."""
    answered = [outcome for outcome in outcomes if outcome.kind in (OK, VARIED)]
    ends = sorted(outcome.ended_s for outcome in answered)
    late = [o.ended_s for o in outcomes if o.ended_s > fault_s and (o.began_s < fault_s or o not in answered)]
    settled_s = max(late, default=fault_s)
    before = _rate([end for end in ends if end < fault_s])
    again_s = None
    if before is not None:
        meanwhile = [end for end in ends if settled_s <= end < whole_s]
        again_s = next((w[0] - fault_s for w in _windows(meanwhile) if (_rate(w) or 0.0) >= before * remaining), None)
    return Service(
        settled_s=settled_s - fault_s,
        again_s=again_s,
        before=before,
        meanwhile=_rate([end for end in ends if settled_s <= end < whole_s]),
        afterwards=_rate([end for end in ends if end >= whole_s]),
    )


def _windows(ends: list[float]) -> list[list[float]]:
    return [ends[first : first + WINDOW_ANSWERS] for first in range(len(ends) - WINDOW_ANSWERS + 1)]


def _rate(ends: list[float]) -> float | None:
    if len(ends) < WINDOW_ANSWERS or ends[-1] <= ends[0]:
        return None
    return (len(ends) - 1) / (ends[-1] - ends[0])
