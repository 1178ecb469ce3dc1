"""The request router: the only file that touches Ray's router internals.

Ray pickles this module by value and runs the router on its own thread and loop, so what it shares
with the gateway is in `routing_state`. Rules that Ray's loop imposes: `choose_replicas` never raises
(the request would hang), awaits nothing, returns every candidate as a rank of its own, and asks for
backoff (an empty or full ranking would otherwise spin the loop for ever).
"""

import logging
import random
import time
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from runtime_actor.messages import AVOID_XARG, OWNER_XARG, OwnerTag
from serve_app import ranking, routing_state
from serve_app.identity import PREAMBLE_TOKENS, preamble_of
from serve_app.recognition.canonical import LEADING_ROLES

logger = logging.getLogger("ray.serve")

CHARACTERS_A_TOKEN = 4

MAX_IN_FLIGHT_S = 7200.0
"""An entry older than this was lost on its way back and no longer counts as in flight."""

OTHERS_COUNT_S = 2.0
"""How long a replica's word of other processes' requests counts: each request sent there renews it."""


class AgentRequestRouter(RequestRouter):
    """Power of two choices, unless a policy of the router's seat orders the replicas."""

    def initialize_state(self, max_snapshot_age_s: float = 5.0) -> None:
        self._max_snapshot_age_s = max_snapshot_age_s
        self._random = random.Random()
        self._in_flight: dict[str, dict[str, float]] = {}
        self._chosen_s: dict[str, float] = {}
        self._others: dict[str, tuple[int, float]] = {}
        self._failures = 0

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        try:
            order = self._without_stuck(_avoiding(self._order(by_name, pending_request), pending_request))
        except Exception:
            self._failures += 1
            if self._failures in (1, 10, 100) or self._failures % 1000 == 0:
                logger.exception("Ranking failed (%d times); replicas are taken in random order", self._failures)
            order = list(by_name)
            random.shuffle(order)
        if pending_request is not None and order:
            # Ray tells where a request went once the replica has taken it, which one whose process hangs never does.
            routing_state.STATE.note_sent(_request_id(pending_request), order[0])
        return [[by_name[name]] for name in order if name in by_name]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        name = replica_id.unique_id
        now_s = time.monotonic()
        self._in_flight.setdefault(name, {})[pending_request.metadata.internal_request_id] = now_s
        self._chosen_s[name] = now_s
        routing_state.STATE.note_sent(_request_id(pending_request), name)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Fires for rejected requests too: a set of ids can't go below what was routed."""
        self._in_flight.get(replica_id.unique_id, {}).pop(internal_request_id, None)

    def on_new_queue_len_info(self, replica_id: ReplicaID, num_ongoing_requests: int) -> None:
        """What a replica counts when it takes a request: that one, this process's others, and everybody else's."""
        super().on_new_queue_len_info(replica_id, num_ongoing_requests)
        name = replica_id.unique_id
        routing_state.STATE.note_heard(name)
        others = num_ongoing_requests - 1 - len(self._in_flight.get(name, {}))
        self._others[name] = (max(0, others), time.monotonic())

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        names = {replica.replica_id.unique_id for replica in replicas}
        for state in (self._in_flight, self._chosen_s, self._others):
            for name in [name for name in state if name not in names]:
                del state[name]

    def _order(self, by_name: dict[str, RunningReplica], pending_request: PendingRequest | None) -> list[str]:
        loads = {name: self._load(name) for name in by_name}
        state = routing_state.STATE
        tag = _owner(pending_request)
        order = ranking.by_load(loads, self._random)
        if tag is None or not state.policies.is_active:
            return order
        request = ranking.RankingInput(
            workload=tag.workload,
            agent=tag.agent,
            loads=loads,
            chosen_s=self._chosen_s,
            session=state.session(tag.workload, tag.session),
            tables=state.tables(tag.workload),
            preamble_tokens=_preamble_tokens(pending_request),
            agent_places=state.agent_places(tag.workload, tag.agent),
        )
        is_fresh = state.view_age_s <= self._max_snapshot_age_s
        state.count_routing(fallback=not is_fresh)
        return state.policies.ordered(ranking.offers(request, state.view if is_fresh else None, order))

    def _without_stuck(self, order: list[str]) -> list[str]:
        """The same with those last whose engine or process says nothing; requests would wait there until it ends."""
        return sorted(order, key=lambda name: routing_state.STATE.is_stuck(name))

    def _load(self, name: str) -> int:
        """Requests in flight there: what this process sent, and for a moment what the replica had from others.

        Ray's own cache of queue lengths keeps an old count for ten seconds where nothing new is sent.
        """
        mine = self._in_flight.get(name, {})
        now_s = time.monotonic()
        oldest_s = next(iter(mine.values()), None)
        if oldest_s is not None and now_s - oldest_s > MAX_IN_FLIGHT_S:
            del mine[next(iter(mine))]
        others, seen_s = self._others.get(name, (0, 0.0))
        return len(mine) + (others if now_s - seen_s <= OTHERS_COUNT_S else 0)


def _owner(pending_request: PendingRequest | None) -> OwnerTag | None:
    """The tag that the gateway put into the request; None for other calls."""
    arguments = pending_request.args if pending_request is not None else ()
    xargs = getattr(arguments[0], "vllm_xargs", None) if arguments else None
    return OwnerTag.decode(xargs[OWNER_XARG]) if isinstance(xargs, dict) and OWNER_XARG in xargs else None


def _avoiding(order: list[str], pending_request: PendingRequest | None) -> list[str]:
    """The same with the replica last that already has this request and doesn't answer."""
    arguments = pending_request.args if pending_request is not None else ()
    xargs = getattr(arguments[0], "vllm_xargs", None) if arguments else None
    first = xargs.get(AVOID_XARG) if isinstance(xargs, dict) else None
    slow = routing_state.STATE.sent_to(first) if isinstance(first, str) else None
    return sorted(order, key=lambda name: name == slow) if slow is not None else order


def _request_id(pending_request: PendingRequest) -> str:
    """The engine's, as the gateway made it; "" for other calls."""
    found = getattr(pending_request.args[0], "request_id", "") if pending_request.args else ""
    return found if isinstance(found, str) else ""


def _preamble_tokens(pending_request: PendingRequest | None) -> int:
    """What an agent's requests begin with alike: a chat's leading system messages, by length, since no tokenizer is
    here; of a completion the part that stands for its agent."""
    arguments = pending_request.args if pending_request is not None else ()
    if not arguments:
        return 0
    prompt = getattr(arguments[0], "prompt", None)
    if prompt is not None:
        preamble, _ = preamble_of(prompt)
        return PREAMBLE_TOKENS if preamble else 0
    characters = 0
    for message in getattr(arguments[0], "messages", None) or ():
        if message.get("role") not in LEADING_ROLES:
            break
        content = message.get("content")
        characters += len(content) if isinstance(content, str) else 0
    return characters // CHARACTERS_A_TOKEN
