"""Step probabilities of a session and first-passage linear algebra. Pure numpy, small and exact.

Index convention: agents are 0..n-1 and START is row n. A row sums to at most 1; what is missing is the
probability that the session ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FIRST_ORDER_PRIOR = 1.0
"""Pseudo-count with which an order-1 row leans on the distribution over all steps."""

SECOND_ORDER_PRIOR = 2.0
"""Pseudo-count with which an order-2 row leans on its order-1 row: back-off by evidence."""


@dataclass(frozen=True, slots=True)
class Chain:
    """`step` [n+1, n]: P(next request's agent | current), START in row n; `end` [n]: P(the session ends).

    `slots[i]` is the slot of agent i in the model the chain came from.
    """

    slots: tuple[int, ...]
    start_slot: int
    step: Array
    end: Array
    second_counts: Mapping[tuple[int, int], Mapping[int, int]]
    position: Mapping[int, int]

    @classmethod
    def from_counts(
        cls,
        first: NDArray[np.int64],
        second: Mapping[tuple[int, int], Mapping[int, int]],
        slots: Sequence[int],
        start_slot: int,
        end_slot: int,
    ) -> Chain:
        """Order 1 with back-off to the pooled distribution of all steps inside sessions."""
        columns = [*slots, end_slot]
        counts = first[np.ix_([*slots, start_slot], columns)].astype(np.float64)
        pooled = counts[:-1].sum(axis=0)
        if pooled.sum() > 0.0:
            pooled /= pooled.sum()
        weight = counts.sum(axis=1, keepdims=True)
        prior = np.full_like(weight, FIRST_ORDER_PRIOR)
        prior[-1] = 0.0
        rows = (counts + prior * pooled) / np.maximum(weight + prior, 1.0)
        return cls(
            slots=tuple(slots),
            start_slot=start_slot,
            step=rows[:, :-1],
            end=rows[:-1, -1],
            second_counts=second,
            position={slot: i for i, slot in enumerate(slots)},
        )

    def second_step(self, previous_slot: int, current_slot: int) -> Array:
        """P(next | previous, current) [n]: order 2, leaning on order 1 while there is little evidence."""
        first = self.step[self.position[current_slot]]
        counts = self.second_counts.get((previous_slot, current_slot))
        if not counts:
            return first
        row = SECOND_ORDER_PRIOR * first
        for slot, count in counts.items():
            if slot in self.position:
                row[self.position[slot]] += count
        return row / (SECOND_ORDER_PRIOR + sum(counts.values()))


def first_passage(step: Array, gamma: float) -> Array:
    """sum over k >= 1 of gamma^k * P(first visit of column j is at step k | row i), for `step` [n+1, n].

    Exact: with N = (I - gamma P)^-1 the expected discounted visits, the first passage is
    (N - I)[i, j] / N[j, j] (Kemeny and Snell, Finite Markov Chains, 1960, chapter III, discounted form).

    Raises:
        ValueError: gamma outside (0, 1).
    """
    if not 0.0 < gamma < 1.0:
        raise ValueError(f"gamma must be in (0, 1), got {gamma}")
    n = step.shape[1]
    visits = np.linalg.inv(np.eye(n) - gamma * step[:n])
    agents = (visits - np.eye(n)) / np.diagonal(visits)
    start = first_passage_from(step[n], agents, gamma)
    return np.clip(np.vstack([agents, start]), 0.0, 1.0)


def first_passage_within(step: Array, steps: int, gamma: float) -> Array:
    """As `first_passage`, cut after `steps` steps; gamma may be 1. Stops early once nothing changes."""
    passage = np.zeros_like(step)
    for _ in range(steps):
        following = _one_step(step, passage, gamma)
        if np.abs(following - passage).max(initial=0.0) < 1e-9:
            return following
        passage = following
    return passage


def _one_step(step: Array, passage: Array, gamma: float) -> Array:
    agents = passage[: step.shape[1]]
    elsewhere = agents - np.diag(np.diagonal(agents))
    return gamma * (step + step @ elsewhere)


def first_passage_from(step_row: Array, passage: Array, gamma: float) -> Array:
    """First passage [n] of a session whose next step is distributed as `step_row` [n]."""
    n = step_row.shape[0]
    agents = passage[:n]
    return gamma * (step_row + step_row @ agents - step_row * np.diagonal(agents))
