"""The engine's seat for policies: a waiting queue that they order, made only where one of them is on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.request import Request

from replicas.cache.cache_keeper import CacheKeeper
from replicas.engine.waiting_queue import QueueBounds, ShapedQueue
from runtime_actor.policies import catalogue
from runtime_actor.policies.base import ENGINE, Policy
from runtime_actor.policies.batch_shaping import BatchShapingPolicy
from runtime_actor.policies.host import PolicyHost
from runtime_actor.settings import AnyPolicySettings

FAILURE_LIMIT = 16
CALL_LIMIT_S = 0.05
"""What a call into a policy may take here: while it lasts no token is computed."""


class EngineClock:
    @property
    def now_s(self) -> float:
        return time.time()


def shaped_queue(
    settings: Sequence[AnyPolicySettings], policy: SchedulingPolicy, keeper: CacheKeeper, pool: Any
) -> ShapedQueue | None:
    """None without a policy that orders: the queue is then vLLM's own."""
    made = [p for p in catalogue.make_seated(settings, ENGINE, EngineClock()) if type(p).order is not Policy.order]
    if not any(one.settings.enabled for one in made):
        return None
    groups = list(range(len(keeper.block_tokens)))

    def group_of(request: Request) -> tuple[str, bytes | None]:
        claim = keeper.directory.claims.get(request.request_id)
        blocks = claim.anchor_tokens // keeper.hash_block_tokens if claim is not None else 0
        if not 0 < blocks <= len(request.block_hashes):
            return "", None
        anchor = request.block_hashes[blocks - 1]
        return anchor.hex(), anchor

    host = PolicyHost(made, FAILURE_LIMIT, CALL_LIMIT_S)
    return ShapedQueue(policy, host, _bounds(made), group_of, lambda h: pool.get_cached_block(h, groups) is not None)


def _bounds(policies: Sequence[Policy]) -> QueueBounds:
    for policy in policies:
        if isinstance(policy, BatchShapingPolicy):
            return QueueBounds(policy.options.window, policy.options.max_passed_over)
    return QueueBounds()
