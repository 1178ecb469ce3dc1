"""What routing finds in the replicas' caches, and how it spreads recorded sessions over them.

    python -m benchmarks.routing [SOURCE] [--set NAME] [--replicas 2,4] [--seeds 1,2] [--json]

`--sessions` sessions a replica run at a time. Replicas are caches of `--caches` mean prompts, with `--order` as the
order of eviction, and compute what they don't find one prompt after the other, so fast that without any cache they
would be busy `--load` of the time; half a second later a request has its answer. The router knows what it knows in
service: how many requests it has in flight where, its own record of sessions, and every `--exchange` seconds what
replicas reported one exchange before, with the tables of the actor's core, which learns beside it. The first tenth
of the requests doesn't count.

- `stock`: power of two choices. `session`: without a view of the cluster, where only a session's own place counts.
- `routing`: as shipped. `cache`: without `reach_weight`. `reach`: without `cached_weight`. The rest: another weight.
- `one cache`: no routing, all replicas' blocks in one.

`found`: share of prompt blocks; `busiest`: share of requests on one replica; `first token`: mean time to it, as a
multiple of what computing a mean prompt takes.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.arguments import given_sets, numbers, set_parser, show
from benchmarks.cache import PrefixCache
from benchmarks.policies.known import ONLINE, make
from benchmarks.recorded_actor import BLOCK_TOKENS, TENANT, RecordedActor
from benchmarks.replay import replay, smallest_cache
from benchmarks.trace_format import Request
from benchmarks.trace_source import Recording
from benchmarks.traces import TraceSettings, build_trace, token_range
from runtime_actor.settings import PluggedSettings
from runtime_actor.tables import ReachTables
from serve_app.ranking import RankingInput, by_load, offers
from serve_app.routing_state import RoutingState

ANSWER_S = 0.5
FRESH_S = 5.0
"""As `routing.max_snapshot_age_s` ships."""
POLICIES: dict[str, dict[str, Any] | None] = {
    "stock": None,
    "session": {},
    "cache": {"reach_weight": 0.0},
    "routing": {},
    "load_weight 0.5": {"load_weight": 0.5},
    "load_weight 0.25": {"load_weight": 0.25},
    "reach": {"cached_weight": 0.0},
    "reach_weight 1": {"reach_weight": 1.0},
}
"""Options of the policy; None: off."""
USUAL = ("stock", "session", "cache", "routing", "load_weight 0.5")


@dataclass(frozen=True, slots=True)
class Cluster:
    replicas: int
    blocks: int
    order: str
    token_s: float
    exchange_s: float


@dataclass(slots=True)
class Replica:
    """One engine: its cache, when it will have computed all it was given, and when those in flight are done."""

    cache: PrefixCache
    free_s: float = 0.0
    done_s: deque[float] = field(default_factory=deque)
    owners: dict[str, str] = field(default_factory=dict)
    """Block -> the agent that used it last."""
    sessions: dict[str, set[str]] = field(default_factory=dict)
    """Agent -> its sessions here, at most two: then what they share is known."""
    anchors: dict[str, int] = field(default_factory=dict)

    def load(self, now_s: float) -> int:
        while self.done_s and self.done_s[0] <= now_s:
            self.done_s.popleft()
        return len(self.done_s)

    def serve(self, request: Request, index: int, now_s: float, token_s: float) -> tuple[int, float]:
        """Blocks found, and seconds to the first token."""
        hits = self.cache.play(request, index, now_s)
        self.free_s = max(now_s, self.free_s) + (len(request.blocks) - hits) * BLOCK_TOKENS * token_s
        self.done_s.append(self.free_s + ANSWER_S)
        self.owners.update(dict.fromkeys(request.blocks, request.agent))
        seen = self.sessions.setdefault(request.agent, set())
        if len(seen) < 2:
            seen.add(request.session)
        if len(seen) == 2 and request.anchor_blocks:
            self.anchors[request.agent] = request.anchor_blocks * BLOCK_TOKENS
        return hits, self.free_s - now_s

    def resident(self) -> Mapping[str, int]:
        return Counter(self.owners[block] for block in self.cache.resident())


class RoutedCluster:
    """Router, replicas and the actor's core in the time of a trace."""

    def __init__(self, cluster: Cluster, policy: str, seed: int) -> None:
        self._cluster = cluster
        self._now_s = 0.0
        self._replicas = {
            f"r{n}": Replica(PrefixCache(cluster.blocks, make(cluster.order))) for n in range(cluster.replicas)
        }
        self._actor = RecordedActor([{"name": "kv_cache", "prefetch": {"enabled": False}}])
        self._state = RoutingState(clock=lambda: self._now_s)
        options = POLICIES[policy]
        if options is not None:
            self._state.policies.configure([PluggedSettings("routing", options=options)], 1)
        self._sees = policy != "session"
        self._chosen_s: dict[str, float] = {}
        self._random = random.Random(seed)
        self._exchanged = -2

    def serve(self, request: Request, index: int) -> tuple[str, int, float]:
        """Replica, blocks found there, seconds to the first token."""
        now_s = request.t_s or 0.0
        self._exchange(int(now_s / self._cluster.exchange_s))
        self._now_s = self._actor.now_s = now_s
        name = self._choose(request)
        hits, wait_s = self._replicas[name].serve(request, index, now_s, self._cluster.token_s)
        self._chosen_s[name] = now_s
        tokens = len(request.blocks) * BLOCK_TOKENS
        self._state.record(TENANT, request.session, request.agent, name, tokens)
        self._actor.arrived(request, name)
        if request.final:
            self._state.end_session(TENANT, request.session)
        return name, hits, wait_s

    def _exchange(self, until: int) -> None:
        """The exchanges up to that one; where nothing has come for long, the last two tell the same."""
        for number in range(max(self._exchanged + 1, until - 1), until + 1):
            self._exchanged = number
            self._now_s = self._actor.now_s = max(self._now_s, number * self._cluster.exchange_s)
            reply = self._actor.gateway_calls()
            if self._sees:
                self._state.update_cluster(reply.cluster or {})
            for wire in reply.tables.values():
                self._state.update_tables(ReachTables.from_bytes(wire))
            for name, replica in self._replicas.items():
                load = replica.load(self._now_s)
                self._actor.replica_calls(name, replica.resident(), replica.anchors, load, self._cluster.blocks)

    def _choose(self, request: Request) -> str:
        """As the router does (`serve_app/router.py`), which needs Ray."""
        state = self._state
        loads = {name: replica.load(self._now_s) for name, replica in self._replicas.items()}
        order = by_load(loads, self._random)
        if not state.policies.is_active:
            return order[0]
        asked = RankingInput(
            workload=TENANT,
            agent=request.agent,
            loads=loads,
            chosen_s=self._chosen_s,
            session=state.session(TENANT, request.session),
            tables=state.tables(TENANT),
            preamble_tokens=request.anchor_blocks * BLOCK_TOKENS,
            agent_places=state.agent_places(TENANT, request.agent),
        )
        view = state.view if state.view_age_s <= FRESH_S else None
        return state.policies.ordered(offers(asked, view, order))[0]


def play(trace: Sequence[Request], cluster: Cluster, policy: str, seed: int) -> dict[str, float]:
    """`found`, `busiest` and `first token` of all requests but the first tenth."""
    made = RoutedCluster(cluster, policy, seed)
    served = [made.serve(request, index) for index, request in enumerate(trace)][len(trace) // 10 :]
    counted = trace[len(trace) // 10 :]
    blocks = sum(len(request.blocks) for request in counted)
    prompt_s = blocks / len(counted) * BLOCK_TOKENS * cluster.token_s
    return {
        "found": sum(hits for _, hits, _ in served) / blocks,
        "busiest": max(Counter(name for name, _, _ in served).values()) / len(served),
        "first token": sum(wait_s for _, _, wait_s in served) / len(served) / prompt_s,
    }


def make_cluster(trace: Sequence[Request], replicas: int, given: argparse.Namespace) -> Cluster:
    blocks = sum(len(request.blocks) for request in trace)
    lasts_s = max(1e-3, (trace[-1].t_s or 0.0) - (trace[0].t_s or 0.0))
    size = max(round(given.caches * blocks / len(trace)), smallest_cache(trace))
    token_s = given.load * replicas * lasts_s / (blocks * BLOCK_TOKENS)
    return Cluster(replicas, size, given.order, token_s, given.exchange)


def rows(
    name: str, recordings: Sequence[Recording], replicas: int, given: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    found: dict[str, list[dict[str, float]]] = {policy: [] for policy in given.policy or USUAL}
    pooled = []
    for seed in given.seeds:
        settings = TraceSettings(given.sessions * replicas, seed, anchor_tokens=given.anchors, requests=given.requests)
        trace = build_trace(recordings, settings)
        cluster = make_cluster(trace, replicas, given)
        for policy, cases in found.items():
            cases.append(play(trace, cluster, policy, seed))
        pooled.append(replay(trace, cluster.blocks * replicas, given.order).hit_rate)
    for policy, cases in found.items():
        means = {key: sum(case[key] for case in cases) / len(cases) for key in cases[0]}
        shares = [case["found"] for case in cases]
        yield {"set": name, "replicas": replicas, "policy": policy, **means,
               "lowest": min(shares), "highest": max(shares)}  # fmt: skip
    yield {"set": name, "replicas": replicas, "policy": "one cache", "found": sum(pooled) / len(pooled),
           "busiest": "-", "first token": "-", "lowest": min(pooled), "highest": max(pooled)}  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = set_parser("routing", __doc__ or "")
    parser.add_argument("--replicas", type=numbers, default=(2, 4), metavar="N,N")
    parser.add_argument("--policy", action="append", choices=list(POLICIES), help=f"default: {', '.join(USUAL)}")
    parser.set_defaults(seeds=(1, 2))
    parser.add_argument("--order", choices=list(ONLINE), default="lru")
    parser.add_argument("--caches", type=float, default=12.0)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--load", type=float, default=0.6)
    parser.add_argument("--anchors", type=token_range, default=None, metavar="LOW-HIGH", help="default: as recorded")
    parser.add_argument("--exchange", type=float, default=1.0, help="twice the actor's own interval")
    given = parser.parse_args(arguments)
    sets = given_sets(given, least_sessions=4)
    cases = ((name, found, n) for name, found in sets.items() for n in given.replicas)
    show((row for name, found, n in cases for row in rows(name, found, n, given)), given.json)


if __name__ == "__main__":
    main()
