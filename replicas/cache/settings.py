"""What the operator sets of the cache's order."""

from __future__ import annotations

from dataclasses import dataclass

from replicas.cache.peers import PEERS

MAX_FLOOR = 0.8
"""Some blocks must be nobody's by right, for whoever has none yet."""

POLICIES = ("reach", "anchors", "lru", *PEERS)

MAX_PRIORITY_STEPS = 10
"""A client's lowest priority; what is lower was started before its client asked, and says nothing of it."""


@dataclass(frozen=True, slots=True)
class ValueSettings:
    """weight: 0 is stock LRU, 1 orders by value in full; between, values are told apart more coarsely.

    arrival_share: this replica's new sessions a request, relative to the workload's. tick_s: how often
    silence is looked at, of many sessions in turn. refresh_s: how late a value may be where a session that is known
    moved on.
    tenant_floor: the part of an equal share of the cache that each of several tenants keeps, whatever the
    others do; 0 for none.
    priority_share: what is left of the value of a session's KV for each step by which its last request was put back
    (a priority above 0); 1 pays no attention to priorities.
    """

    policy: str = "reach"
    weight: float = 1.0
    priority_share: float = 1.0
    arrival_share: float = 1.0
    learn_reuse: bool = True
    tick_s: float = 1.0
    refresh_s: float = 0.02
    tenant_floor: float = 0.0
    max_workloads: int = 64
    max_sessions: int = 4096
    max_agents_per_session: int = 64
    max_shared_owners: int = 1024

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {self.policy!r}")
        if not 0.0 <= self.weight <= 1.0:
            raise ValueError(f"weight must be within [0, 1], got {self.weight}")
        if not 0.0 <= self.tenant_floor <= MAX_FLOOR:
            raise ValueError(f"tenant_floor must be within [0, {MAX_FLOOR:g}], got {self.tenant_floor}")
        if not 0.0 < self.priority_share <= 1.0:
            raise ValueError(f"priority_share must be within (0, 1], got {self.priority_share}")
        if not 0.0 <= self.arrival_share <= 1000.0 or not (self.tick_s > 0.0 and self.refresh_s >= 0.0):
            raise ValueError("arrival_share must be within [0, 1000], tick_s positive and refresh_s not negative")
        for cap in ("max_workloads", "max_sessions", "max_agents_per_session", "max_shared_owners"):
            if getattr(self, cap) < 1:
                raise ValueError(f"{cap} must be at least 1, got {getattr(self, cap)}")
