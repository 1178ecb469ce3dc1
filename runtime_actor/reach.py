"""Transition counts -> reach tables: how likely, and how soon, each agent's KV is needed again.

value(i -> j) = sum over k >= 1 of gamma^k * P(the session's first request of agent j, from i, is its
k-th). Exact linear algebra; a few hundred microseconds at 64 agents.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runtime_actor.chain import Array, Chain, first_passage, first_passage_from, first_passage_within
from runtime_actor.tables import MAX_WIRE_BYTES, ReachTables, wire_bytes
from runtime_actor.transitions import TransitionModel


@dataclass(frozen=True, slots=True)
class ReachSettings:
    """gamma: discount a step, in (0, 1). horizon_steps: cut after so many steps; None: no cut."""

    gamma: float = 0.9
    horizon_steps: int | None = None
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
    chain = model.chain()
    agents = tuple(model.name_of(slot) for slot in chain.slots)
    passage = _passage(chain.step, settings)
    pairs = _pairs_by_evidence(model, chain, _pair_room(workload, agents, settings.max_bytes))
    shorter = passage
    if settings.horizon_steps is not None:
        shorter = first_passage_within(chain.step, settings.horizon_steps - 1, settings.gamma)
    rows = [
        first_passage_from(chain.second_step(previous, current), shorter, settings.gamma)
        for previous, current in pairs
    ]
    n = len(agents)
    index = {**chain.position, model.start: n}
    return ReachTables(
        workload=workload,
        agents=agents,
        first=passage.astype(np.float32),
        second_pairs=np.array([(index[p], index[c]) for p, c in pairs], np.int16).reshape(-1, 2),
        second=np.array(rows, np.float32).reshape(-1, n).clip(0.0, 1.0),
        arrivals_per_request=_arrivals_per_request(model),
        gap_s=_gaps_s(model, chain),
        end_probability=chain.end.astype(np.float32).clip(0.0, 1.0),
    )


def _passage(step: Array, settings: ReachSettings) -> Array:
    if settings.horizon_steps is None:
        return first_passage(step, settings.gamma)
    return first_passage_within(step, settings.horizon_steps, settings.gamma)


def _pair_room(workload: str, agents: tuple[str, ...], max_bytes: int) -> int:
    empty = wire_bytes(workload, agents, 0)
    return max(0, (max_bytes - empty) // (wire_bytes(workload, agents, 1) - empty))


def _pairs_by_evidence(model: TransitionModel, chain: Chain, room: int) -> list[tuple[int, int]]:
    """Order-2 pairs, most observations first, as many as fit."""
    known = [
        (sum(counts.values()), pair)
        for pair, counts in model.second.items()
        if pair[1] in chain.position and (pair[0] in chain.position or pair[0] == model.start)
    ]
    known.sort(key=lambda item: (-item[0], item[1]))
    return [pair for _, pair in known[:room]]


def _arrivals_per_request(model: TransitionModel) -> float:
    requests = int(model.first[:, : model.max_agents].sum())
    return int(model.first[model.start, : model.max_agents].sum()) / max(requests, 1)


def _gaps_s(model: TransitionModel, chain: Chain) -> np.ndarray:
    """Mean gap of each agent [n]; the mean over all for an agent never followed; inf with no gap at all."""
    counts = model.gap_count[list(chain.slots)].astype(np.float64)
    sums = model.gap_ms_sum[list(chain.slots)] / 1000.0
    pooled = sums.sum() / counts.sum() if counts.sum() else np.inf
    return np.where(counts > 0, sums / np.maximum(counts, 1.0), pooled).astype(np.float32)
