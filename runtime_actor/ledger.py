"""The account of prefetches: who may be asked for one, what was asked, how each ended.

issued = useful + wasted + refused + pending, at every moment. An action that nobody answers ends as
refused when its replica is there, and as wasted when its replica is gone.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import asdict, dataclass
from typing import Any

from runtime_actor.messages import REFUSED, USEFUL, WASTED
from runtime_actor.settings import PrefetchSettings

OUTCOMES = (USEFUL, WASTED, REFUSED)
UNANSWERED_S = 120.0
MAX_PENDING = 4096
MAX_COOLDOWNS = 4096


@dataclass(frozen=True, slots=True)
class IssuedAction:
    """A prefetch that was handed to its replica."""

    action_id: str
    replica: str
    workload: str
    agent: str
    t_s: float
    deadline_s: float


class PrefetchLedger:
    """Counts per workload; rate limits per replica. Single-threaded."""

    def __init__(self) -> None:
        self._pending: OrderedDict[str, IssuedAction] = OrderedDict()
        self._counts: dict[str, Counter[str]] = {}
        self._recent: OrderedDict[tuple[str, str, str], float] = OrderedDict()
        self._tokens: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self.unmatched = 0
        self.suppressed: Counter[str] = Counter()

    def admit(
        self, replica: str, workload: str, agent: str, queued: int, now_s: float, settings: PrefetchSettings
    ) -> bool:
        """Whether one more prefetch may go to `replica` now; counts the reason if not.

        `queued` is the number of actions admitted for the replica and not yet fetched by it.
        """
        reason = self._obstacle(replica, workload, agent, queued, now_s, settings)
        if reason:
            self.suppressed[reason] += 1
            return False
        tokens, _ = self._tokens[replica]
        self._tokens[replica] = (tokens - 1.0, now_s)
        self._recent[(replica, workload, agent)] = now_s
        self._recent.move_to_end((replica, workload, agent))
        if len(self._recent) > MAX_COOLDOWNS:
            self._recent.popitem(last=False)
        return True

    def _obstacle(
        self, replica: str, workload: str, agent: str, queued: int, now_s: float, settings: PrefetchSettings
    ) -> str:
        last = self._recent.get((replica, workload, agent))
        if last is not None and 0.0 <= now_s - last < settings.cooldown_s:
            return "cooldown"
        outstanding = [a for a in self._pending.values() if a.replica == replica]
        if queued + len(outstanding) >= settings.max_outstanding:
            return "outstanding"
        if any(a.workload == workload and a.agent == agent for a in outstanding):
            return "outstanding"
        burst = max(1.0, settings.max_per_s)
        tokens, then = self._tokens.get(replica, (burst, now_s))
        tokens = min(burst, tokens + max(0.0, now_s - then) * settings.max_per_s)
        self._tokens[replica] = (tokens, now_s)
        self._tokens.move_to_end(replica)
        if len(self._tokens) > MAX_COOLDOWNS:
            self._tokens.popitem(last=False)
        return "rate" if settings.max_per_s == 0.0 or tokens < 1.0 else ""

    # --- the account --------------------------------------------------------------------------------

    def issue(self, action: IssuedAction) -> None:
        """An action was handed over. At the cap the oldest pending one ends as refused."""
        self._pending[action.action_id] = action
        self._count(action.workload, "issued")
        if len(self._pending) > MAX_PENDING:
            self._end(next(iter(self._pending)), REFUSED)

    def finish(self, action_id: str, outcome: str) -> bool:
        """The replica's answer; False (and counted) for an action that isn't pending."""
        if action_id not in self._pending or outcome not in OUTCOMES:
            self.unmatched += 1
            return False
        self._end(action_id, outcome)
        return True

    def due(self, now_s: float) -> bool:
        """Whether `expire` has something to do."""
        first = next(iter(self._pending.values()), None)
        return first is not None and now_s > first.t_s + UNANSWERED_S

    def expire(self, now_s: float) -> None:
        while self.due(now_s):
            self._end(next(iter(self._pending)), REFUSED)

    def replica_lost(self, replica: str) -> None:
        for action_id in [a.action_id for a in self._pending.values() if a.replica == replica]:
            self._end(action_id, WASTED)

    def _end(self, action_id: str, outcome: str) -> None:
        self._count(self._pending.pop(action_id).workload, outcome)

    def _count(self, workload: str, name: str) -> None:
        self._counts.setdefault(workload, Counter())[name] += 1

    def forget_workload(self, workload: str) -> None:
        """Drop the counts of a workload that fell out of the registry, and its pending actions."""
        for action_id in [a.action_id for a in self._pending.values() if a.workload == workload]:
            del self._pending[action_id]
        self._counts.pop(workload, None)

    def totals(self, workloads: set[str] | None = None) -> dict[str, int]:
        """issued, useful, wasted, refused and pending of `workloads` (None: of all)."""
        total: Counter[str] = Counter()
        for workload, counts in self._counts.items():
            if workloads is None or workload in workloads:
                total.update(counts)
        pending = sum(workloads is None or a.workload in workloads for a in self._pending.values())
        return {**{name: total[name] for name in ("issued", *OUTCOMES)}, "pending": pending}

    # --- checkpoints --------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        return {
            "pending": [asdict(action) for action in self._pending.values()],
            "counts": {workload: dict(counts) for workload, counts in self._counts.items()},
            "unmatched": self.unmatched,
        }

    def restore(self, values: dict[str, Any]) -> None:
        self._pending = OrderedDict((a["action_id"], IssuedAction(**a)) for a in values["pending"])
        self._counts = {str(w): Counter(counts) for w, counts in values["counts"].items()}
        self.unmatched = int(values["unmatched"])

    def check_invariants(self) -> None:
        for workload in self._counts:
            t = self.totals({workload})
            ended = t["useful"] + t["wasted"] + t["refused"]
            assert t["issued"] == ended + t["pending"], f"{workload}: prefetches don't add up: {t}"
        assert len(self._pending) <= MAX_PENDING
