"""Transition counts -> reach tables: how likely, and how soon, each agent's KV is needed again.

value = E[exp(-decay * T)], T the seconds from a request to the session's next request of agent j (never:
0), with decay chosen so that a mean gap costs the factor gamma. T is a first-passage time of a semi-Markov
chain: each step adds a gap of the agent it leaves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from runtime_actor.chain import MAX_STAGES, Array, Chain
from runtime_actor.counts import ANY_VISITS, gap_bin_centres_s
from runtime_actor.tables import MAX_WIRE_BYTES, WAIT_POINTS, ReachTables, Waits, wire_bytes
from runtime_actor.transitions import TransitionModel

GAP_PRIOR = 2.0
"""Pseudo-gaps with which an agent's gaps lean on those of all agents."""

TAIL_GAPS = 0.5
"""Pseudo-gaps longer than the mean, as likely in each bin: that no silence was as long yet doesn't make it an end."""

LEFT_OF_BIN = 0.2
"""Of a gap known to end within the bin that has been reached, so much of its length is left (half of its width)."""

DECLARED_BINS = 1
"""A session that ends in the shortest bin was declared over with its last request, not found silent."""


ContextKey = tuple[int | None, int, int]
"""(previous slot, current slot, visits); previous None: whatever came before."""


@dataclass(frozen=True, slots=True)
class ReachSettings:
    """gamma: discount of a mean gap, in (0, 1). horizon_steps: cut after so many steps; None: no cut.

    max_stages: stages told apart; 0: a request's number in its session plays no part. Contexts beyond
    what fits `max_bytes` are left out, least observed first.
    """

    gamma: float = 0.7
    horizon_steps: int | None = None
    max_stages: int = MAX_STAGES
    max_bytes: int = MAX_WIRE_BYTES

    def __post_init__(self) -> None:
        if not 0.0 < self.gamma < 1.0:
            raise ValueError(f"gamma must be in (0, 1), got {self.gamma}")
        if self.horizon_steps is not None and self.horizon_steps < 1:
            raise ValueError(f"horizon_steps must be >= 1 or None, got {self.horizon_steps}")


def compute_tables(
    model: TransitionModel, settings: ReachSettings | None = None, workload: str = "default"
) -> ReachTables:
    """Tables of `model` as it stands. Pure: equal counts give equal tables."""
    settings = settings or ReachSettings()
    chain = model.chain(settings.max_stages)
    n = chain.num_agents
    agents = tuple(model.name_of(slot) for slot in chain.slots)
    gaps = _Gaps(model, chain, settings.gamma)
    steps = settings.horizon_steps
    passage = chain.passage(gaps.discount, None if steps is None else steps - 1)
    arriving = chain.arriving(passage)
    contexts = _contexts_by_evidence(chain, _room(workload, agents, settings.max_bytes))
    steps_from, ends = _steps_from(chain, contexts)
    left = np.array([chain.index(current, ANY_VISITS) for _, current, _ in contexts], np.intp)
    values = gaps.discount[left, None] * (steps_from @ arriving)
    first = np.vstack([gaps.discount[:, None] * (chain.step[:n] @ arriving), chain.start @ arriving])
    index = {slot: i for i, slot in enumerate(chain.slots)} | {model.start: n, None: n + 1}
    keys = [(index[previous], index[current], visits) for previous, current, visits in contexts]
    return ReachTables(
        workload=workload,
        agents=agents,
        first=first.astype(np.float32).clip(0.0, 1.0),
        contexts=np.array(keys, np.int16).reshape(-1, 3),
        context_values=values.astype(np.float32).clip(0.0, 1.0),
        context_ends=ends.astype(np.float32).clip(0.0, 1.0),
        arrivals_per_request=_arrivals_per_request(model),
        gamma=settings.gamma,
        gap_s=gaps.mean_s,
        end_probability=chain.end[:n].astype(np.float32).clip(0.0, 1.0),
        waits=gaps.waits(),
    )


def _steps_from(chain: Chain, contexts: list[ContextKey]) -> tuple[Array, Array]:
    """P(next stage) [m, s] and P(end) [m] of each context."""
    step = np.empty((len(contexts), len(chain.agent_of)))
    end = np.empty(len(contexts))
    for k, (previous, current, visits) in enumerate(contexts):
        if previous is None:
            at = chain.index(current, visits)
            step[k], end[k] = chain.step[at], chain.end[at]
        else:
            step[k], end[k] = chain.step_from(previous, current, visits)
    return step, end


def _room(workload: str, agents: tuple[str, ...], max_bytes: int) -> int:
    empty = wire_bytes(workload, agents, 0)
    return max(0, (max_bytes - empty) // (wire_bytes(workload, agents, 1) - empty))


def _contexts_by_evidence(chain: Chain, room: int) -> list[ContextKey]:
    """The contexts with most observations, as many as fit; none that says what a coarser one says."""
    counts = chain.counts
    told: list[tuple[int, tuple[int, int, int], ContextKey]] = []
    seen: dict[tuple[int, int], int] = {}
    pairs: dict[tuple[int, int], int] = {}
    places = set(chain.slots)
    for (previous, current, visits), row in counts.contexts.items():
        if current in places:
            total = sum(row.values())
            seen[current, visits] = seen.get((current, visits), 0) + total
            pairs[previous, current] = pairs.get((previous, current), 0) + total
    agent_total: dict[int, int] = {}
    for (current, _), total in seen.items():
        agent_total[current] = agent_total.get(current, 0) + total
    for (current, visits), total in seen.items():
        if visits != ANY_VISITS and total < agent_total[current]:
            told.append((-total, (-1, current, visits), (None, current, visits)))
    for (previous, current), total in pairs.items():
        if total < agent_total[current] and (previous in places or previous == counts.start):
            told.append((-total, (previous, current, ANY_VISITS), (previous, current, ANY_VISITS)))
    for context, row in counts.contexts.items():
        previous, current, visits = context
        if current not in places or previous not in places or visits == ANY_VISITS:
            continue
        total = sum(row.values())
        if total < seen[current, visits] and total < pairs[previous, current]:
            told.append((-total, context, context))
    return [key for _, _, key in sorted(told)[:room]]


def _arrivals_per_request(model: TransitionModel) -> float:
    first = model.steps.first
    requests = int(first[:, : model.max_agents].sum())
    return int(first[model.start, : model.max_agents].sum()) / max(requests, 1)


class _Gaps:
    """Silences of a workload: mean_s [n], discount [n] a step, and the tables of waiting."""

    def __init__(self, model: TransitionModel, chain: Chain, gamma: float) -> None:
        steps = model.steps
        slots = list(chain.slots)
        counts = steps.gap_count[slots].astype(np.float64)
        sums = steps.gap_s_sum[slots]
        self._pooled_s = float(sums.sum() / counts.sum()) if counts.sum() else math.inf
        means = np.where(counts > 0, sums / np.maximum(counts, 1.0), self._pooled_s)
        self.mean_s = means.astype(np.float32)
        self._known = 0.0 < self._pooled_s < math.inf
        self._gamma = gamma
        self._ends = steps.ends[slots].astype(np.float64)
        self._ends[:, :DECLARED_BINS] = 0.0
        gaps = steps.gaps[slots].astype(np.float64)
        self._gaps = gaps + GAP_PRIOR * gaps.sum(axis=0) / max(gaps.sum(), 1.0)
        self._decay = -math.log(gamma) / self._pooled_s if self._known else 0.0
        self.discount = self._discount(len(slots))

    def _discount(self, n: int) -> Array:
        if not self._known:
            return np.full(n, self._gamma)
        at_centres = np.exp(-self._decay * gap_bin_centres_s())
        return (self._gaps @ at_centres) / self._gaps.sum(axis=1)

    def waits(self) -> Waits | None:
        """What silence says, at WAIT_POINTS times from 1/32 of the mean gap up; None without gaps."""
        if not self._known:
            return None
        first_s = self._pooled_s / 32.0
        points_s = np.concatenate([[0.0], first_s * 2.0 ** (np.arange(WAIT_POINTS - 1) / 2.0)])
        centres_s = gap_bin_centres_s()
        longer = centres_s > self._pooled_s
        gaps = self._gaps + TAIL_GAPS * longer / max(int(longer.sum()), 1)
        later = (centres_s[None, :] >= 0.92 * points_s[:, None]).astype(np.float64)
        left_s = np.maximum(centres_s[None, :] - points_s[:, None], LEFT_OF_BIN * points_s[:, None])
        still = gaps @ later.T
        discounted = gaps @ (later * np.exp(-self._decay * left_s)).T
        going = still / gaps.sum(axis=1, keepdims=True)
        silent_ends = self._ends @ later.T / np.maximum(self._ends.sum(axis=1, keepdims=True), 1.0)
        discount = np.divide(discounted, still, out=np.zeros_like(still), where=still > 0.0)
        return Waits(
            first_s=first_s,
            going=going.astype(np.float32),
            silent_ends=silent_ends.astype(np.float32),
            discount=discount.astype(np.float32),
        )
