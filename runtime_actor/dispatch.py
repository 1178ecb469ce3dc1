"""From a policy's suggestion to a prefetch in a replica's hands: limits, queue, account."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from runtime_actor.intake import ActionsIssued
from runtime_actor.ledger import IssuedAction
from runtime_actor.messages import PrefetchAction
from runtime_actor.policies.base import PrefetchSuggestion
from runtime_actor.settings import PrefetchSettings
from runtime_actor.shared import SharedState


class PrefetchDispatch:
    """Queues per known replica; `PrefetchSettings.max_outstanding` bounds each of them.

    A queued suggestion is not issued yet. It is when its replica fetches it; one that came too late or is
    void by then is dropped and counted as suppressed.
    """

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared
        self._queued: dict[str, deque[tuple[float, PrefetchSuggestion]]] = {}
        self._actions_made = 0

    def admit(self, suggestions: Iterable[PrefetchSuggestion], limits: PrefetchSettings) -> None:
        """Queue what the limits of its replica allow."""
        shared = self._shared
        for s in suggestions:
            if shared.replica_map.get(s.replica) is None:
                continue
            waiting = len(self._queued.get(s.replica, ()))
            if shared.learned.ledger.admit(s.replica, s.workload, s.agent, waiting, shared.now_s, limits):
                self._queued.setdefault(s.replica, deque()).append((shared.now_s, s))

    def collect(self, replica: str, epoch: int) -> list[PrefetchAction]:
        """Hand over what is queued for `replica`, and enter it in the account."""
        now_s = self._shared.now_s
        ready = []
        for queued_s, suggestion in self._queued.pop(replica, ()):
            left_s = suggestion.deadline_s - (now_s - queued_s)
            session = self._shared.session(suggestion.workload, suggestion.session)
            if left_s <= 0.0 or session is None or session.ended:
                self._shared.learned.ledger.suppressed["void"] += 1
                continue
            action = self._action(suggestion, left_s, epoch)
            if action is not None:
                ready.append(action)
        if ready:
            issued = (IssuedAction(a.action_id, replica, a.workload, a.agent, now_s, a.deadline_s) for a in ready)
            self._shared.learned.apply(ActionsIssued(now_s, tuple(issued)))
        return ready

    def _action(self, suggestion: PrefetchSuggestion, left_s: float, epoch: int) -> PrefetchAction | None:
        """The message: a digest that the replica knows, or else the recorded token ids."""
        own = self._shared.own_anchor(suggestion.workload, suggestion.agent, suggestion.replica)
        anchor = None if own else self._shared.anchors.get(suggestion.workload, suggestion.agent)
        if own is None and anchor is None:
            self._shared.learned.ledger.suppressed["no_anchor"] += 1
            return None
        self._actions_made += 1
        return PrefetchAction(
            action_id=f"{epoch:x}-{self._actions_made:x}",
            workload=suggestion.workload,
            agent=suggestion.agent,
            session=suggestion.session,
            digest=anchor.digest if anchor else own[0] if own else "",
            deadline_s=left_s,
            value=suggestion.value,
            token_ids=anchor.token_ids if anchor else b"",
            cache_salt=anchor.cache_salt if anchor else None,
            lora_name=anchor.lora_name if anchor else None,
        )

    def forget_replica(self, replica: str) -> None:
        self._queued.pop(replica, None)
