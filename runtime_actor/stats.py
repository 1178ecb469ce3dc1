"""The runtime's figures in one place; the Ray shell publishes them as metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RuntimeStats:
    """`*_total` only grow within an epoch and across a checkpoint; the others are levels."""

    events_total: int
    events_dropped_total: int
    exchanges_total: int
    forecasts_right_total: int
    forecasts_wrong_total: int
    prefetch_issued_total: int
    prefetch_useful_total: int
    prefetch_wasted_total: int
    prefetch_refused_total: int
    workloads: int
    agents: int
    sessions: int
    replicas: int
    callers: int
    predictability: float
