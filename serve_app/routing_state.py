"""What the router knows of the cluster: one copy a process, written by the gateway, read by the router.

Ray pickles the router's module by value and runs the router on a thread of its own, so this lives in
a module of its own (`STATE` is the same object for both) and each view is replaced as a whole.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runtime_actor.errors import MessageError
from runtime_actor.fair_map import FairMap
from runtime_actor.tables import ReachTables
from serve_app.policies.router_seat import RouterSeat

MAX_SESSIONS = 16_384
"""Sessions whose last replica is remembered, shared fairly by tenants (`FairMap`); the longest silent is forgotten
and routed as a new one."""

MAX_AGENTS_PER_SESSION = 16
"""Agents of one session with a place of their own; the one longest silent is forgotten."""

STUCK_AFTER_S = 10.0
"""An engine with work, or a replica's process, that says nothing for so long gets new requests only where no other is
left. Far above the longest step, and far below the time after which it is ended (`replica.watchdog.stuck_after_s`)."""

STUCK_VIEW_S = 5.0
"""What an older view says of that counts no more."""

MAX_VIEW_AGE_S = 30.0
"""An older view says nothing of what is there now."""

MAX_AGENTS = 4096
"""Agents whose last replicas are remembered; the longest silent is forgotten."""

MAX_REPLICAS_PER_AGENT = 8
AGENT_PLACE_S = 15.0
"""How long a place counts before the cluster's view must show it: a few exchanges."""

SETTLED_S = 3.0
"""A replica's report this much younger than a place knows better: the prompt has been computed and reported by then."""

UNSEEN_BLOCKS = 2
"""A prompt's last block is never complete in a cache: a session's own place, all there, still beats an anchor's."""

MAX_SENT = 4096
"""Requests whose replica is remembered, for one that is to be sent elsewhere a moment later."""
MAX_TOKENS = 1 << 40
MAX_REPLICAS = 4096
MAX_WORKLOADS = 1024


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica as the runtime last saw it; `resident` is workload -> agent -> blocks. `silent_s`: how long its
    engine has had work and said nothing."""

    resident: Mapping[str, Mapping[str, int]]
    running: int
    waiting: int
    block_size: int
    total_blocks: int
    age_s: float
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All replicas, and the tokens of each agent's shared prefix: `anchors` is workload -> agent -> tokens."""

    replicas: Mapping[str, ReplicaView] = field(default_factory=dict)
    anchors: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    received_s: float = float("-inf")

    def is_later(self, replica: str, at_s: float) -> bool:
        """Whether the replica has told what it holds since what was sent there at `at_s` must show."""
        there = self.replicas.get(replica)
        return there is not None and self.received_s - there.age_s > at_s + SETTLED_S

    def holds_at_most(self, workload: str, agent: str, replica: str, at_s: float) -> int:
        """Tokens of an agent there, all its sessions together, if a report says so that is later than `at_s`."""
        if not self.is_later(replica, at_s):
            return MAX_TOKENS
        there = self.replicas[replica]
        blocks = there.resident.get(workload, {}).get(agent, 0)
        return (blocks + UNSEEN_BLOCKS) * there.block_size if blocks else 0


@dataclass(slots=True)
class SessionPlace:
    """Where a session's requests went: agent -> (replica, prompt tokens, when), newest last."""

    current: str | None = None
    places: OrderedDict[str, tuple[str, int, float]] = field(default_factory=OrderedDict)


@dataclass(frozen=True, slots=True)
class SessionView:
    """An immutable copy of a `SessionPlace` for the router's thread; no more tokens than a later report admits."""

    current: str | None
    places: Mapping[str, tuple[str, int]]


class RoutingState:
    """Thread-safe. `clock` gives monotonic seconds."""

    def __init__(self, max_sessions: int = MAX_SESSIONS, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._view = ClusterView()
        self._tables: dict[str, ReachTables] = {}
        self._sessions: FairMap[str, SessionPlace] = FairMap(max_sessions)
        self._agents: FairMap[str, OrderedDict[str, tuple[int, float]]] = FairMap(MAX_AGENTS)
        self.policies = RouterSeat()
        self._sent: OrderedDict[str, str] = OrderedDict()
        self._heard_s: OrderedDict[str, float] = OrderedDict()
        self._started_s = clock()
        self.ranked = 0
        self.fallbacks = 0

    @property
    def max_sessions(self) -> int:
        return self._sessions.cap

    @max_sessions.setter
    def max_sessions(self, cap: int) -> None:
        self._sessions.cap = cap

    @property
    def view(self) -> ClusterView:
        return self._view

    @property
    def num_replicas(self) -> int:
        """Replicas in a view that isn't stale; 0 with a stale one."""
        return len(self._view.replicas) if self.view_age_s <= MAX_VIEW_AGE_S else 0

    @property
    def view_age_s(self) -> float:
        return self._clock() - self._view.received_s

    def is_stuck(self, replica: str) -> bool:
        """Whether its engine or its process says nothing, by the newest view; False where that is old."""
        there, view_age_s = self._view.replicas.get(replica), self.view_age_s
        if view_age_s > STUCK_VIEW_S:
            return False
        if there is not None and there.silent_s > STUCK_AFTER_S:
            return True
        return self._is_unheard(replica, there, view_age_s)

    def _is_unheard(self, replica: str, there: ReplicaView | None, view_age_s: float) -> bool:
        """Whether the runtime has no young report of it, though of another replica, and it took no request here either:
        one alone may be a connection's fault.
        """
        if there is not None and there.age_s + view_age_s <= STUCK_AFTER_S:
            return False
        if self._clock() - self._heard_s.get(replica, self._started_s) <= STUCK_AFTER_S:
            return False
        return any(view.age_s <= STUCK_VIEW_S for name, view in self._view.replicas.items() if name != replica)

    def tables(self, workload: str) -> ReachTables | None:
        return self._tables.get(workload)

    def update_cluster(self, wire: Mapping[str, Any]) -> None:
        """Raises MessageError; the former view stays then."""
        view = cluster_view(wire, self._clock())
        with self._lock:
            self._view = view

    def update_tables(self, tables: ReachTables) -> None:
        with self._lock:
            kept = dict(self._tables)
            kept.pop(tables.workload, None)
            kept[tables.workload] = tables
            while len(kept) > MAX_WORKLOADS:
                del kept[next(iter(kept))]
            self._tables = kept

    def session(self, workload: str, session: str) -> SessionView | None:
        with self._lock:
            place = self._sessions.get(workload, session)
            if place is None:
                return None
            view = self._view
            places = {
                agent: (replica, min(tokens, view.holds_at_most(workload, agent, replica, at_s)))
                for agent, (replica, tokens, at_s) in place.places.items()
            }
            return SessionView(place.current, places)

    def agent_places(self, workload: str, agent: str) -> dict[str, int]:
        """Replica -> tokens of the agent's last prompt there, where no report is young enough to show it itself."""
        oldest_s = self._clock() - AGENT_PLACE_S
        with self._lock:
            view = self._view
            places: Mapping[str, tuple[int, float]] = self._agents.get(workload, agent) or {}
            return {
                replica: tokens
                for replica, (tokens, at_s) in places.items()
                if at_s >= oldest_s and not view.is_later(replica, at_s)
            }

    def record(self, workload: str, session: str, agent: str, replica: str, prompt_tokens: int) -> None:
        """A replica accepted this session's request."""
        with self._lock:
            sessions = self._sessions.part(workload)
            place = sessions.setdefault(session, SessionPlace())
            sessions.move_to_end(session)
            place.current = agent
            place.places[agent] = (replica, prompt_tokens, self._clock())
            place.places.move_to_end(agent)
            while len(place.places) > MAX_AGENTS_PER_SESSION:
                place.places.popitem(last=False)
            self._sessions.trim(workload)
            self._record_agent(workload, agent, replica, prompt_tokens)

    def _record_agent(self, workload: str, agent: str, replica: str, prompt_tokens: int) -> None:
        agents = self._agents.part(workload)
        places = agents.setdefault(agent, OrderedDict())
        agents.move_to_end(agent)
        places[replica] = (prompt_tokens, self._clock())
        places.move_to_end(replica)
        while len(places) > MAX_REPLICAS_PER_AGENT:
            places.popitem(last=False)
        self._agents.trim(workload)

    def note_sent(self, request_id: str, replica: str) -> None:
        """The router means to give the engine's request of that id to `replica`, or has given it."""
        if request_id:
            with self._lock:
                self._sent[request_id] = replica
                if len(self._sent) > MAX_SENT:
                    self._sent.popitem(last=False)

    def note_heard(self, replica: str) -> None:
        """It took a request, or refused one."""
        with self._lock:
            self._heard_s[replica] = self._clock()
            self._heard_s.move_to_end(replica)
            if len(self._heard_s) > MAX_REPLICAS:
                self._heard_s.popitem(last=False)

    def sent_to(self, request_id: str) -> str | None:
        with self._lock:
            return self._sent.get(request_id)

    def has_better_than(self, request_id: str) -> bool:
        """Whether the replica that has this request is stuck, and another one isn't."""
        replica = self.sent_to(request_id)
        if replica is None or not self.is_stuck(replica):
            return False
        return any(not self.is_stuck(other) for other in self._view.replicas)

    def end_session(self, workload: str, session: str) -> None:
        with self._lock:
            self._sessions.pop(workload, session)

    def count_routing(self, *, fallback: bool) -> None:
        with self._lock:
            self.ranked += not fallback
            self.fallbacks += fallback


STATE = RoutingState()
"""The one of this process."""


def cluster_view(wire: Mapping[str, Any], received_s: float) -> ClusterView:
    """Raises MessageError naming the part that is not as agreed."""
    try:
        replicas = {
            str(name): ReplicaView(
                resident=_mapping(view["resident"]),
                running=int(view["running"]),
                waiting=int(view["waiting"]),
                block_size=int(view["block_size"]),
                total_blocks=int(view["total_blocks"]),
                age_s=float(view["age_s"]),
                silent_s=float(view.get("silent_s", 0.0)),
            )
            for name, view in list(wire["replicas"].items())[:MAX_REPLICAS]
        }
        return ClusterView(replicas=replicas, anchors=_mapping(wire["anchors"]), received_s=received_s)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise MessageError(f"cluster view: {type(error).__name__} {error}") from None


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"expected a mapping, got {type(value).__name__}")
    return value
