"""What the replicas hold and do, by their newest reports; soft state, rebuilt from reports at any time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runtime_actor.errors import MessageError
from runtime_actor.messages import MAX_NUMBER, MAX_REPORTED_AGENTS, ReplicaReport

MAX_SESSIONS_PER_REPORT = 65536
VIEW_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A replica's newest report and when it came, on this side's clock."""

    report: ReplicaReport
    seen_s: float

    @property
    def load(self) -> int:
        """Requests running or waiting."""
        return self.report.running + self.report.waiting

    @property
    def hit_rate(self) -> float:
        return self.report.cached_tokens / self.report.prompt_tokens if self.report.prompt_tokens else 0.0

    def resident_tokens(self, workload: str, agent: str) -> int:
        return self.report.resident.get(workload, {}).get(agent, 0) * self.report.block_size


class ReplicaMap:
    """Replicas by id, at most `cap`; the one silent for longest goes first, counted in `dropped`."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self._replicas: OrderedDict[str, ReplicaState] = OrderedDict()
        self.dropped = 0
        self._view: dict[str, Any] | None = None
        self._view_s = 0.0

    def __iter__(self) -> Iterator[ReplicaState]:
        return iter(self._replicas.values())

    def __len__(self) -> int:
        return len(self._replicas)

    def get(self, replica: str) -> ReplicaState | None:
        return self._replicas.get(replica)

    def update(self, report: ReplicaReport, now_s: float) -> list[str]:
        """Take a report unless a newer one is known; returns replicas dropped at the cap.

        Raises:
            MessageError: the report's content has the wrong shape.
        """
        check_report(report)
        known = self._replicas.get(report.replica)
        if known is not None and known.report.t_s > report.t_s:
            return []
        self._replicas[report.replica] = ReplicaState(report, now_s)
        self._replicas.move_to_end(report.replica)
        return self._trim()

    def resize(self, cap: int) -> list[str]:
        """Another cap; returns replicas dropped at it."""
        self.cap = cap
        return self._trim()

    def _trim(self) -> list[str]:
        gone = []
        while len(self._replicas) > self.cap:
            gone.append(self._replicas.popitem(last=False)[0])
        self.dropped += len(gone)
        return gone

    def drop_silent(self, now_s: float, timeout_s: float) -> list[str]:
        """Drop replicas that have not reported for longer than `timeout_s`, with what they held."""
        gone = [r for r, state in self._replicas.items() if now_s - state.seen_s > timeout_s]
        for replica in gone:
            del self._replicas[replica]
        return gone

    def routing_view(self, now_s: float) -> dict[str, Any]:
        """What a gateway's router ranks by: replicas and the anchors' sizes in tokens.

        Made anew at most every VIEW_INTERVAL_S: it is O(replicas x agents), and gateways are several.
        """
        if self._view is None or not 0.0 <= now_s - self._view_s < VIEW_INTERVAL_S:
            self._view, self._view_s = self._make_view(now_s), now_s
        return self._view

    def _make_view(self, now_s: float) -> dict[str, Any]:
        anchors: dict[str, dict[str, int]] = {}
        replicas = {}
        for state in self:
            report = state.report
            replicas[report.replica] = {
                "resident": report.resident,
                "running": report.running,
                "waiting": report.waiting,
                "block_size": report.block_size,
                "total_blocks": report.total_blocks,
                "age_s": max(0.0, now_s - state.seen_s),
                "silent_s": report.silent_s,
            }
            for workload, by_agent in report.anchors.items():
                sizes = anchors.setdefault(workload, {})
                for agent, (_, tokens) in by_agent.items():
                    sizes[agent] = max(tokens, sizes.get(agent, 0))
        return {"replicas": replicas, "anchors": anchors}

    def check_invariants(self) -> None:
        assert len(self._replicas) <= self.cap, "more replicas than the cap"
        assert all(key == state.report.replica for key, state in self._replicas.items())


def check_report(report: ReplicaReport) -> None:
    """Raises MessageError naming the field whose content has the wrong shape."""
    if not 0 <= report.t_s <= MAX_NUMBER or report.block_size < 1:
        raise MessageError("replica_report: t_s must be a time and block_size at least 1")
    for name in ("total_blocks", "free_blocks", "running", "waiting", "prompt_tokens", "cached_tokens", "silent_s"):
        if not 0 <= getattr(report, name) <= MAX_NUMBER:
            raise MessageError(f"replica_report: field {name!r} must be from 0 to {MAX_NUMBER:g}")
    _check_nested("resident", report.resident, _is_count)
    _check_nested("anchors", report.anchors, _is_anchor)
    if len(report.sessions) > MAX_SESSIONS_PER_REPORT or not all(map(_is_session, report.sessions)):
        raise MessageError("replica_report: 'sessions' must be rows [workload, session, previous, current, t_s]")
    if not all(map(_is_policy_row, report.policies)):
        raise MessageError("replica_report: 'policies' must be mappings with whole numbers as counts")


def _check_nested(name: str, values: Mapping[Any, Any], valid: Any) -> None:
    for workload, by_agent in values.items():
        if not isinstance(workload, str) or not isinstance(by_agent, dict):
            raise MessageError(f"replica_report: {name!r} must map workload -> agent -> value")
        if len(by_agent) > MAX_REPORTED_AGENTS:
            raise MessageError(f"replica_report: {name!r} names more than {MAX_REPORTED_AGENTS} agents")
        if not all(isinstance(agent, str) and valid(value) for agent, value in by_agent.items()):
            raise MessageError(f"replica_report: {name!r} has a value of the wrong type")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER


def _is_anchor(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and isinstance(value[0], str) and _is_count(value[1])


def _is_policy_row(row: Any) -> bool:
    if not isinstance(row, dict):
        return False
    counts = [row[name] for name in ("decisions", "failures", "slow") if row.get(name) is not None]
    counters = row.get("counters") or {}
    return isinstance(counters, dict) and all(isinstance(count, int) for count in [*counts, *counters.values()])


def _is_session(row: Any) -> bool:
    return (
        isinstance(row, (list, tuple))
        and len(row) == 5
        and all(isinstance(part, str) for part in row[:4])
        and isinstance(row[4], (int, float))
        and 0 <= row[4] <= MAX_NUMBER
    )
