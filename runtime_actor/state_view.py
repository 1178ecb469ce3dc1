"""The runtime's state as JSON, for GET /runtime/state. A tenant sees its own workloads only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from runtime_actor.policies import catalogue
from runtime_actor.policies.base import ENGINE
from runtime_actor.policies.host import PolicyHost
from runtime_actor.replica_map import ReplicaState
from runtime_actor.settings import PluggedSettings
from runtime_actor.shared import SharedState
from runtime_actor.workloads import Workload

REFUSED = ("events_invalid", "events_duplicate", "events_over_call_limit")
COUNTERS = ("events_foreign_tenant", "events_unknown_workload", "sessions_idle_closed", "workloads_dropped")


def shared_state_view(shared: SharedState, host: PolicyHost, tenant: str | None) -> dict[str, Any]:
    """Agents, transitions, replicas, policies, prefetches, forecasts; of `tenant` (None: of all)."""
    workloads = [w for w in shared.learned.workloads.values() if tenant in (None, w.tenant)]
    names = None if tenant is None else {w.name for w in workloads}
    forecasts = sum((w.forecasts for w in workloads), Counter())
    view: dict[str, Any] = {
        "agents": [record.as_state() for w in workloads for record in w.agents],
        "transitions": [row for w in workloads for row in _transitions(w)],
        "replicas": [_replica(state, workloads, tenant, shared.now_s) for state in shared.replica_map],
        "policies": host.as_state(names),
        "prefetch": shared.learned.ledger.totals(names),
        "forecasts": {name: forecasts[name] for name in ("right", "wrong", "none")},
        "workloads": [_workload(w) for w in workloads],
    }
    if tenant is None:
        view["caps"] = _caps(shared)
    return view


def engine_policy_rows(
    policies: Iterable[PluggedSettings], replicas: Iterable[ReplicaState], tenant: str | None
) -> list[dict[str, Any]]:
    """A row for each of these policies, which run in the engines: what is set here, and what the engines last said of
    it together. `engines` and `engines_on` (for the operator) tell how many have it and in how many it is on: fewer
    than all until they have heard of a change, and none where engines are simulated."""
    reported: dict[str, list[dict[str, Any]]] = {}
    for replica in replicas:
        for row in replica.report.policies:
            reported.setdefault(str(row.get("name")), []).append(row)
    return [
        _engine_policy(policy, reported.get(policy.name, []), tenant)
        for policy in policies
        if policy.name in reported or catalogue.seat_of(policy) == ENGINE
    ]


def _engine_policy(policy: PluggedSettings, rows: list[dict[str, Any]], tenant: str | None) -> dict[str, Any]:
    failed = [row for row in rows if row.get("switched_off")]
    view: dict[str, Any] = {"name": policy.name, "seat": ENGINE, "weight": policy.weight}
    view["enabled"] = policy.enabled and not (rows and len(failed) == len(rows))
    if tenant is None:
        counters: Counter[str] = Counter()
        for row in rows:
            counters.update(row.get("counters") or {})
        view |= {
            "counters": dict(counters),
            "engines": len(rows),
            "engines_on": sum(bool(row.get("enabled")) for row in rows),
        }
    totals = {name: sum(row.get(name) or 0 for row in rows) for name in ("decisions", "failures", "slow")}
    return view | totals | {"switched_off": bool(failed)}


def _transitions(workload: Workload) -> list[dict[str, Any]]:
    probabilities = workload.model.probabilities()
    return [
        {"from": source, "to": target, "count": count, "probability": probabilities[(source, target)]}
        for (source, target), count in sorted(workload.model.counts().items(), key=lambda item: -item[1])
    ]


def _workload(workload: Workload) -> dict[str, Any]:
    return {
        "workload": workload.name,
        "tenant": workload.tenant,
        "predictability": workload.model.predictability(),
        "observed": workload.model.observed,
        "repeats": workload.model.repeats(),
        "live_sessions": len(workload.model.sessions),
        "known_sessions": len(workload.sessions),
        "agents_dropped": workload.agents.dropped,
        "sessions_dropped": workload.sessions.dropped,
        "late_events": workload.late_events,
    }


def _replica(state: ReplicaState, workloads: list[Workload], tenant: str | None, now_s: float) -> dict[str, Any]:
    """A tenant's view has its own hits and blocks; loads and totals of all tenants are for the operator."""
    report = state.report
    resident: Counter[str] = Counter()
    prompt_tokens = cached_tokens = 0
    names = {w.name for w in workloads}
    for workload, by_agent in report.resident.items():
        if tenant is None or workload in names:
            resident.update(by_agent)
    for use in (w.replica_use.get(report.replica) for w in workloads):
        if use is not None:
            prompt_tokens += use.prompt_tokens
            cached_tokens += use.cached_tokens
    view = {
        "replica": report.replica,
        "resident": dict(resident),
        "hit_rate": cached_tokens / prompt_tokens if prompt_tokens else 0.0,
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached_tokens,
        "policy": report.policy,
        "age_s": max(0.0, now_s - state.seen_s),
    }
    if tenant is None:
        view |= {
            "node": report.node,
            "engine_hit_rate": state.hit_rate,
            "block_size": report.block_size,
            "total_blocks": report.total_blocks,
            "free_blocks": report.free_blocks,
            "running": report.running,
            "waiting": report.waiting,
            "silent_s": report.silent_s,
            "evicted_blocks": report.evicted_blocks,
            "dropped_events": report.dropped_events,
            "policies": report.policies,
        }
    return view


def _caps(shared: SharedState) -> dict[str, int]:
    """How often a bound was hit, by name."""
    learned = shared.learned
    return {
        **{name: learned.refused[name] for name in REFUSED},
        **{name: learned.counters[name] for name in COUNTERS},
        "replicas_dropped": shared.replica_map.dropped,
        "anchors_dropped": shared.anchors.dropped,
        "prefetch_unmatched": learned.ledger.unmatched,
        **{f"prefetch_suppressed_{reason}": n for reason, n in learned.ledger.suppressed.items()},
    }
