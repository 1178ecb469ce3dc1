"""The engine's seat for policies: which waiting queue the scheduler has, changed between two of its steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vllm.v1.core.sched.request_queue import RequestQueue, SchedulingPolicy, create_request_queue
from vllm.v1.request import Request

from replicas.cache.cache_keeper import CacheKeeper
from replicas.engine.waiting_queue import QueueBounds, ShapedQueue
from runtime_actor.errors import ConfigurationError
from runtime_actor.policies import catalogue
from runtime_actor.policies.base import ENGINE, Policy
from runtime_actor.policies.batch_shaping import BatchShapingPolicy
from runtime_actor.policies.host import PolicyHost
from runtime_actor.settings import AnyPolicySettings

logger = logging.getLogger(__name__)

FAILURE_LIMIT = 16
CALL_LIMIT_S = 0.05
"""What a call into a policy may take here: while it lasts no token is computed."""


class EngineClock:
    @property
    def now_s(self) -> float:
        return time.time()


class QueueSeat:
    """`shaped` is the scheduler's waiting queue while a policy that orders is on; None while the queue is vLLM's own.

    `skipped_waiting`, vLLM's second queue, is always its own: what waits there was taken out of the first.
    Counters go on over every change. How often a waiting request was passed over is kept while the queue is vLLM's
    (of those that waited at the change), so that switching doesn't lift the bound on it.
    """

    def __init__(self, policy: SchedulingPolicy, keeper: CacheKeeper, pool: Any) -> None:
        self.shaped: ShapedQueue | None = None
        self._policy = policy
        self._keeper = keeper
        self._pool = pool
        self._groups = list(range(len(keeper.block_tokens)))
        self._host = PolicyHost((), FAILURE_LIMIT, CALL_LIMIT_S)
        self._counted: dict[str, Mapping[str, int]] = {}
        """Policy -> the counters of those that it replaced."""
        self._counting: dict[str, Mapping[str, int]] = {}
        """Policy -> its counters when it last told them: one that is off isn't asked."""
        self._passed: Mapping[str, int] = {}
        self._passed_over = 0

    @property
    def passed_over(self) -> int:
        """Since the engine's start."""
        return self._passed_over + (self.shaped.passed_over if self.shaped is not None else 0)

    def policy_rows(self) -> list[dict[str, Any]]:
        """As in GET /runtime/state, for the operator."""
        rows = self._host.as_state(None)
        for row in rows:
            name = row["name"]
            self._counting[name] = row["counters"] or self._counting.get(name, {})
            row["counters"] = _sum(self._counted.get(name, {}), self._counting[name])
        return rows

    def configure(self, settings: Iterable[AnyPolicySettings], waiting: RequestQueue) -> tuple[RequestQueue, list[str]]:
        """The queue to go on with in the place of `waiting`, and what was refused. To be called between two steps.

        Never raises. A policy that can't be made stays as it was, by name in what was refused; a fault in changing
        the queue leaves all as it was.
        """
        rejected: list[str] = []
        try:
            policies = self._made(settings, rejected)
            if policies != [hosted.policy for hosted in self._host.policies]:
                waiting = self._change(policies, waiting)
        except Exception as error:
            logger.exception("The waiting queue stays as it was")
            rejected.append(f"policies: the waiting queue stays as it was: {error!r}")
        return waiting, rejected

    def _made(self, settings: Iterable[AnyPolicySettings], rejected: list[str]) -> list[Policy]:
        """One whose settings are the same is the same object."""
        former = {hosted.name: hosted.policy for hosted in self._host.policies}
        policies = []
        for entry in settings:
            known = former.get(entry.name)
            try:
                made = known if known is not None and known.settings == entry else _policy_of(entry)
            except ConfigurationError as error:
                rejected.append(str(error))
                made = known
            if made is not None:
                policies.append(made)
        return policies

    def _change(self, policies: Sequence[Policy], waiting: RequestQueue) -> RequestQueue:
        """Everything that may fail comes before the first thing that is changed."""
        host = PolicyHost(policies, FAILURE_LIMIT, CALL_LIMIT_S)
        host.take_over(self._host)
        bounds = _bounds(policies)
        is_on = any(policy.settings.enabled for policy in policies)
        queue: RequestQueue
        if is_on:
            queue = self._shape(host, bounds, waiting) if self.shaped is None else self.shaped
        else:
            queue = waiting if self.shaped is None else _filled(create_request_queue(self._policy), waiting)
        if len(queue) != len(waiting):
            raise RuntimeError(f"{len(waiting)} requests waited, {len(queue)} would")
        self._keep_counters(policies)
        self._host.close_others(host)
        self._host = host
        if queue is self.shaped:
            self.shaped.change(host, bounds)
        elif queue is not waiting:
            self._note_passed()
            self.shaped = queue if isinstance(queue, ShapedQueue) else None
        return queue

    def _shape(self, host: PolicyHost, bounds: QueueBounds, waiting: RequestQueue) -> ShapedQueue:
        queue = ShapedQueue(self._policy, host, bounds, self._group_of, self._is_cached)
        queue.fill(waiting, self._passed)
        return queue

    def _note_passed(self) -> None:
        self._passed = {}
        if self.shaped is not None:
            self._passed_over += self.shaped.passed_over
            self._passed = self.shaped.passed

    def _keep_counters(self, policies: Sequence[Policy]) -> None:
        """Of those that are replaced by one of their name; of those that are gone nothing is kept."""
        totals = {row["name"]: row["counters"] for row in self.policy_rows()}
        kept = {id(policy) for policy in policies}
        names = {policy.settings.name for policy in policies}
        for hosted in self._host.policies:
            if id(hosted.policy) not in kept:
                self._counted[hosted.name] = totals[hosted.name]
                del self._counting[hosted.name]
        self._counted = {name: counts for name, counts in self._counted.items() if name in names}

    def _group_of(self, request: Request) -> tuple[str, bytes | None]:
        claim = self._keeper.directory.claims.get(request.request_id)
        blocks = claim.anchor_tokens // self._keeper.hash_block_tokens if claim is not None else 0
        if not 0 < blocks <= len(request.block_hashes):
            return "", None
        anchor = request.block_hashes[blocks - 1]
        return anchor.hex(), anchor

    def _is_cached(self, anchor: bytes) -> bool:
        return self._pool.get_cached_block(anchor, self._groups) is not None


def _policy_of(entry: AnyPolicySettings) -> Policy | None:
    """None for one of another seat, and for one that doesn't order."""
    kind = catalogue.class_of(entry)
    orders = kind.seat == ENGINE and kind.order is not Policy.order
    return catalogue.make(entry, EngineClock()) if orders else None


def _filled(queue: RequestQueue, requests: Iterable[Request]) -> RequestQueue:
    """`requests` come in vLLM's own order, in which adding them one by one makes vLLM's own queue."""
    for request in requests:
        queue.add_request(request)
    return queue


def _bounds(policies: Iterable[Policy]) -> QueueBounds:
    """Batch shaping's while it is on, else the usual ones."""
    for policy in policies:
        if isinstance(policy, BatchShapingPolicy) and policy.settings.enabled:
            return QueueBounds(policy.options.window, policy.options.max_passed_over)
    return QueueBounds()


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
