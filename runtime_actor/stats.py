"""The runtime's figures in one place; the Ray shell publishes them as metrics."""

from __future__ import annotations

from dataclasses import dataclass

from runtime_actor.shared import SharedState


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


def runtime_stats(shared: SharedState, *, exchanges: int, callers: int) -> RuntimeStats:
    learned = shared.learned
    workloads = learned.workloads.values()
    prefetch = learned.ledger.totals()
    return RuntimeStats(
        events_total=learned.counters["events"],
        events_dropped_total=learned.refused["events_invalid"] + learned.counters["events_foreign_tenant"],
        exchanges_total=exchanges,
        forecasts_right_total=sum(w.forecasts["right"] for w in workloads),
        forecasts_wrong_total=sum(w.forecasts["wrong"] for w in workloads),
        prefetch_issued_total=prefetch["issued"],
        prefetch_useful_total=prefetch["useful"],
        prefetch_wasted_total=prefetch["wasted"],
        prefetch_refused_total=prefetch["refused"],
        workloads=len(learned.workloads),
        agents=sum(len(w.agents) for w in workloads),
        sessions=sum(len(w.model.sessions) for w in workloads),
        replicas=len(shared.replica_map),
        callers=callers,
        predictability=max((w.model.predictability() for w in workloads), default=0.0),
    )
