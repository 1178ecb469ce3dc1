"""What each replica is to a request: a pure function of what the process already knows.

The policies of the router's seat put these offers in order (`runtime_actor/policies/routing.py`); without one it is
stock's, power of two choices.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runtime_actor.policies.base import ReplicaOffer
from runtime_actor.tables import ReachTables
from serve_app.routing_state import ClusterView, ReplicaView, SessionView

MIN_REQUEST_COST_TOKENS = 256
"""What a request in flight costs at least: its decoding takes time even if its prompt is cached."""

MIN_USEFUL_TOKENS = 64
"""Less in a cache is no reason to prefer a replica: the few tokens that every prompt shares would else draw all."""


@dataclass(frozen=True, slots=True)
class RankingInput:
    """`loads` is replica -> requests in flight; `chosen_s` replica -> when it was last chosen (any clock).

    `preamble_tokens` estimates the request's leading system text and tools: what another session of the
    agent will share at least. `agent_places` is replica -> tokens of the agent's last prompt there, newer
    than the view.
    """

    workload: str
    agent: str
    loads: Mapping[str, int]
    chosen_s: Mapping[str, float]
    session: SessionView | None
    tables: ReachTables | None
    preamble_tokens: int = 0
    agent_places: Mapping[str, int] = field(default_factory=dict)


def offers(request: RankingInput, view: ClusterView | None, order: Sequence[str]) -> list[ReplicaOffer]:
    """One for each replica of `order`; `view` None: there is no fresh one."""
    cost = _request_cost(request.session)
    last = _last_place(request.session)
    place = request.session.places.get(request.agent) if request.session is not None else None
    home = place[0] if place is not None else last
    return [
        ReplicaOffer(
            replica=replica,
            load=request.loads[replica],
            cached_tokens=cached_tokens(request, view, replica) if view is not None else 0.0,
            reach_tokens=reach_tokens(request, view, replica) if view is not None else 0.0,
            cost_tokens=cost,
            is_last=replica == last,
            is_home=replica == home,
            chosen_s=request.chosen_s.get(replica, float("-inf")),
            is_known=view is not None,
        )
        for replica in order
    ]


def cached_tokens(request: RankingInput, view: ClusterView, replica: str) -> float:
    """What the engine there will probably find: this agent's last prompt in this session, else its anchor.

    Where no anchor is known yet (one session so far), the preamble stands for it.
    """
    own = _session_tokens(request.session, request.agent, replica)
    anchor = _anchor_tokens(request, view, request.agent, replica, request.preamble_tokens)
    recent = min(request.agent_places.get(replica, 0), request.preamble_tokens)
    expected = max(own, anchor, recent)
    return expected if expected >= MIN_USEFUL_TOKENS else 0


def reach_tokens(request: RankingInput, view: ClusterView, replica: str) -> float:
    """Tokens there of the agents that the session reaches after this request, by their discounted probability."""
    tables = request.tables
    if tables is None:
        return 0.0
    current = tables.index(request.agent)
    session = request.session
    previous = tables.start
    if session is not None and session.current is not None:
        previous = tables.index(session.current)
    values = tables.row(previous, current)
    total = 0.0
    for index, agent in enumerate(tables.agents[:-1]):
        value = float(values[index])
        if value > 0.01 and agent != request.agent:
            there = max(_session_tokens(session, agent, replica), _anchor_tokens(request, view, agent, replica))
            total += value * there
    return total if total >= MIN_USEFUL_TOKENS else 0.0


def by_load(loads: Mapping[str, int], choices: random.Random) -> list[str]:
    """Power of two choices: of two random replicas the less busy one first, the others after them at random."""
    replicas = list(loads)
    choices.shuffle(replicas)
    if len(replicas) >= 2 and loads[replicas[1]] < loads[replicas[0]]:
        replicas[0], replicas[1] = replicas[1], replicas[0]
    return replicas


def _session_tokens(session: SessionView | None, agent: str, replica: str) -> int:
    place = session.places.get(agent) if session is not None else None
    return place[1] if place is not None and place[0] == replica else 0


def _anchor_tokens(request: RankingInput, view: ClusterView, agent: str, replica: str, unknown_tokens: int = 0) -> int:
    """Resident blocks count blocks of the agent's sessions too: no more than its shared prefix."""
    there: ReplicaView | None = view.replicas.get(replica)
    if there is None:
        return 0
    blocks = there.resident.get(request.workload, {}).get(agent, 0)
    anchor = view.anchors.get(request.workload, {}).get(agent, unknown_tokens)
    return min(blocks * there.block_size, anchor)


def _last_place(session: SessionView | None) -> str | None:
    place = session.places.get(session.current) if session is not None and session.current is not None else None
    return place[0] if place is not None else None


def _request_cost(session: SessionView | None) -> float:
    """The session's own last prompt stands for what a request costs here."""
    if session is None or not session.places:
        return MIN_REQUEST_COST_TOKENS
    return max(MIN_REQUEST_COST_TOKENS, max(tokens for _, tokens in session.places.values()) / 2)
