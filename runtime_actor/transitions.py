"""Windowed transition counts of one workload: which agent follows which inside a session.

The chain is counted per session, never over the interleaved stream, with START and END as states. A step is
(previous, current, next) with the visit numbers of the last two: it feeds order 1 (current -> next) and
order 2 ((previous, current) -> next), by stage, and leaves both again when `window` newer ones have come.
Only the steps are kept; what is counted from them is made when it is asked for.

A repeat (an agent after itself) stays in the chain that values are computed from, but it is no
transition: `counts` and `probabilities` leave it out and `repeats` has it.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runtime_actor.chain import MAX_STAGES, Chain
from runtime_actor.counts import ANY_VISITS, MAX_VISITS, Step, StepCounts, Window, gap_code
from runtime_actor.errors import CheckpointError
from runtime_actor.slots import Slots

START = "start"
END = "end"
STATE_VERSION = 3
VERSION_WITHOUT_ACTIVITY = 2

FRESH = 64
"""A forecast's chain is made anew when the window has this share of newer steps: making one takes milliseconds."""


@dataclass(slots=True)
class SessionPosition:
    """Where a live session stands: slots of its last two requests' agents and when the last one came.

    visits: requests of each slot so far, up to MAX_VISITS; at most one number a slot.
    """

    previous: int
    current: int
    t_s: float
    requests: int
    visits: dict[int, int] = field(default_factory=dict)

    def visit(self, slot: int) -> int:
        """Count a request of `slot`; returns its number."""
        self.visits[slot] = min(self.visits.get(slot, 0) + 1, MAX_VISITS)
        return self.visits[slot]

    def forget(self, slot: int, other: int) -> None:
        """`slot` belongs to another agent from now on."""
        self.visits.pop(slot, None)
        self.previous = other if self.previous == slot else self.previous
        self.current = other if self.current == slot else self.current


class TransitionModel:
    """Counts of one workload; single-threaded, no I/O, the caller's clock.

    Bounds and what happens at them:
    - `window` steps: the oldest leaves all counts.
    - `max_agents` slots, the last of them shared as OTHER by the agents that are the least active
      (`Slots`). What the window knows of an agent that loses its slot is OTHER's from then on, and so are
      sessions that stand on it.
    - `max_sessions` live sessions: the one silent for longest is closed as if it had ended; if it
      speaks again it counts as a new session.
    """

    def __init__(self, window: int = 4096, max_agents: int = 64, max_sessions: int = 4096) -> None:
        if window < 1 or max_agents < 2 or max_sessions < 1:
            raise ValueError(
                f"window {window} and max_sessions {max_sessions} must be >= 1, max_agents {max_agents} >= 2"
            )
        self.window = window
        self.max_agents = max_agents
        self.max_sessions = max_sessions
        self.other = max_agents - 1
        self.start = max_agents
        self.end_state = max_agents + 1
        self.version = 0
        self._slots = Slots(max_agents)
        self._window = Window(window, self.start, self.end_state)
        self._sessions: OrderedDict[str, SessionPosition] = OrderedDict()
        self._steps: tuple[int, StepCounts] | None = None
        self._chain: tuple[int, Chain] | None = None

    # --- events -------------------------------------------------------------------------------------

    def observe(self, session: str, agent: str, t_s: float) -> None:
        """A request of `agent` in `session` arrived at `t_s` (any clock; a step back counts as no gap)."""
        slot = self._take_slot(agent)
        position = self._sessions.get(session)
        if position is None:
            position = self._sessions[session] = SessionPosition(self.start, slot, t_s, 1)
            self._count(Step(self.start, self.start, slot, 0, 0, position.visit(slot)))
            if len(self._sessions) > self.max_sessions:
                self._close(next(iter(self._sessions)), None)
        else:
            before, source = position.previous, position.current
            seen = position.visits.get(source, ANY_VISITS)
            code = gap_code(t_s - position.t_s)
            self._count(Step(before, source, slot, code, seen, position.visit(slot)))
            position.previous, position.current = source, slot
            position.t_s = max(position.t_s, t_s)
            position.requests += 1
            self._sessions.move_to_end(session)
        self.version += 1

    def end(self, session: str, t_s: float) -> bool:
        """`session` is over. Returns False, and counts nothing, if it isn't live."""
        if session not in self._sessions:
            return False
        self._close(session, t_s)
        self.version += 1
        return True

    def expire(self, now_s: float, silent_s: float) -> list[str]:
        """End every session silent for more than `silent_s`; returns their ids, longest silent first."""
        expired = [s for s, position in self._sessions.items() if now_s - position.t_s > silent_s]
        for session in expired:
            self.end(session, now_s)
        return expired

    def _close(self, session: str, t_s: float | None) -> None:
        position = self._sessions.pop(session)
        code = gap_code(math.inf if t_s is None else t_s - position.t_s)
        seen = position.visits.get(position.current, ANY_VISITS)
        self._count(Step(position.previous, position.current, self.end_state, code, seen))

    # --- what is known ------------------------------------------------------------------------------

    @property
    def agents(self) -> tuple[str, ...]:
        """Agents that own a slot, in slot order, without OTHER."""
        return tuple(name for name in self._slots.names[:-1] if name is not None)

    @property
    def sessions(self) -> Mapping[str, SessionPosition]:
        """Live sessions, longest silent first. Slots are named by `name_of`."""
        return self._sessions

    @property
    def steps(self) -> StepCounts:
        """Counts of the window, by slot."""
        if self._steps is None or self._steps[0] != self.version:
            self._steps = (self.version, self._window.counts())
        return self._steps[1]

    @property
    def observed(self) -> int:
        """Steps in the window."""
        return len(self._window)

    @property
    def live_slots(self) -> list[int]:
        """Slots that have a name, OTHER last."""
        return [slot for slot, name in enumerate(self._slots.names) if name is not None]

    def name_of(self, slot: int) -> str:
        if slot == self.start:
            return START
        if slot == self.end_state:
            return END
        name = self._slots.names[slot]
        if name is None:
            raise KeyError(f"slot {slot} has no agent")
        return name

    def slot_of(self, agent: str) -> int:
        """Slot that `agent` is counted under; OTHER's for an unknown one."""
        return self._slots.find(agent)

    def counts(self) -> dict[tuple[str, str], int]:
        """(from, to) -> count in the window, START and END included, repeats left out."""
        pairs = zip(*np.nonzero(self.steps.first), strict=True)
        return {(self.name_of(i), self.name_of(j)): int(self.steps.first[i, j]) for i, j in pairs if i != j}

    def repeats(self) -> dict[str, int]:
        """Agent -> how often it followed itself inside a session."""
        diagonal = np.diagonal(self.steps.first)
        return {self.name_of(i): int(diagonal[i]) for i in np.flatnonzero(diagonal)}

    def probabilities(self) -> dict[tuple[str, str], float]:
        """(from, to) -> share of `from`'s transitions; repeats left out, END is a successor too."""
        totals: Counter[str] = Counter()
        counts = self.counts()
        for (source, _), count in counts.items():
            totals[source] += count
        return {(i, j): count / totals[i] for (i, j), count in counts.items()}

    def predictability(self) -> float:
        """R = 1 - H(next | current) / H(next), of the transitions in `counts`; 0.0 with nothing to tell.

        Source: Zhang et al., CacheScout (arXiv 2608.14624), its gate for prefetches.
        """
        matrix = self.steps.first.astype(np.float64)
        np.fill_diagonal(matrix, 0.0)
        total = matrix.sum()
        if total == 0.0:
            return 0.0
        baseline = _entropy(matrix.sum(axis=0) / total)
        if baseline <= 0.0:
            return 0.0
        rows = matrix[matrix.sum(axis=1) > 0.0]
        weights = rows.sum(axis=1)
        given = sum(w / total * _entropy(row / w) for row, w in zip(rows, weights, strict=True))
        return float(min(max(1.0 - given / baseline, 0.0), 1.0))

    def chain(self, max_stages: int = MAX_STAGES) -> Chain:
        """The smoothed step probabilities of now, repeats included."""
        return Chain.from_counts(self.steps, self.live_slots, max_stages)

    def forecast(self, session: str, horizon: int) -> dict[str, float]:
        """Agent -> P(it fires within the session's next `horizon` requests), each in [0, 1].

        Of the newest steps, 1 in FRESH of the window may not be counted yet.

        First passage: order 2 for the first step, order 1 after it, both by stage. OTHER stands for the
        agents without a slot.

        Raises:
            KeyError: the session isn't live.
            ValueError: horizon < 1.
        """
        if horizon < 1:
            raise ValueError(f"horizon must be >= 1, got {horizon}")
        position = self._sessions[session]
        visits = position.visits.get(position.current, ANY_VISITS)
        row = self._recent_chain().within(position.previous, position.current, visits, horizon)
        return {self.name_of(slot): float(p) for slot, p in zip(self.live_slots, row, strict=True)}

    def _recent_chain(self) -> Chain:
        if self._chain is None or self.version - self._chain[0] > self.observed // FRESH:
            self._chain = (self.version, self.chain())
        return self._chain[1]

    def forget_derived(self) -> None:
        """Give up what can be made again from the window: twenty times the memory of the window itself."""
        self._steps = self._chain = None

    # --- counting -----------------------------------------------------------------------------------

    def _take_slot(self, agent: str) -> int:
        known = len(self._slots)
        slot, changed_hands = self._slots.request(agent)
        if changed_hands is not None:
            for position in self._sessions.values():
                position.forget(changed_hands, self.other)
            if self._slots.uses[changed_hands]:
                self._window.rename(changed_hands, self.other)
                self._slots.moved_to_other(changed_hands)
        if changed_hands is not None or len(self._slots) != known:
            self._chain = None
        return slot

    def _count(self, step: Step) -> None:
        self._slots.entered(step.slots)
        gone = self._window.push(step)
        if gone is not None:
            self._slots.left(gone)

    # --- checkpoints --------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything, of JSON types only; `restore` brings back exactly these counts."""
        return {
            "version": STATE_VERSION,
            "window": self.window,
            "max_agents": self.max_agents,
            "max_sessions": self.max_sessions,
            "slots": self._slots.state(),
            "steps": self._window.to_text(),
            "sessions": [
                [s, p.previous, p.current, p.t_s, p.requests, [[k, v] for k, v in p.visits.items()]]
                for s, p in self._sessions.items()
            ],
        }

    @classmethod
    def restore(cls, state: Any, window: int | None = None, max_sessions: int | None = None) -> TransitionModel:
        """Rebuild a model, cut to a smaller `window` or `max_sessions` where one is given.

        Raises:
            CheckpointError: an unknown version, a missing field, or slots and names that don't fit.
        """
        try:
            if state["version"] not in (VERSION_WITHOUT_ACTIVITY, STATE_VERSION):
                raise CheckpointError(f"transition state of unknown version {state['version']!r}")
            model = cls(
                window or int(state["window"]),
                int(state["max_agents"]),
                max_sessions or int(state["max_sessions"]),
            )
            model._load(state)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CheckpointError(f"transition state is damaged: {error!r}") from error
        return model

    def _load(self, state: Mapping[str, Any]) -> None:
        if state["version"] == VERSION_WITHOUT_ACTIVITY:
            idle = [[0.0, 0]] * (self.max_agents - 1)
            since = {"requests": 0, "activity": idle, "contenders": [], "next_takeover": 0}
            self._slots.load({"names": state["names"], "free": state["free_slots"], **since})
        else:
            self._slots.load(state["slots"])
        if state["version"] == VERSION_WITHOUT_ACTIVITY:
            self._load_entries(state["entries"])
        else:
            self._window.load(state["steps"])
            self._slots.entered(slot for step in self._window for slot in step.slots)
        for session, previous, current, t_s, requests, visits in state["sessions"][-self.max_sessions :]:
            self._sessions[str(session)] = SessionPosition(
                int(previous),
                int(current),
                float(t_s),
                int(requests),
                {int(slot): min(int(count), MAX_VISITS) for slot, count in visits},
            )
        self.check_invariants()

    def _load_entries(self, entries: list) -> None:
        """Of the version before: [before, source, target, gap in ms or None, visits of both] a step."""
        agents_or_start = range(self.start + 1)
        targets = (*range(self.max_agents), self.end_state)
        for before, source, target, gap_ms, seen, visits in entries:
            if before not in agents_or_start or source not in agents_or_start or target not in targets:
                raise ValueError(f"window entry {[before, source, target]} names no slot")
            if seen not in range(MAX_VISITS + 1) or visits not in range(MAX_VISITS + 1):
                raise ValueError(f"visits {[seen, visits]} are out of range")
            code = gap_code(None if gap_ms is None else gap_ms / 1000.0)
            self._count(Step(before, source, target, code, seen, visits))
            if target < self.other:
                self._slots.request(self.name_of(target))

    def check_invariants(self) -> None:
        """Raises ValueError with what doesn't hold."""
        uses = dict(enumerate(self._window.uses().tolist()))
        positions = all(
            0 <= p.current <= self.other
            and self._slots.names[p.current] is not None
            and 0 <= p.previous <= self.start
            and all(0 <= slot <= self.other and 1 <= n <= MAX_VISITS for slot, n in p.visits.items())
            for p in self._sessions.values()
        )
        checks = {
            "window length": self.observed <= self.window,
            "session cap": len(self._sessions) <= self.max_sessions,
            "positions": positions,
        }
        broken = [name for name, holds in checks.items() if not holds]
        broken += self._slots.broken(uses)
        if broken:
            raise ValueError(f"transition model: {', '.join(broken)} don't hold")


def _entropy(p: np.ndarray) -> float:
    positive = p[p > 0.0]
    return -float(sum(x * math.log(x) for x in positive))
