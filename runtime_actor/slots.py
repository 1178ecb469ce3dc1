"""Which agents have a row of their own in a workload's matrix, and which share OTHER's.

A slot that the window names no more goes to the next new agent. While all are in use, a new agent is a
contender: it takes the slot of the agent that was least active of late once it was clearly more active
than that. Activity is a count that halves every HALF_LIFE requests of the workload.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Iterable
from typing import Any

from runtime_actor.tables import OTHER

HALF_LIFE = 256.0
"""Requests of the workload after which a past one counts half."""

LEAD = 2.0
LEAST = 2.0
"""A contender needs `LEAD` times the activity of the least active agent, and `LEAST` more: a takeover forgets
what was learnt of the loser."""

PAUSE = 16
"""Least number of requests between two takeovers: each one walks over the window."""

MAX_CONTENDERS = 128
"""The least active one makes room for a new one."""


class Slots:
    """Slots 0..max_agents-1 of one workload, the last of them OTHER's; START and END come after them."""

    def __init__(self, max_agents: int) -> None:
        self.other = max_agents - 1
        self.names: list[str | None] = [None] * self.other + [OTHER]
        self.free: list[int] = list(range(max_agents - 2, -1, -1))
        self.uses = array("i", [0]) * (max_agents + 2)
        """How often window entries name each slot."""
        self._of: dict[str, int] = {}
        self._requests = 0
        self._activity = array("d", [0.0]) * self.other
        self._active_at = array("q", [0]) * self.other
        self._contenders: dict[str, tuple[float, int]] = {}
        self._next_takeover = 0

    def __len__(self) -> int:
        return len(self._of)

    def find(self, agent: str) -> int:
        """Slot that `agent` is counted under; OTHER's for an unknown one."""
        return self._of.get(agent, self.other)

    def request(self, agent: str) -> tuple[int, int | None]:
        """`agent` sends a request: (its slot, the slot that changed hands for it or None).

        Whatever still names a slot that changed hands means the former agent: it is OTHER's now.
        """
        self._requests += 1
        slot = self._of.get(agent)
        lost = None
        if slot is None and agent != OTHER:
            slot, lost = self._new(agent)
        if slot is None:
            return self.other, None
        self._activity[slot] = self._activity[slot] * self._decay(self._active_at[slot]) + 1.0
        self._active_at[slot] = self._requests
        return slot, lost

    def _new(self, agent: str) -> tuple[int | None, int | None]:
        if self.free:
            slot = self.free.pop()
            return slot, self._give(slot, agent, 0.0)
        if self.other == 0:
            return None, None
        activity = self._contend(agent)
        if activity <= LEAST or self._requests < self._next_takeover:
            return None, None
        activities = [past * self._decay(at) for past, at in zip(self._activity, self._active_at, strict=True)]
        slot = min(range(self.other), key=activities.__getitem__)
        if activity <= LEAD * activities[slot] + LEAST:
            return None, None
        self._next_takeover = self._requests + PAUSE
        return slot, self._give(slot, agent, activity - 1.0)

    def _contend(self, agent: str) -> float:
        """Count a request of an agent without a slot; its activity."""
        activity, at = self._contenders.pop(agent, (0.0, self._requests))
        activity = activity * self._decay(at) + 1.0
        if len(self._contenders) >= MAX_CONTENDERS:
            self._drop_contenders()
        self._contenders[agent] = (activity, self._requests)
        return activity

    def _drop_contenders(self) -> None:
        """A quarter of them at once, so that a flood of new agents costs little for each."""
        kept = heapq.nlargest(
            MAX_CONTENDERS * 3 // 4, self._contenders.items(), key=lambda c: c[1][0] * self._decay(c[1][1])
        )
        names = {name for name, _ in kept}
        self._contenders = {name: activity for name, activity in self._contenders.items() if name in names}

    def _decay(self, at: int) -> float:
        return math.exp2((at - self._requests) / HALF_LIFE)

    def _give(self, slot: int, agent: str, activity: float) -> int | None:
        """The slot itself if it had another owner."""
        former = self.names[slot]
        if former is not None:
            del self._of[former]
        self._contenders.pop(agent, None)
        self.names[slot] = agent
        self._of[agent] = slot
        self._activity[slot] = activity
        self._active_at[slot] = self._requests
        return slot if former is not None else None

    def entered(self, slots: Iterable[int]) -> None:
        """A window entry names these."""
        for slot in slots:
            if slot < self.other and self.uses[slot] == 0 and slot in self.free:
                self.free.remove(slot)
            self.uses[slot] += 1

    def left(self, slots: Iterable[int]) -> None:
        """A window entry that named these is gone."""
        for slot in slots:
            self.uses[slot] -= 1
            if slot < self.other and self.uses[slot] == 0:
                self.free.insert(0, slot)

    def moved_to_other(self, slot: int) -> None:
        """Window entries that named `slot` name OTHER now; the slot itself stays taken."""
        self.uses[self.other] += self.uses[slot]
        self.uses[slot] = 0

    def state(self) -> dict[str, Any]:
        """Of JSON types; `uses` comes back with the window."""
        return {
            "names": list(self.names[:-1]),
            "free": list(self.free),
            "requests": self._requests,
            "activity": [[past, at] for past, at in zip(self._activity, self._active_at, strict=True)],
            "contenders": [[name, activity, at] for name, (activity, at) in self._contenders.items()],
            "next_takeover": self._next_takeover,
        }

    def load(self, state: Any) -> None:
        """Raises KeyError, TypeError or ValueError if this isn't a `state` of as many slots."""
        names = [None if name is None else str(name) for name in state["names"]]
        activity = [(float(past), int(at)) for past, at in state["activity"]]
        if len(names) != self.other or len(activity) != self.other:
            raise ValueError(f"{len(names)} names and {len(activity)} activities for {self.other} slots")
        if not all(math.isfinite(past) and past >= 0.0 for past, _ in activity):
            raise ValueError("an activity is no number from 0 up")
        self.names = [*names, OTHER]
        self._of = {name: slot for slot, name in enumerate(names) if name is not None}
        self.free = [int(slot) for slot in state["free"]]
        self._requests = int(state["requests"])
        self._activity = array("d", (past for past, _ in activity))
        self._active_at = array("q", (at for _, at in activity))
        contenders = state["contenders"][-MAX_CONTENDERS:]
        self._contenders = {str(name): (float(activity), int(at)) for name, activity, at in contenders}
        self._next_takeover = int(state["next_takeover"])

    def broken(self, uses: dict[int, int]) -> list[str]:
        """Names of what doesn't hold, given how often the window names each slot."""
        counted = all(
            (slot in self.free) == (uses.get(slot, 0) == 0)
            and self.uses[slot] == uses.get(slot, 0)
            and (slot in self.free or self.names[slot] is not None)
            for slot in range(self.other)
        )
        named = all(self.names[slot] == name for name, slot in self._of.items())
        taken = sum(name is not None for name in self.names[:-1])
        checks = {
            "slots": counted and len(set(self.free)) == len(self.free),
            "names": named and taken == len(self._of),
            "contenders": len(self._contenders) <= MAX_CONTENDERS and not self._contenders.keys() & self._of.keys(),
        }
        return [name for name, holds in checks.items() if not holds]
