"""The router's policies: one host a process, switched by the gateway and asked on the router's thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from runtime_actor.policies import catalogue
from runtime_actor.policies.base import ROUTER, Policy, ReplicaOffer
from runtime_actor.policies.host import PolicyHost
from runtime_actor.settings import AnyPolicySettings

CALL_LIMIT_S = 0.05
"""What a call into a policy may take here: while it lasts no request of this process is routed."""


class MonotonicClock:
    @property
    def now_s(self) -> float:
        return time.monotonic()


class RouterSeat:
    """Thread-safe: a policy is called by one thread at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._settings: tuple[AnyPolicySettings, ...] = ()
        self._host = PolicyHost((), 1, CALL_LIMIT_S)

    @property
    def is_active(self) -> bool:
        return any(hosted.enabled and type(hosted.policy).order is not Policy.order for hosted in self._host.policies)

    def configure(self, settings: Sequence[AnyPolicySettings], failure_limit: int) -> None:
        """Take what the operator changed; one with the same settings goes on with what it knows."""
        mine = tuple(entry for entry in settings if catalogue.seat_of(entry) == ROUTER)
        if mine == self._settings:
            return
        self._settings = mine
        made = catalogue.make_seated(mine, ROUTER, MonotonicClock())
        with self._lock:
            self._host = self._host.go_on_with(made, failure_limit, CALL_LIMIT_S)

    def ordered(self, offers: Sequence[ReplicaOffer]) -> list[str]:
        """Replicas, best first; where no policy has an opinion in the order of the offers."""
        with self._lock:
            keys = self._host.order(offers)
        return [offers[index].replica for index in sorted(range(len(offers)), key=keys.__getitem__)]

    def as_state(self, workloads: set[str] | None) -> list[dict[str, Any]]:
        with self._lock:
            return self._host.as_state(workloads)
