"""The Ray shell around MemoStore: a named, detached actor, apart from the runtime actor.

Results are bytes of any size and callers wait for each other: neither may slow the exchange with replicas. A
restart forgets everything, which costs runs and nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import ray
import ray.actor

from runtime_actor.ahead_account import AheadBounds
from runtime_actor.memo_store import Flight, Hit, Limits, MemoStore, Refused, Run
from runtime_actor.settings import from_dict

MEMO_ACTOR_NAME = "agent_runtime_memo"
NAMESPACE = "serve"
MAX_WAITING = 512
"""Callers that wait for another's run; beyond it, and of one tenant beyond half of it, they are told to ask again."""
MAX_WAIT_S = 30.0
CROWDED_RETRY_S = 0.25
"""When a caller who was not allowed to wait should ask again."""


@dataclass(slots=True)
class _Landing:
    """Where those who wait for one run are told its value (None: it brought none)."""

    value: asyncio.Future[bytes | None]
    waiters: int = 0


class MemoActor:
    """A plain class, so that it can be tested without a cluster."""

    def __init__(self, max_bytes: int, max_bytes_per_tenant: int) -> None:
        self._store = MemoStore(max_bytes, max_bytes_per_tenant)
        self._landings: dict[tuple[str, str], _Landing] = {}
        self._waiting: Counter[str] = Counter()

    async def configure(self, max_bytes: int, max_bytes_per_tenant: int) -> None:
        """Lower bounds take effect as results are stored."""
        self._store.max_bytes, self._store.max_bytes_per_tenant = max_bytes, max_bytes_per_tenant

    async def lookup(
        self, tenant: str, digest: str, tool: str, limits: dict[str, Any], wait_s: float
    ) -> dict[str, Any]:
        """{"outcome": hit | run | wait} and what belongs to it; waits at most `wait_s` for a run under way."""
        key, allowed = (tenant, digest), from_dict(Limits, limits, "limits")
        ends_s = time.monotonic() + min(max(wait_s, 0.0), MAX_WAIT_S)
        while True:
            found = self._store.look(key, tool, allowed, time.monotonic())
            if isinstance(found, Hit):
                return {"outcome": "hit", "value": found.value, "age_s": found.age_s}
            if isinstance(found, Run):
                return {"outcome": "run", "ticket": found.ticket, "lease_s": allowed.lease_s}
            left_s = min(ends_s - time.monotonic(), found.left_s)
            if self._waiting.total() >= MAX_WAITING or self._waiting[tenant] >= MAX_WAITING // 2:
                return {"outcome": "wait", "retry_after_s": CROWDED_RETRY_S}
            if left_s <= 0.0:
                return {"outcome": "wait", "retry_after_s": 0.0 if wait_s > 0.0 else CROWDED_RETRY_S}
            value = await self._landed(key, left_s)
            if value is not None:
                self._store.counts["joined"] += 1
                return {"outcome": "hit", "value": value, "age_s": 0.0}

    async def lookup_ahead(
        self, tenant: str, digest: str, tool: str, limits: dict[str, Any], bounds: dict[str, Any]
    ) -> dict[str, Any]:
        """{"outcome": "run", "ticket"}, or "refused" with a reason; never waits."""
        allowed, within = from_dict(Limits, limits, "limits"), from_dict(AheadBounds, bounds, "bounds")
        found = self._store.look_ahead((tenant, digest), tool, allowed, within, time.monotonic())
        if isinstance(found, Refused):
            return {"outcome": "refused", "reason": found.reason}
        return {"outcome": "run", "ticket": found.ticket, "lease_s": allowed.lease_s}

    async def wanted(self, tenant: str, digests: list[str], bounds: dict[str, Any]) -> list[str]:
        """Those of the calls that `lookup_ahead` would let run now."""
        return self._store.wanted(tenant, digests, from_dict(AheadBounds, bounds, "bounds"), time.monotonic())

    async def _landed(self, key: tuple[str, str], left_s: float) -> bytes | None:
        """The value that the run under way brings; None if it fails, or brings none in time."""
        landing = self._landings.get(key)
        if landing is None:
            landing = self._landings[key] = _Landing(asyncio.get_running_loop().create_future())
        landing.waiters += 1
        self._waiting[key[0]] += 1
        try:
            await asyncio.wait({landing.value}, timeout=left_s)
        finally:
            self._waiting[key[0]] -= 1
            if not self._waiting[key[0]]:
                del self._waiting[key[0]]
            landing.waiters -= 1
            if not landing.waiters and self._landings.get(key) is landing:
                del self._landings[key]
        return landing.value.result() if landing.value.done() else None

    async def store(self, tenant: str, ticket: str, value: bytes) -> str:
        flight = self._store.flight_of(ticket)
        outcome = self._store.store(tenant, ticket, value, time.monotonic())
        if outcome != "unknown_ticket":
            self._tell(flight, None if outcome == "void" else value)
        return outcome

    async def release(self, tenant: str, ticket: str) -> bool:
        flight = self._store.flight_of(ticket)
        released = self._store.release(tenant, ticket)
        if released:
            self._tell(flight, None)
        return released

    def _tell(self, flight: Flight | None, value: bytes | None) -> None:
        landing = self._landings.pop(flight.key, None) if flight is not None and not flight.is_refresh else None
        if landing is not None:
            landing.value.set_result(value)

    async def invalidate(self, tenant: str, tool: str) -> int:
        return self._store.invalidate(tenant, tool)

    async def clear(self) -> int:
        return self._store.clear()

    async def state(self) -> dict[str, int]:
        store = self._store
        return {
            **store.counts,
            **store.ahead_counts,
            "bytes": store.size,
            "entries": store.num_entries,
            "running": store.num_flights,
            "waiting": self._waiting.total(),
        }


def get_or_create(max_bytes: int, max_bytes_per_tenant: int) -> ray.actor.ActorHandle:
    """The cluster's memo actor, created if it is missing. Blocking: call it from a thread."""
    return (
        ray.remote(MemoActor)
        .options(
            name=MEMO_ACTOR_NAME,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=0,
            num_cpus=0,
            scheduling_strategy="DEFAULT",
            max_concurrency=1000,
        )
        .remote(max_bytes, max_bytes_per_tenant)
    )
