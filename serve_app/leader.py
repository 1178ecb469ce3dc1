"""Which of several gateways serves: the one that began first. The others wait, warm, for its end.

Conversations are recognised, requests counted and tenants' quotas kept in one process's memory, so that two gateways
at once would each know half. Every proxy finds the same one without asking anybody: a gateway says at its start when
that was, and one that comes later is not the oldest, as long as the clocks of their nodes differ by less than the time
between their starts. One that leads for its clock's sake begins with nothing learnt; no request is lost by it.
"""

import math
import time
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

STARTED = "started_s"
"""In the metadata of a gateway's Serve replica: wall clock, seconds."""

PATIENCE_S = 5.0
"""How long a request waits for a leader that is there and doesn't say whether it can take it, before the next one gets
it. Ray gives a busy process a tenth of a second; going elsewhere for that would split what is known."""


class OldestFirst(RequestRouter):
    """Runs in Ray's proxies. Ray pickles this module by value; its loop wants no exception and a back-off."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        order = sorted(candidate_replicas, key=_age)
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
            if time.time() - pending_request.created_at < PATIENCE_S:
                order = order[:1]
        return [[replica] for replica in order]


def _age(replica: RunningReplica) -> tuple[float, str]:
    metadata: Any = replica.replica_metadata
    started_s = metadata.get(STARTED) if isinstance(metadata, dict) else None
    return started_s if isinstance(started_s, float) else math.inf, replica.replica_id.unique_id
