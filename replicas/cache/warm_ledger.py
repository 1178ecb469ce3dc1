"""What became of warmed blocks: useful at the first hit by their agent, wasted if lost or too late."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from replicas.cache.sharing import AgentKey
from runtime_actor.messages import USEFUL, WASTED

MAX_ACTIONS = 256
"""Open warm-ups; beyond it the oldest is closed as wasted."""

MAX_OUTCOMES = 1024
"""Outcomes not fetched yet; beyond it the oldest is dropped and counted in `dropped`."""


@dataclass(frozen=True, slots=True)
class WarmupOutcome:
    """End of one warm-up. reason: hit | evicted | deadline | displaced; blocks: what it computed."""

    action_id: str
    workload: str
    agent: str
    outcome: str
    reason: str
    blocks: int


@dataclass(slots=True)
class _Action:
    agent: AgentKey
    deadline_s: float
    filled: int = 0
    left: set[int] = field(default_factory=set)


class WarmLedger:
    """Blocks filled by warm-ups, by block id, until their action ends. Times are seconds of any clock."""

    def __init__(self, max_actions: int = MAX_ACTIONS, max_outcomes: int = MAX_OUTCOMES) -> None:
        self._max_actions = max_actions
        self._max_outcomes = max_outcomes
        self._actions: OrderedDict[str, _Action] = OrderedDict()
        self._outcomes: list[WarmupOutcome] = []
        self.block_actions: dict[int, str] = {}
        """Empty whenever nothing is warm: callers look at it before they loop over blocks."""
        self.dropped = 0

    def begin(self, action_id: str, agent: AgentKey, deadline_s: float) -> None:
        """A warm-up, or a further slice of one, arrived."""
        if action_id not in self._actions:
            self._actions[action_id] = _Action(agent, deadline_s)
            if len(self._actions) > self._max_actions:
                self._end(next(iter(self._actions)), WASTED, "displaced")

    def fill(self, action_id: str, block_id: int) -> None:
        action = self._actions.get(action_id)
        if action is not None:
            action.filled += 1
            action.left.add(block_id)
            self.block_actions[block_id] = action_id

    def hit(self, agent: AgentKey, block_ids: Iterable[int]) -> None:
        """A demand request of `agent` found these blocks."""
        for block_id in block_ids:
            action_id = self.block_actions.get(block_id)
            if action_id is not None and self._actions[action_id].agent == agent:
                self._end(action_id, USEFUL, "hit")

    def move(self, source: int, target: int) -> None:
        """A block's content is another's from now on."""
        action_id = self.block_actions.pop(source, None)
        if action_id is not None:
            left = self._actions[action_id].left
            left.discard(source)
            left.add(target)
            self.block_actions[target] = action_id

    def lose(self, block_id: int) -> None:
        """A block lost its content."""
        action_id = self.block_actions.pop(block_id, None)
        if action_id is not None:
            action = self._actions[action_id]
            action.left.discard(block_id)
            if not action.left:
                self._end(action_id, WASTED, "evicted")

    def expire(self, now_s: float) -> None:
        late = [name for name, action in self._actions.items() if action.deadline_s <= now_s]
        for action_id in late:
            self._end(action_id, WASTED, "deadline")

    def take_outcomes(self) -> list[WarmupOutcome]:
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def _end(self, action_id: str, outcome: str, reason: str) -> None:
        action = self._actions.pop(action_id)
        for block_id in action.left:
            self.block_actions.pop(block_id, None)
        workload, agent = action.agent
        self._outcomes.append(WarmupOutcome(action_id, workload, agent, outcome, reason, action.filled))
        if len(self._outcomes) > self._max_outcomes:
            self.dropped += len(self._outcomes) - self._max_outcomes
            del self._outcomes[: -self._max_outcomes]
