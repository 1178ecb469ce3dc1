"""Step probabilities of a session, by stage, and first passage to agents. Pure numpy, small.

A stage is (slot, visits). Rows of `step` sum to at most 1; what is missing is the probability that the
session ends. Each row leans on a coarser one while there is little evidence: a context (previous, current,
visits) on its stage, a stage on its agent, an agent on the pool of all steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runtime_actor.counts import ANY_VISITS, MAX_VISITS, Context, Stage, StepCounts

Array = NDArray[np.float64]

PRIOR = 1.0
"""Pseudo-count with which a row leans on the next coarser one."""

MAX_STAGES = 128
"""Stages told apart; the least observed ones are counted as their agent at any visit."""

MAX_STEPS = 1024
CLOSE = 1e-4


@dataclass(frozen=True, slots=True)
class Chain:
    """step [s, s]: P(next stage | stage); end [s]; start [s]: a session's first stage; agent_of [s].

    Stage i is at any visit for i < n, in the order of `slots`. `counts` are what it was made from.
    """

    slots: tuple[int, ...]
    stages: Mapping[Stage, int]
    step: Array
    end: Array
    start: Array
    agent_of: NDArray[np.int64]
    counts: StepCounts

    @classmethod
    def from_counts(cls, counts: StepCounts, slots: Sequence[int], max_stages: int = MAX_STAGES) -> Chain:
        stages = _kept_stages(counts, slots, max_stages)
        place = {slot: i for i, slot in enumerate(slots)}
        agent_of = np.array([place[slot] for slot, _ in stages], dtype=np.int64)
        s, n = len(stages), len(slots)
        raw = _raw_counts(counts, stages, s)
        rows = np.empty((s, s + 1))
        rows[:n] = _leaning(raw[:n], _pooled(raw[:n], agent_of))
        rows[n:] = _leaning(raw[n:s], rows[agent_of[n:]])
        return cls(
            tuple(slots),
            stages,
            rows[:, :s],
            rows[:, s],
            raw[s, :s] / max(raw[s, :s].sum(), 1.0),
            agent_of,
            counts,
        )

    @property
    def num_agents(self) -> int:
        return len(self.slots)

    def index(self, current: int, visits: int) -> int:
        """Row of a stage; of its agent at any visit where the stage isn't kept."""
        return self.stages.get((current, visits), self.stages[current, ANY_VISITS])

    def step_from(self, previous: int, current: int, visits: int) -> tuple[Array, float]:
        """(P(next stage) [s], P(end)) after a request of slot `current`, its `visits`-th, after `previous`.

        ANY_VISITS: over all visits.
        """
        i = self.index(current, visits)
        row = context_counts(self.counts, (previous, current, visits))
        if not row:
            return self.step[i], float(self.end[i])
        parent = np.append(self.step[i], self.end[i])
        merged = _leaning(_vector(row, self.stages, self.counts.end), parent)
        return merged[:-1], float(merged[-1])

    def passage(self, discount: Array, steps: int | None = None) -> Array:
        """sum over k of (discounts on the way) * P(first request of agent j is the k-th) [s, n].

        discount [n]: factor for leaving a request of each agent, in (0, 1]. Iterated until nothing moves
        by more than 1e-4, `steps` times, or 1,024 times.
        """
        leaving = discount[self.agent_of, None] * self.step
        member = self.membership() > 0.0
        passage = np.zeros(member.shape)
        for _ in range(MAX_STEPS if steps is None else min(steps, MAX_STEPS)):
            following = leaving @ np.where(member, 1.0, passage)
            moved = float(np.abs(following - passage).max(initial=0.0))
            passage = following
            if moved < CLOSE:
                break
        return passage

    def membership(self) -> Array:
        """[s, n]: 1 where the stage is of the agent."""
        return (self.agent_of[:, None] == np.arange(self.num_agents)).astype(np.float64)

    def arriving(self, passage: Array) -> Array:
        """[s, n]: value of going to a stage: 1 for its own agent, else the passage from there."""
        return np.where(self.membership() > 0.0, 1.0, passage)

    def within(self, previous: int, current: int, visits: int, steps: int) -> Array:
        """P(first request of each agent comes within `steps`) [n]."""
        passage = self.passage(np.ones(self.num_agents), steps - 1)
        following, _ = self.step_from(previous, current, visits)
        return (following @ self.arriving(passage)).clip(0.0, 1.0)


def context_counts(counts: StepCounts, context: Context) -> Mapping[Stage, int]:
    """Next stages after a context; after all its visits for ANY_VISITS."""
    previous, current, visits = context
    if visits != ANY_VISITS:
        return counts.contexts.get(context, {})
    total: Counter[Stage] = Counter()
    for seen in range(MAX_VISITS + 1):
        row = counts.contexts.get((previous, current, seen))
        if row:
            total.update(row)
    return total


def _kept_stages(counts: StepCounts, slots: Sequence[int], max_stages: int) -> dict[Stage, int]:
    """Each slot at any visit first, then the stages with most observations, up to `max_stages` in all."""
    source, source_visits, target, target_visits, count = counts.stage_pairs.T
    seen = np.zeros((counts.end + 1, MAX_VISITS + 1), np.int64)
    np.add.at(seen, (source, source_visits), count)
    np.add.at(seen, (target, target_visits), count)
    seen[:, ANY_VISITS] = 0
    told = [
        (-int(seen[slot, visits]), (slot, visits)) for slot in slots for visits in np.flatnonzero(seen[slot]).tolist()
    ]
    kept = [(slot, ANY_VISITS) for slot in slots]
    kept += [stage for _, stage in sorted(told)[: max(max_stages - len(kept), 0)]]
    return {stage: i for i, stage in enumerate(kept)}


def _raw_counts(counts: StepCounts, stages: Mapping[Stage, int], s: int) -> Array:
    """[s+1, s+1]: by stage, each agent's at any visit first; START's row and END's column are the last."""
    place = np.full((counts.end + 1, MAX_VISITS + 1), -1, np.intp)
    for (slot, visits), i in stages.items():
        place[slot, visits] = i
        if visits == ANY_VISITS:
            place[slot, 1:] = np.where(place[slot, 1:] < 0, i, place[slot, 1:])
    place[counts.end] = place[counts.start] = s
    source, source_visits, target, target_visits, count = counts.stage_pairs.T
    at, of_agent, to = place[source, source_visits], place[source, ANY_VISITS], place[target, target_visits]
    raw = np.zeros((s + 1, s + 1))
    known = (of_agent >= 0) & (to >= 0)
    np.add.at(raw, (of_agent[known], to[known]), count[known])
    stage = known & (at != of_agent)
    np.add.at(raw, (at[stage], to[stage]), count[stage])
    return raw


def _vector(row: Mapping[Stage, int], stages: Mapping[Stage, int], end: int) -> Array:
    """Counts over stages [s+1], END last."""
    vector = np.zeros(len(stages) + 1)
    for stage, count in row.items():
        if stage[0] == end:
            vector[-1] += count
        else:
            i = stages.get(stage, stages.get((stage[0], ANY_VISITS)))
            if i is not None:
                vector[i] += count
    return vector


def _pooled(raw: Array, agent_of: NDArray[np.int64]) -> Array:
    """What to expect after an agent of which nothing is known [n, s+1]: as often as any agent it comes
    again, else the next stage is as over all changes of agent. Where none is known the session ends."""
    n = len(raw)
    same = np.pad(agent_of == np.arange(n)[:, None], ((0, 0), (0, 1)))
    changes = np.where(same, 0.0, raw)
    total = max(raw.sum(), 1.0)
    others = np.where(same, 0.0, changes.sum(axis=0))
    others /= np.maximum(others.sum(axis=1, keepdims=True), 1.0)
    again = (raw.sum() - changes.sum()) / total
    prior = others * (min(changes.sum(), total) / total)
    prior[np.arange(n), np.arange(n)] += again
    if raw.any():
        prior[:, -1] += 1.0 - prior.sum(axis=1)
    return prior


def _leaning(counts: Array, parent: Array) -> Array:
    """Rows of counts as probabilities, with PRIOR pseudo-counts spread as in `parent`."""
    total = counts.sum(axis=-1, keepdims=True)
    return (counts + PRIOR * parent) / np.maximum(total + PRIOR, 1.0)
