"""Warm-ups as a pure state machine: each action ends exactly once, as useful, wasted or refused.

    offered -> pending -> running -> warmed -> useful | wasted
                  |  ^_______|  (demand came: paused)
                  +-> refused          +-> refused (nothing was computed) | warmed (partly)

No clock, no engine: times are arguments, and `drain` hands out what ended since the last call.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from dataclasses import dataclass

from replicas.settings import PrefetchSettings
from runtime_actor.messages import REFUSED, USEFUL, WASTED, PrefetchAction

_MAX_REMEMBERED_IDS = 4096
"""Ids of ended actions, so that an action sent twice isn't run twice; oldest forgotten first."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """An action's end. `reason` is one word; `tokens` is what the warm-up computed."""

    action: PrefetchAction
    outcome: str
    reason: str
    tokens: int


class Phase(enum.Enum):
    PENDING = "pending"
    RUNNING = "running"
    WARMED = "warmed"


@dataclass(slots=True)
class Job:
    """A live action. `resident_tokens` is what the cache held before the first slice, None before that."""

    action: PrefetchAction
    deadline_s: float
    phase: Phase = Phase.PENDING
    resident_tokens: int | None = None
    computed_tokens: int = 0
    use_until_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """Demand on the replica: its own requests in flight, and what the engine says of itself."""

    in_flight: int
    waiting: int


@dataclass(frozen=True, slots=True)
class CacheProbe:
    """What the engine says of an anchor.

    resident_tokens: leading tokens of it in the cache. missing_fits: whether the free blocks are enough
    for the rest. victim_value: highest value among owners that would lose blocks, None if nobody values
    them. anchor_value: the anchor's own value to the sessions of this replica.
    """

    resident_tokens: int
    missing_fits: bool = True
    victim_value: float | None = None
    anchor_value: float = 0.0


def is_idle(load: Load, settings: PrefetchSettings) -> bool:
    return load.in_flight <= settings.idle_requests and load.waiting == 0


def refusal(action: PrefetchAction, tokens: int, probe: CacheProbe, block_size: int) -> str | None:
    """Why an anchor of `tokens` tokens is not warmed, in one word; None if it is worth it.

    The engine always computes a prompt's last block anew, so a missing last block is no miss. The actor
    values the anchor for the session it expects here, the engine for the sessions it has: the larger
    counts.
    """
    if tokens - probe.resident_tokens <= block_size:
        return "resident"
    if not probe.missing_fits:
        return "crowded"
    value = max(action.value, probe.anchor_value)
    if probe.victim_value is not None and probe.victim_value >= value:
        return "outbid"
    return None


def slice_ends(start_tokens: int, total_tokens: int, slice_tokens: int) -> list[int]:
    """Prompt lengths of the slices: each at most `slice_tokens` longer than what is cached by then."""
    ends = list(range(start_tokens + slice_tokens, total_tokens, slice_tokens))
    return [*ends, total_tokens] if total_tokens > start_tokens else []


class PrefetchBook:
    """All live actions; at most `max_pending` pending or running, `max_awaiting_use` warmed."""

    def __init__(self, settings: PrefetchSettings) -> None:
        self._settings = settings
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._ended_ids: OrderedDict[str, None] = OrderedDict()
        self._outcomes: list[Outcome] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def drain(self) -> list[Outcome]:
        """What ended since the last call, in order."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def num_in(self, phase: Phase) -> int:
        return sum(job.phase is phase for job in self._jobs.values())

    def is_live(self, action_id: str) -> bool:
        return action_id in self._jobs

    def offer(self, action: PrefetchAction, now_s: float, *, wanted: bool = True) -> None:
        """Take an action on. At the cap the least valuable of the pending ones and this one is refused."""
        if action.action_id in self._jobs or action.action_id in self._ended_ids:
            return
        job = Job(action=action, deadline_s=now_s + action.deadline_s)
        self._jobs[action.action_id] = job
        if not (self._settings.enabled and wanted):
            self._end(job, REFUSED, "disabled")
        elif action.deadline_s <= 0:
            self._end(job, REFUSED, "late")
        elif self._same_anchor(job):
            self._end(job, REFUSED, "duplicate")
        elif self.num_in(Phase.PENDING) + self.num_in(Phase.RUNNING) > self._settings.max_pending:
            pending = [j for j in self._jobs.values() if j.phase is Phase.PENDING]
            self._give_up(min(pending, key=lambda j: j.action.value), "full", now_s)

    def expire(self, now_s: float) -> None:
        """Pending past their deadline, warmed past their time to be used."""
        for job in list(self._jobs.values()):
            if job.phase is Phase.PENDING and now_s >= job.deadline_s:
                self._give_up(job, "late", now_s)
            elif job.phase is Phase.WARMED and now_s >= job.use_until_s:
                self._end(job, WASTED, "unused")

    def next_change_s(self) -> float | None:
        """The earliest time at which `expire` has something to do."""
        times = [
            job.use_until_s if job.phase is Phase.WARMED else job.deadline_s
            for job in self._jobs.values()
            if job.phase is not Phase.RUNNING
        ]
        return min(times, default=None)

    def take(self, now_s: float) -> Job | None:
        """The most valuable pending action, now running; one at a time."""
        self.expire(now_s)
        if self.num_in(Phase.RUNNING):
            return None
        pending = [job for job in self._jobs.values() if job.phase is Phase.PENDING]
        if not pending:
            return None
        job = max(pending, key=lambda j: j.action.value)
        job.phase = Phase.RUNNING
        return job

    def probed(self, job: Job, resident_tokens: int) -> None:
        """What the cache holds before the first slice.

        A later probe sees the job's own slices too, with what one computed before demand ended it.
        """
        if job.resident_tokens is None:
            job.resident_tokens = resident_tokens
        job.computed_tokens = max(job.computed_tokens, resident_tokens - job.resident_tokens)

    def advance(self, job: Job, computed_tokens: int) -> None:
        job.computed_tokens += computed_tokens

    def pause(self, job: Job) -> None:
        """Demand came: back to pending, to go on from the cached prefix."""
        if self.is_live(job.action.action_id):
            job.phase = Phase.PENDING

    def refuse(self, job: Job, reason: str, now_s: float) -> None:
        """It won't go on; what was computed before may still be used."""
        if self.is_live(job.action.action_id):
            self._give_up(job, reason, now_s)

    def warmed(self, job: Job, now_s: float) -> None:
        if not self.is_live(job.action.action_id):
            return
        job.phase = Phase.WARMED
        job.use_until_s = now_s + self._settings.use_window_s
        warmed = [j for j in self._jobs.values() if j.phase is Phase.WARMED]
        if len(warmed) > self._settings.max_awaiting_use:
            self._end(min(warmed, key=lambda j: j.use_until_s), WASTED, "overflow")

    def demand(self, workload: str, agent: str, cached_tokens: int) -> None:
        """A client's request of the agent was accepted, with this many tokens from the cache.

        It decides every live action for that agent: useful if it got more than was there before the
        warm-up. Nothing computed by then: the request itself warms the anchor.
        """
        for job in list(self._jobs.values()):
            if (job.action.workload, job.action.agent) != (workload, agent):
                continue
            if not job.computed_tokens:
                self._end(job, REFUSED, "overtaken")
            elif cached_tokens > (job.resident_tokens or 0):
                self._end(job, USEFUL, "hit")
            else:
                self._end(job, WASTED, "missed")

    def settle(self, action_id: str, outcome: str, reason: str) -> None:
        """The engine saw what became of the warmed blocks: a hit, or all of them evicted."""
        job = self._jobs.get(action_id)
        if job is not None and job.phase is Phase.WARMED:
            self._end(job, outcome, reason)

    def close(self) -> None:
        """The replica ends: so does every action."""
        for job in list(self._jobs.values()):
            self._end(job, WASTED if job.computed_tokens else REFUSED, "shutdown")

    def check_invariants(self) -> None:
        """Raises AssertionError if a bound or a phase is broken."""
        open_jobs = self.num_in(Phase.PENDING) + self.num_in(Phase.RUNNING)
        assert open_jobs <= self._settings.max_pending, open_jobs
        assert self.num_in(Phase.WARMED) <= self._settings.max_awaiting_use
        assert self.num_in(Phase.RUNNING) <= 1
        assert len(self._ended_ids) <= _MAX_REMEMBERED_IDS
        assert not self._jobs.keys() & self._ended_ids.keys()

    def _same_anchor(self, new: Job) -> bool:
        return any(
            job is not new and job.action.digest == new.action.digest and job.action.workload == new.action.workload
            for job in self._jobs.values()
        )

    def _give_up(self, job: Job, reason: str, now_s: float) -> None:
        if job.computed_tokens:
            self.warmed(job, now_s)
        else:
            self._end(job, REFUSED, reason)

    def _end(self, job: Job, outcome: str, reason: str) -> None:
        action_id = job.action.action_id
        del self._jobs[action_id]
        self._ended_ids[action_id] = None
        if len(self._ended_ids) > _MAX_REMEMBERED_IDS:
            self._ended_ids.popitem(last=False)
        self._outcomes.append(Outcome(job.action, outcome, reason, job.computed_tokens))
