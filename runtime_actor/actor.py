"""The Ray shell around AgentRuntime: a named, detached actor that answers replicas and gateways.

Every method is async and short; files are written in a thread. A restart (`max_restarts=-1`) comes back
from the checkpoint with a new epoch, and replicas that notice the epoch register their sessions again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable
from typing import Any

import ray
import ray.actor
from ray.util import metrics

from runtime_actor.checkpoint import CheckpointStore
from runtime_actor.messages import ExchangeRequest
from runtime_actor.runtime import AgentRuntime
from runtime_actor.settings import RuntimeSettings
from runtime_actor.stats import RuntimeStats

logger = logging.getLogger(__name__)

ACTOR_NAME = "agent_runtime"
NAMESPACE = "serve"
HEAD_RESOURCE = "node:__internal_head__"
HOUSEKEEPING_S = 0.25
METRICS_INTERVAL_S = 2.0
IDLE_CHECK_S = 5.0
MAX_DUMP_SHARE = 0.05
"""Share of the event loop's time that reading out checkpoints may take."""
EPOCH_RANDOM_BITS = 10


def new_epoch() -> int:
    """Milliseconds and some random bits: grows from one incarnation to the next, below 2^53."""
    return (int(time.time() * 1000) << EPOCH_RANDOM_BITS) | secrets.randbits(EPOCH_RANDOM_BITS)


class RuntimeMetrics:
    """Publishes RuntimeStats. Labels are outcomes only, so their number is fixed."""

    def __init__(self) -> None:
        self._last: RuntimeStats | None = None
        self._counters = {
            "forecasts": metrics.Counter("agent_runtime_forecasts", "Forecasts of the next agent.", ("outcome",)),
            "prefetches": metrics.Counter("agent_runtime_prefetches", "Prefetches, by outcome.", ("outcome",)),
            "events": metrics.Counter("agent_runtime_events", "Events, by outcome.", ("outcome",)),
            "exchanges": metrics.Counter("agent_runtime_exchanges", "Exchange calls answered."),
        }
        self._gauges = {
            name: metrics.Gauge(f"agent_runtime_{name}", f"{name.capitalize()} known to the runtime.")
            for name in ("workloads", "agents", "sessions", "replicas", "callers", "predictability")
        }

    def publish(self, stats: RuntimeStats) -> None:
        self._count("forecasts", "right", stats, "forecasts_right_total")
        self._count("forecasts", "wrong", stats, "forecasts_wrong_total")
        for outcome in ("issued", "useful", "wasted", "refused"):
            self._count("prefetches", outcome, stats, f"prefetch_{outcome}_total")
        self._count("events", "applied", stats, "events_total")
        self._count("events", "dropped", stats, "events_dropped_total")
        self._count("exchanges", None, stats, "exchanges_total")
        for name, gauge in self._gauges.items():
            gauge.set(getattr(stats, name))
        self._last = stats

    def _count(self, counter: str, outcome: str | None, stats: RuntimeStats, name: str) -> None:
        before = getattr(self._last, name) if self._last is not None else 0
        grown = getattr(stats, name) - before
        if grown > 0:
            self._counters[counter].inc(grown, {"outcome": outcome} if outcome else None)


class RuntimeActor:
    """A plain class, so that it can be tested without a cluster; `get_or_create` makes it a Ray actor."""

    def __init__(self, settings: dict[str, Any], config_version: int) -> None:
        parsed = RuntimeSettings.from_dict(settings)
        self._store: CheckpointStore | None = None
        self._runtime = self._restored(parsed, config_version)
        self._saved_version = 0
        self._saving = asyncio.Lock()
        self._dump_s = 0.0
        self._metrics = RuntimeMetrics()
        self._housekeeping: asyncio.Task[None] | None = None
        self._idle_version = 0
        self._idle_since_s = 0.0
        self._open_checks: list[Callable[[], None]] = []

    def _restored(self, settings: RuntimeSettings, config_version: int) -> AgentRuntime:
        epoch = new_epoch()
        restored = None
        if settings.checkpoint_dir is not None:
            self._store = CheckpointStore(settings.checkpoint_dir)
            self._store.open()
            restored = self._store.load(
                lambda values: AgentRuntime.restore(values, settings, config_version, time.time, epoch)
            )
        if restored is not None:
            return restored
        runtime = AgentRuntime(settings, time.time, epoch)
        runtime.config_version = config_version
        return runtime

    # --- calls --------------------------------------------------------------------------------------

    async def exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        """Raises MessageError for a request of the wrong shape."""
        self._keep_house()
        return self._runtime.exchange(ExchangeRequest.from_wire(request)).to_wire()

    async def state(self, tenant: str | None = None) -> dict[str, Any]:
        self._keep_house()
        view = self._runtime.state(tenant)
        if tenant is None and self._store is not None:
            view["checkpoint"] = self._store.view()
        return view

    async def predict(self, tenant: str, session: str, horizon: int) -> dict[str, Any] | None:
        """Raises ConfigurationError for an impossible horizon."""
        self._keep_house()
        return self._runtime.predict(tenant, session, horizon)

    async def configure(self, settings: dict[str, Any], version: int) -> bool:
        """False if `version` isn't newer than the one in force. Raises ConfigurationError."""
        self._keep_house()
        applied = self._runtime.configure(RuntimeSettings.from_dict(settings), version)
        if applied:
            await self._save()
        return applied

    async def set_policy(self, name: str, changes: dict[str, Any]) -> dict[str, Any]:
        """Raises ConfigurationError."""
        self._keep_house()
        settings = self._runtime.set_policy(name, changes)
        await self._save()
        return settings

    async def save(self) -> bool:
        """Write a checkpoint now if anything changed; False if there is nowhere to, or it failed."""
        self._keep_house()
        return await self._save()

    async def check_invariants(self) -> None:
        """Raises AssertionError or ValueError with what doesn't hold."""
        self._runtime.check_invariants()

    async def ping(self) -> dict[str, int]:
        """Proof that the actor answers, and which incarnation does: epoch and process id."""
        self._keep_house()
        return {"epoch": self._runtime.epoch, "pid": os.getpid()}

    # --- housekeeping -------------------------------------------------------------------------------

    def _keep_house(self) -> None:
        """Start the housekeeping task, or start it again should it have died."""
        if self._housekeeping is None or self._housekeeping.done():
            self._housekeeping = asyncio.get_running_loop().create_task(self._housekeep())

    async def _housekeep(self) -> None:
        saved_s = published_s = 0.0
        while True:
            now_s = time.monotonic()
            if now_s - saved_s >= self._save_interval_s:
                await self._save()
                saved_s = now_s
            if now_s - published_s >= METRICS_INTERVAL_S:
                self._metrics.publish(self._runtime.stats())
                published_s = now_s
            self._check_when_idle(now_s)
            await asyncio.sleep(min(HOUSEKEEPING_S, self._runtime.settings.checkpoint_interval_s))

    def _check_when_idle(self, now_s: float) -> None:
        """Once nothing has changed for a while, check the state piece by piece, once a version."""
        if self._runtime.version != self._idle_version:
            self._idle_version, self._idle_since_s = self._runtime.version, now_s
            self._open_checks = self._runtime.invariant_checks()
        elif self._open_checks and now_s - self._idle_since_s >= IDLE_CHECK_S:
            try:
                self._open_checks.pop()()
            except (AssertionError, ValueError):
                logger.exception("the runtime's state is inconsistent")

    async def _save(self) -> bool:
        """Write a checkpoint if something changed since the last one; False if it isn't on the disk."""
        async with self._saving:
            version = self._runtime.version
            if self._store is None or version == self._saved_version:
                return self._store is not None
            began_s = time.monotonic()
            state = self._runtime.dump()
            self._dump_s = time.monotonic() - began_s
            written = await asyncio.to_thread(self._store.save, state)
            if written:
                self._saved_version = version
            return written

    @property
    def _save_interval_s(self) -> float:
        """The configured one, or longer for a large state: reading it out blocks the calls."""
        return max(self._runtime.settings.checkpoint_interval_s, self._dump_s / MAX_DUMP_SHARE)


def get_or_create(settings: dict[str, Any], config_version: int) -> ray.actor.ActorHandle:
    """The cluster's runtime actor, created if it is missing. Blocking: call it from a thread.

    It is pinned to the head node where its checkpoint is. An existing actor keeps its settings: call
    `configure` on it.

    Raises:
        ConfigurationError: the settings are not allowed.
        ray.exceptions.RayError: Ray can't create it.
    """
    RuntimeSettings.from_dict(settings)
    resources = {HEAD_RESOURCE: 0.001} if HEAD_RESOURCE in ray.cluster_resources() else {}
    actor_class = ray.remote(RuntimeActor)
    return actor_class.options(
        name=ACTOR_NAME,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_task_retries=0,
        num_cpus=0,
        resources=resources,
        # A replica's placement group would else be asked for the head node's resource, which it hasn't.
        scheduling_strategy="DEFAULT",
        max_concurrency=1000,
    ).remote(settings, config_version)


def find() -> ray.actor.ActorHandle:
    """The cluster's runtime actor if there is one. Blocking: call it from a thread.

    Raises:
        ValueError: there is none.
    """
    return ray.get_actor(ACTOR_NAME, namespace=NAMESPACE)
