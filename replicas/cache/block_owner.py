"""An owner of cached blocks that knows what it is and why it is worth something."""

from __future__ import annotations

import math

from replicas.cache.owner import Owner
from replicas.cache.sharing import AgentKey

ANONYMOUS = 0
ENDED = 1
SESSION = 2
ANCHOR = 3
WAITING = 4
KINDS = ("anonymous", "ended", "session", "anchor", "waiting")
"""What an evicted block was; indexed by `BlockOwner.reason`."""

STEPS = 1024
"""Values are rounded to 1/1024: less is no evidence, and equal values leave by recency."""

WAITING_VALUE = 3.0
LEAST_WAITING_VALUE = 2.0
WAITING_STEP = 1e-9
"""A waiting request's owners are above every forecast; of two, the earlier request's stay longer. It falls from the one
towards the other, by less with each request, so that no number of requests takes it below."""

MOST_WORTH = 1.0 - 1e-15


def worth_of(value: float) -> float:
    """The forecast that a value orders by, in [0, 1]; 1.0 for what a waiting request needs."""
    return -math.expm1(-value / (1.0 - value)) if value < 1.0 else 1.0


class BlockOwner(Owner):
    """An owner that knows why it is worth something. `worth` is the raw forecast in [0, 1].

    `agents` has one entry for a session's owner, and all that share an anchor. `span`: first and end
    block of what its last request had for itself. `in_use`: requests that wait or run and fill its blocks.
    """

    __slots__ = ("agents", "in_use", "kind", "span", "waiting", "worth")

    def __init__(self, kind: int, agents: tuple[AgentKey, ...] = (), listed: bool = True) -> None:
        super().__init__(listed=listed)
        self.kind = self.reason = kind
        self.agents = agents
        self.span: tuple[int, int] = (0, 0)
        self.in_use = 0
        self.worth = 0.0
        self.waiting: dict[int, None] = {}

    @property
    def forecast(self) -> float:
        """What its value stands for, in [0, 1], whatever the weight; 1.0 for what waits and for what is protected."""
        return 1.0 if self.value > 1.0 else self.worth

    def explain(self) -> None:
        """Bring `reason` up to date with `kind`, `waiting` and `listed`."""
        self.reason = WAITING if self.waiting and self.listed else self.kind

    def settled(self, weight: float) -> float:
        """The value that orders: rounded urgency, or above all that while a request waits for it.

        Urgency u = -log(1 - worth), shown as u / (1 + u), orders as worth does and still tells apart what
        many sessions need at once, where each worth is nearly 1.
        """
        if self.waiting and self.listed:
            span = WAITING_VALUE - LEAST_WAITING_VALUE
            return LEAST_WAITING_VALUE + span / (1.0 + min(self.waiting) * WAITING_STEP)
        urgency = -math.log1p(-min(self.worth, MOST_WORTH))
        return round(urgency / (1.0 + urgency) * weight * STEPS) / STEPS
