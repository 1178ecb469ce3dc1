"""How often a request finds its adapter loaded, when each recorded agent has one of its own and slots are few.

    python -m benchmarks.adapters [SOURCE] [--set NAME] [--slots 2,4] [--seeds 1,2,3] [--json]

`--sessions` of a set run at a time on one replica. The slots are those of the simulated engine, which loads on demand
and drops the adapter unused for longest; beside it runs the replica's own keeper of adapters on what an actor's policy
says, which hears of a request and answers within `--exchange` seconds. A request is taken as of no length: it needs
its adapter when it comes. The first tenth of the requests doesn't count.

- `stock`: the engine's own order, nothing is loaded ahead.
- `adapters`: as shipped; `horizon 1`, `horizon 4`: the session's next request alone, or the next four.
- without a forecast, ahead all the same: `last used` takes what each session used last for what it needs, `most used`
  each adapter's share of all requests so far.
- `min`: the optimum (Belady) of loading on demand, which knows the future. Loading ahead may pass it.

`loads` are those of a request, on demand and ahead; `wasted`: loaded ahead and gone, or left over, unused.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from benchmarks.arguments import agents_of, given_sets, numbers, set_parser, show
from benchmarks.optimum import optimal_hits
from benchmarks.recorded_actor import RecordedActor
from benchmarks.trace_format import Request
from benchmarks.trace_source import Recording
from benchmarks.traces import TraceSettings, build_trace
from replicas.adapters import AdapterKeeper
from replicas.simulation.adapters import SimulatedAdapters

REPLICA = "r"
Values = Mapping[str, float]


class Source(Protocol):
    """Where the replica hears what adapters are worth."""

    def arrived(self, request: Request, now_s: float) -> None: ...

    def values(self, now_s: float) -> Values: ...


class Shipped:
    """The policy in the actor."""

    def __init__(self, **options: Any) -> None:
        self._actor = RecordedActor([{"name": "adapters", "options": options}])

    def arrived(self, request: Request, now_s: float) -> None:
        self._actor.now_s = now_s
        self._actor.arrived(request, REPLICA, adapter=request.agent)

    def values(self, now_s: float) -> Values:
        self._actor.now_s = now_s
        return self._actor.replica_calls(REPLICA).adapters


class LastUsed:
    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def arrived(self, request: Request, now_s: float) -> None:
        self._last[request.session] = request.agent
        if request.final:
            del self._last[request.session]

    def values(self, now_s: float) -> Values:
        return {agent: count / len(self._last) for agent, count in Counter(self._last.values()).items()}


class MostUsed:
    def __init__(self) -> None:
        self._used: Counter[str] = Counter()

    def arrived(self, request: Request, now_s: float) -> None:
        self._used[request.agent] += 1

    def values(self, now_s: float) -> Values:
        return {agent: count / self._used.total() for agent, count in self._used.items()}


SOURCES: dict[str, Callable[[], Source]] = {
    "adapters": Shipped,
    "horizon 1": lambda: Shipped(horizon=1),
    "horizon 4": lambda: Shipped(horizon=4),
    "last used": LastUsed,
    "most used": MostUsed,
}


def told(trace: Sequence[Request], source: Source, exchange_s: float) -> list[Values]:
    """For each request what the replica heard last before it came."""
    heard: list[Values] = []
    latest: Values = {}
    due_s: float | None = None
    for request in trace:
        now_s = request.t_s or 0.0
        if due_s is not None and due_s <= now_s:
            latest, due_s = source.values(due_s), None
        heard.append(latest)
        source.arrived(request, now_s)
        due_s = now_s + exchange_s if due_s is None else due_s
    return heard


async def play(trace: Sequence[Request], slots: int, heard: Sequence[Values] | None) -> Counter[str]:
    """Of all requests but the first tenth: `requests`, `hits`, `loads`, `ahead`, `wasted`. heard None: stock."""
    port = SimulatedAdapters(slots, 0.0)
    keeper = AdapterKeeper(port, frozenset(request.agent for request in trace))
    counts, ahead = Counter[str](), set[str]()
    for index, request in enumerate(trace):
        if index == len(trace) // 10:
            counts.clear()
            counts["loads"] = -port.loads
        if heard is not None and (index == 0 or heard[index] is not heard[index - 1]):
            held = await port.loaded()
            keeper.take_values(heard[index])
            await keeper.step()
            new = await port.loaded() - held
            counts["ahead"] += len(new)
            ahead |= new
        loaded = await port.loaded()
        counts["requests"] += 1
        counts["hits"] += request.agent in loaded
        counts["wasted"] += len(ahead - loaded)
        ahead &= loaded - {request.agent}
        keeper.request_began(request.agent)
        await port.use(request.agent)
        keeper.request_ended(request.agent)
    counts["loads"] += port.loads
    counts["wasted"] += len(ahead)
    return counts


def optimum(trace: Sequence[Request], slots: int) -> Counter[str]:
    """An adapter is one block of a cache; a second block stands for the request itself, which is never a hit."""
    asked = [Request(r.session, r.agent, (r.agent, f"{i}"), 1, r.final, r.t_s) for i, r in enumerate(trace)]
    first = len(asked) // 10
    hits = optimal_hits(asked, slots + 1, first)[first:]
    return Counter(requests=len(hits), hits=sum(hits), loads=len(hits) - sum(hits))


def rows(
    name: str, found: Sequence[Sequence[Request]], slots: Sequence[int], exchange_s: float
) -> Iterator[dict[str, Any]]:
    heard = {policy: [told(trace, make(), exchange_s) for trace in found] for policy, make in SOURCES.items()}
    for size in slots:
        stock = [asyncio.run(play(trace, size, None)) for trace in found]
        yield _row(name, size, "stock", stock)
        for policy, values in heard.items():
            yield _row(name, size, policy, [asyncio.run(play(t, size, h)) for t, h in zip(found, values, strict=True)])
        yield _row(name, size, "min", [optimum(trace, size) for trace in found])


def _row(name: str, slots: int, policy: str, counted: Sequence[Counter[str]]) -> dict[str, Any]:
    counts: Counter[str] = sum(counted, Counter())
    shares = [c["hits"] / c["requests"] for c in counted]
    return {
        "set": name,
        "slots": slots,
        "policy": policy,
        "found": counts["hits"] / counts["requests"],
        "lowest": min(shares),
        "highest": max(shares),
        "loads a request": counts["loads"] / counts["requests"],
        "loaded ahead": counts["ahead"],
        "wasted": counts["wasted"] / max(1, counts["ahead"]),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = set_parser("adapters", __doc__ or "")
    parser.add_argument("--slots", type=numbers, default=(2, 4), metavar="N,N")
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--exchange", type=float, default=0.5, help="the actor's own interval")
    given = parser.parse_args(arguments)
    show((row for name, found in given_sets(given, least_sessions=2).items() for row in of_set(name, found, given)),
         given.json)  # fmt: skip


def of_set(name: str, recordings: Sequence[Recording], given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """None where all adapters fit."""
    slots = [size for size in given.slots if size < len(agents_of(recordings))]
    if slots:
        settings = (TraceSettings(given.sessions, seed, requests=given.requests) for seed in given.seeds)
        yield from rows(name, [build_trace(recordings, each) for each in settings], slots, given.exchange)


if __name__ == "__main__":
    main()
