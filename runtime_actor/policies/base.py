"""What a policy is: four primitives over one shared, identity-tagged state.

A policy suggests; the owner of the resource decides. The engine decides what it evicts, the router where
a request goes, the runtime which prefetches are handed out. So a policy never changes a neighbour: it
answers with priorities, forecasts and suggestions.

Composing several policies, in the order of the configuration:
- observe: each sees every event, once, in the same order.
- score: a priority within [0, 1] or None for "no opinion". The item's priority is the mean of those that
  have one, weighted by the policies' weights; with none of them the neighbour keeps its own order.
  Bulk scores (`score_tables`) belong to the first enabled policy that gives a table for a workload.
- predict: the first enabled policy with an answer; probabilities of different policies aren't mixed,
  since they aren't independent.
- act: suggestions of all, highest value first; of two for the same replica, workload and agent the
  first counts. The runtime's rate limits then apply to all policies together.
A policy that raises gives "no opinion" for that call. After a bound of failures it is switched off.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from runtime_actor.identity import SessionRecord
from runtime_actor.messages import Message
from runtime_actor.replica_map import ReplicaState
from runtime_actor.settings import PolicySettings
from runtime_actor.tables import ReachTables
from runtime_actor.transitions import TransitionModel


@dataclass(frozen=True, slots=True)
class CacheOwner:
    """An item to score: the KV of `agent` as `session` would use it next."""

    workload: str
    agent: str
    session: str


@dataclass(frozen=True, slots=True)
class PrefetchSuggestion:
    """Warm `agent`'s anchor on `replica` within `deadline_s`; `value` is its reach value there."""

    policy: str
    replica: str
    workload: str
    agent: str
    session: str
    deadline_s: float
    value: float


class Substrate(Protocol):
    """The shared state that a policy may read, and must not change."""

    @property
    def now_s(self) -> float: ...

    @property
    def replicas(self) -> Iterable[ReplicaState]: ...

    @property
    def workload_names(self) -> Iterable[str]: ...

    def model(self, workload: str) -> TransitionModel | None: ...

    def session(self, workload: str, session: str) -> SessionRecord | None: ...

    def replica(self, replica: str) -> ReplicaState | None: ...

    def anchor_tokens(self, workload: str, agent: str, replica: str) -> int:
        """Length of the agent's anchor if `replica` could warm it, else 0."""


class Policy(ABC):
    """Base of all policies. Called from one thread; every method must return quickly and keep no lock."""

    name: ClassVar[str]

    def __init__(self, settings: PolicySettings, substrate: Substrate) -> None:
        self.settings = settings
        self.substrate = substrate

    @abstractmethod
    def observe(self, event: Message) -> None:
        """An event has been applied to the shared state."""

    @abstractmethod
    def score(self, item: CacheOwner) -> float | None:
        """Priority of `item` within [0, 1], higher = keep; None: no opinion."""

    @abstractmethod
    def score_tables(self) -> Mapping[str, ReachTables]:
        """Scores in bulk: workload -> tables that changed since the last call."""

    @abstractmethod
    def predict(self, workload: str, session: str, horizon: int) -> Mapping[str, float] | None:
        """Agent -> P(it fires within the session's next `horizon` requests); None: no opinion."""

    @abstractmethod
    def act(self) -> list[PrefetchSuggestion]:
        """Suggestions that came up since the last call. Must not block."""

    @abstractmethod
    def forget(self, workload: str) -> None:
        """A workload fell out of the registry; drop what is kept for it."""
