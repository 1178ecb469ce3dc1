"""What a policy is: four primitives over one stream of observations.

A policy suggests; the owner of the resource decides. So a policy never changes a neighbour: it answers with
priorities, forecasts, orders and verdicts, and the host (`host.py`) combines what several of them say.

| primitive | hook | called by |
|---|---|---|
| observe | `observe` | whoever hosts the policy, for every event |
| score | `score`, `score_tables`, `order` | the actor (what a cache keeps); a queue (who goes next); the router |
| predict | `predict` | the actor |
| act | `act`, `admit`, `output` | the actor (prefetches); the gateway (a request, an answer) |

Composing several policies, in the order of the configuration:
- observe: each sees every event, once, in the same order.
- score: a priority within [0, 1]. The item's is the mean of those that have one, weighted by the policies'
  weights; with none of them the neighbour keeps its own order. Bulk scores (`score_tables`) belong to the
  first policy that gives a table for a workload.
- order: the policies' keys, one after the other, smallest first: a later policy only breaks the ties of the
  earlier ones. An item without a key goes behind those that have one; equal keys keep the queue's own order.
- predict: the first policy with an answer; probabilities of different policies aren't mixed, since they
  aren't independent.
- act: suggestions of all; of two prefetches for the same replica, workload and agent the first counts, and
  the highest value goes first. The runtime's rate limits then apply to all policies together.
- admit: one after the other; the first refusal ends it, a rewrite is what the next one sees.
- output: each filter gets what the one before it let through.
A policy that raises, takes longer than its host allows or answers nonsense has "no opinion" for that call;
after a bound of such failures it is switched off. With `fail_closed` it refuses instead, see `host.py`.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from runtime_actor.identity import SessionRecord
from runtime_actor.messages import Message
from runtime_actor.replica_map import ReplicaState
from runtime_actor.settings import AnyPolicySettings, PluggedSettings, from_dict
from runtime_actor.tables import ReachTables
from runtime_actor.transitions import TransitionModel

T = TypeVar("T")

ACTOR = "actor"
GATEWAY = "gateway"
ENGINE = "engine"
ROUTER = "router"
SEATS = (ACTOR, GATEWAY, ENGINE, ROUTER)
"""Where a policy can run: the runtime actor, each gateway process, each engine process, each router, which is a
thread of a gateway's process."""


# --- what is scored and ordered ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CacheOwner:
    """An item to score: the KV of `agent` as `session` would use it next."""

    workload: str
    agent: str
    session: str


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request at the gateway, known and not yet sent on.

    `prompt_tokens` and `output_tokens` are estimates made before anything is tokenized. `priority` is the
    client's, clipped: 0 is normal, higher goes later. `ttft_slo_s` is what the client allows until the first
    token (None: nothing said). `fields` is the body that will go to the engine and must not be changed.
    """

    request_id: int
    tenant: str
    workload: str
    session: str
    agent: str
    arrived_s: float
    prompt_tokens: int
    output_tokens: int
    priority: int
    ttft_slo_s: float | None
    fields: Mapping[str, Any]
    model: str = ""
    method: str = ""
    """The engine's: chat (Messages too), completions or responses, whose form `fields` have ("": not told)."""


@dataclass(frozen=True, slots=True)
class QueuedPrefill:
    """A request in an engine's waiting queue. `group` is the same for requests that begin with one anchor
    ("": none known); `is_resident`: the cache holds that anchor now; `follows`: the last request that left
    the queue was of this group."""

    group: str
    is_resident: bool
    follows: bool


@dataclass(frozen=True, slots=True)
class ReplicaOffer:
    """A replica for one request. `cached_tokens` are expected there of its prompt, `reach_tokens` of its session's
    next agents, weighted by their probability; `cost_tokens` is what a request in flight costs. `is_last`: the
    session was there last; `is_home`: this agent of this session was, or where it never was, the session. `chosen_s`
    is when it was last chosen, on any clock. `is_known`: the view of the cluster is fresh; else tokens are 0."""

    replica: str
    load: int
    cached_tokens: float
    reach_tokens: float
    cost_tokens: float
    is_last: bool
    is_home: bool
    chosen_s: float
    is_known: bool


Ordered = RequestView | QueuedPrefill | ReplicaOffer


# --- what is observed beside the messages -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestSent:
    """The gateway gave a request to a replica after `waited_s` in its own queue."""

    request: RequestView
    waited_s: float


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """A policy refused a request, or its client left while it waited; no RequestServed follows."""

    request: RequestView


@dataclass(frozen=True, slots=True)
class RequestServed:
    """A request that was sent is over, whatever became of it.

    Prompt and cached tokens are the engine's, 0 if it never took the request. `ttft_s` counts from the arrival
    and is None if no stream began; `waited_s` was in the gateway's queue, `held_s` in an engine. `was_ahead`: it
    had been started as a guess. `answer` is the text of the first choice as the client got it, None unless a
    policy reads answers, the answer came to its end, and it is no longer than MAX_ANSWER_CHARS.
    """

    request: RequestView
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_s: float | None
    waited_s: float
    held_s: float
    was_ahead: bool = False
    answer: str | None = None


MAX_ANSWER_CHARS = 32_768


@dataclass(frozen=True, slots=True)
class GuessEnded:
    """A request that was to be started ahead became the client's, was thrown away after `wasted_tokens`, or (0 and
    not joined) wasn't started at all."""

    tenant: str
    workload: str
    session: str
    is_joined: bool
    wasted_tokens: int


Observation = Message | RequestSent | RequestRefused | RequestServed | GuessEnded


# --- what a policy may do ---------------------------------------------------------------------------


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


@dataclass(frozen=True, slots=True)
class InvalidateSuggestion:
    """Drop what is kept of a tenant's results of `tool`; both empty: everything of everybody."""

    policy: str
    tenant: str
    tool: str


@dataclass(frozen=True, slots=True)
class GuessSuggestion:
    """Start what `agent` will ask next in that session. It is given to the client if the session's next request
    is exactly this one and comes within `wait_s`, and else thrown away. `tokens`: what it will probably cost."""

    policy: str
    tenant: str
    workload: str
    session: str
    agent: str
    method: str
    fields: Mapping[str, Any]
    tokens: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class AdapterSuggestion:
    """What each adapter is worth on `replica` now: the probability that it is needed there soon."""

    policy: str
    replica: str
    values: Mapping[str, float]


Suggestion = PrefetchSuggestion | InvalidateSuggestion | GuessSuggestion | AdapterSuggestion


@dataclass(frozen=True, slots=True)
class Refusal:
    """The request ends here with this HTTP status (400 to 599) and OpenAI error `code`; `message` is shown
    to the client and names the rule, never the content."""

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The request goes on with these fields in the place of its own."""

    fields: Mapping[str, Any]


Verdict = Refusal | Rewrite


class OutputFilter(Protocol):
    """The text of one choice of an answer on its way to the client, in pieces."""

    def feed(self, text: str) -> str:
        """What may go out now; the rest is held back for the next call."""

    def end(self) -> str:
        """What was held back."""


# --- the policy -------------------------------------------------------------------------------------


class Clock(Protocol):
    """What every policy may read."""

    @property
    def now_s(self) -> float: ...


class Substrate(Clock, Protocol):
    """The shared state that a policy in the actor may read, and must not change."""

    @property
    def table_interval_s(self) -> float:
        """Least time between two tables of one workload."""

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
    """Base of all policies; every hook has "no opinion" as its default. Called by one thread at a time.

    `seat` says where it runs; there `substrate` is what it may read: a Substrate in the actor, a Clock
    elsewhere. `in_place` is for code that is known to return at once: it is called directly, not through the
    thread that lets a host go on without the answer.
    """

    name: ClassVar[str]
    seat: ClassVar[str] = ACTOR
    in_place: ClassVar[bool] = False
    reads_ttft_slo: ClassVar[bool] = False
    """Whether it makes use of `RequestView.ttft_slo_s`: the gateway reads that header only for such a policy."""
    reads_answers: ClassVar[bool] = False
    """Whether it makes use of `RequestServed.answer`, which is collected only for such a policy."""
    lets_lead: ClassVar[bool] = False
    """Whether a tenant's only request in the engines goes before those of others there, once it is this one's turn."""

    def __init__(self, settings: AnyPolicySettings, substrate: Clock) -> None:
        """Raises ConfigurationError for settings that aren't allowed."""
        self.settings = settings
        self.substrate = substrate

    def options_as(self, kind: type[T]) -> T:
        """The settings' options as that dataclass. Raises ConfigurationError naming the option."""
        options = self.settings.options if isinstance(self.settings, PluggedSettings) else {}
        return from_dict(kind, options, f"policies.{self.settings.name}.options")

    # observe

    def observe(self, event: Observation) -> None:  # noqa: B027 - a default, not forgotten
        """An event has been applied to the shared state."""

    def forget(self, workload: str) -> None:  # noqa: B027
        """A workload fell out of the registry; drop what is kept for it."""

    # score

    def score(self, item: CacheOwner) -> float | None:
        """Priority of `item` within [0, 1], higher = keep; None: no opinion."""
        return None

    def score_tables(self) -> Mapping[str, ReachTables]:
        """Scores in bulk: workload -> tables that changed since the last call."""
        return {}

    def order(self, items: Sequence[Ordered]) -> Sequence[tuple[float, ...] | None]:
        """A key for each item, smallest first, all of one length; None: no opinion on that item."""
        return [None] * len(items)

    # predict

    def predict(self, workload: str, session: str, horizon: int) -> Mapping[str, float] | None:
        """Agent -> P(it fires within the session's next `horizon` requests); None: no opinion."""
        return None

    # act

    def act(self) -> Sequence[Suggestion]:
        """Suggestions that came up since the last call. Must not block."""
        return []

    def admit(self, request: RequestView) -> Verdict | None:
        """What is to happen with a request before it is queued; None: it may go on as it is."""
        return None

    def output(self, request: RequestView) -> OutputFilter | None:
        """A filter for one choice of the answer; None: nothing to do."""
        return None

    # tell

    def counters(self) -> Mapping[str, int]:
        """Totals since the start, for GET /runtime/state and the metrics; the names are a fixed set."""
        return {}
