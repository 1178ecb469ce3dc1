"""Which replica should serve a request: a pure function of what the process already knows.

    score = cached_weight * tokens expected in the cache there
          + reach_weight  * tokens there of the session's likely next agents, by probability
          - load_weight   * requests in flight there * what a request costs

all in prompt tokens. A replica that has `hot_requests` more in flight than the least busy one comes
after all that don't: following prefixes alone makes a hot spot. Ties go to the replica where the session
was last, since what is computed ahead for it is computed there; then to the one chosen longest ago, so a
new one isn't drowned and an empty cluster is filled evenly.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runtime_actor.tables import ReachTables
from serve_app.routing_state import ClusterView, ReplicaView, SessionView

MIN_REQUEST_COST_TOKENS = 256
"""What a request in flight costs at least: its decoding takes time even if its prompt is cached."""

MIN_USEFUL_TOKENS = 64
"""Less in a cache is no reason to prefer a replica: the few tokens that every prompt shares would else draw all."""


@dataclass(frozen=True, slots=True)
class RankingWeights:
    cached_weight: float = 1.0
    reach_weight: float = 0.5
    load_weight: float = 1.0
    hot_requests: int = 4


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


def rank(request: RankingInput, view: ClusterView, weights: RankingWeights) -> list[str]:
    """All replicas of `request.loads`, best first."""
    least = min(request.loads.values(), default=0)
    cost = _request_cost(request.session)
    last = _last_place(request.session)

    def key(replica: str) -> tuple[bool, float, int, bool, float]:
        load = request.loads[replica]
        score = (
            weights.cached_weight * cached_tokens(request, view, replica)
            + weights.reach_weight * reach_tokens(request, view, replica)
            - weights.load_weight * load * cost
        )
        is_hot = load - least >= weights.hot_requests
        return is_hot, -score, load, replica != last, request.chosen_s.get(replica, float("-inf"))

    return sorted(request.loads, key=key)


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


def with_affinity(ranked: Sequence[str], request: RankingInput, weights: RankingWeights) -> list[str]:
    """The same order with the replica first that served this agent of this session, else where the session was last;
    a hot one stays where it is."""
    place = request.session.places.get(request.agent) if request.session is not None else None
    home = place[0] if place is not None else _last_place(request.session)
    if home is None or home not in request.loads:
        return list(ranked)
    least = min(request.loads.values())
    if request.loads[home] - least >= weights.hot_requests:
        return list(ranked)
    return [home, *(replica for replica in ranked if replica != home)]


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
