"""What the gateway's queue does to time to first token, on the simulated engine and in virtual time.

    python -m benchmarks.gateway_queue flood --policy none --policy fairness
    python -m benchmarks.gateway_queue deadlines --policy none --policy deadline

The desk, its queue and the policies are the gateway's own; the engine is `replicas.simulation` with its cost
model. Each policy gets the same requests, at the same times.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from replicas.simulation.cache import Prompt
from replicas.simulation.engine import CostModel, SimulatedCore, SimulatedRequest
from runtime_actor.messages import OwnerTag, RequestAccepted
from runtime_actor.settings import RuntimeSettings
from serve_app.hints import LEAD, HintReport
from serve_app.http.errors import ApiError
from serve_app.identity import Identity
from serve_app.policies.desk import SLO_HEADER, PolicyDesk
from serve_app.policies.ticket import Ticket

T = TypeVar("T")

COST = CostModel(prefill_s_per_token=0.0002, decode_s_per_token=0.01, max_num_seqs=8, num_blocks=4096)


class VirtualSelector(selectors.DefaultSelector):
    """Instead of waiting it lets the loop's clock jump."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is not None and timeout > 0.0:
            self.now_s += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which sleeping costs no time. Nothing outside it may be waited for."""

    def __init__(self) -> None:
        self.virtual = VirtualSelector()
        super().__init__(self.virtual)

    def time(self) -> float:
        return self.virtual.now_s

    @property
    def now_s(self) -> float:
        return self.virtual.now_s


def run_virtually(main: Coroutine[Any, Any, T], loop: VirtualLoop) -> T:
    with contextlib.closing(loop):
        return loop.run_until_complete(main)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: when, whose, how long, and what it wants. `anchor_tokens` lead its prompt."""

    at_s: float
    tenant: str
    agent: str
    prompt_tokens: int
    output_tokens: int
    anchor_tokens: int = 0
    slo_s: float | None = None
    priority: int = 0


@dataclass(slots=True)
class Outcome:
    """TTFTs in seconds by tenant; what was refused; how many deadlines were met of those asked for."""

    ttft_s: dict[str, list[float]] = field(default_factory=dict)
    refused: int = 0
    with_slo: int = 0
    met: int = 0
    last_s: float = 0.0

    def quantile(self, tenant: str, share: float) -> float:
        values = sorted(self.ttft_s[tenant])
        return values[min(len(values) - 1, int(share * len(values)))]

    def mean(self, tenant: str) -> float:
        return sum(self.ttft_s[tenant]) / len(self.ttft_s[tenant])


class Scene:
    """One gateway in front of one engine."""

    def __init__(self, policies: Sequence[dict[str, Any]], loop: VirtualLoop, cost: CostModel = COST) -> None:
        self._loop = loop
        self._core = SimulatedCore(cost)
        settings = RuntimeSettings.from_dict({"policies": list(policies)}).policies
        self.desk = PolicyDesk(settings, 16, cost.max_num_seqs, 2 * cost.step_tokens, clock=loop)
        self.outcome = Outcome()

    async def play(self, asks: Sequence[Ask]) -> Outcome:
        await asyncio.gather(*(self._one(number, ask) for number, ask in enumerate(asks)))
        self.outcome.last_s = self._loop.now_s
        return self.outcome

    async def _one(self, number: int, ask: Ask) -> None:
        await asyncio.sleep(ask.at_s)
        arrived_s = self._loop.now_s
        identity = Identity(ask.tenant, ask.tenant, f"s{number}", ask.agent, "", "new", "content", True, False)
        fields = {"prompt": [1] * ask.prompt_tokens, "max_tokens": ask.output_tokens}
        headers = {SLO_HEADER: str(ask.slo_s * 1000.0)} if ask.slo_s is not None else {}
        self.outcome.with_slo += ask.slo_s is not None
        try:
            ticket = await self.desk.enter(identity, fields, fields, ask.priority, headers, HintReport())
        except ApiError:
            self.outcome.refused += 1
            return
        try:
            await self._serve(number, ask, arrived_s, ticket)
        finally:
            ticket.leave()

    async def _serve(self, number: int, ask: Ask, arrived_s: float, ticket: Ticket) -> None:
        anchor = [hash(ask.agent) % 30_000] * ask.anchor_tokens
        rest = [number % 30_000 + 1] * (ask.prompt_tokens - ask.anchor_tokens)
        cached: list[int] = []
        request = SimulatedRequest(
            f"r{number}",
            Prompt((*anchor, *rest), ask.tenant),
            ask.output_tokens,
            OwnerTag(ask.tenant, ask.agent, f"s{number}"),
            ask.priority - LEAD if ticket.leads else ask.priority,
            on_prefill=cached.append,
        )
        is_first = True
        async for _ in ticket.stream(self._events(request)):
            if is_first:
                is_first = False
                ticket.has_output()
                ticket.accepted(RequestAccepted("r", ask.prompt_tokens, cached[0]), True)
                ttft_s = self._loop.now_s - arrived_s
                self.outcome.ttft_s.setdefault(ask.tenant, []).append(ttft_s)
                self.outcome.met += ask.slo_s is not None and ttft_s <= ask.slo_s

    async def _events(self, request: SimulatedRequest) -> AsyncIterator[str]:
        async for _ in self._core.generate(request):
            yield "data: {}\n\n"


def flood(seed: int, heavy: bool = True) -> list[Ask]:
    """A tenant with a request every two seconds, beside one that sends 400 in 20 s, far more than is served."""
    rng = random.Random(seed)
    light = [Ask(2.0 * n + rng.random(), "light", "a", 600, 32) for n in range(100)]
    asks = [Ask(20.0 * rng.random(), "heavy", f"h{n % 6}", 800, 64) for n in range(400)] if heavy else []
    return sorted([*light, *asks], key=lambda ask: ask.at_s)


def deadlines(seed: int) -> list[Ask]:
    """Bursts of 24 requests every 6 s, a little more than is served; a third allows 1.5 s, a third 5 s."""
    rng = random.Random(seed)
    slos = (1.5, 5.0, None)
    return sorted(
        (
            Ask(6.0 * burst + rng.random(), "t", f"a{n % 6}", 1200, 48, slo_s=slos[rng.randrange(3)])
            for burst in range(20)
            for n in range(24)
        ),
        key=lambda ask: ask.at_s,
    )


SCENES: dict[str, Callable[[int], list[Ask]]] = {"flood": flood, "deadlines": deadlines}


def play(asks: Sequence[Ask], policies: Sequence[dict[str, Any]]) -> Outcome:
    loop = VirtualLoop()
    return run_virtually(Scene(policies, loop).play(asks), loop)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gateway_queue", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("scene", choices=sorted(SCENES))
    parser.add_argument("--policy", action="append", default=[], help="none, or names joined by +")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    if given.scene == "flood":
        _print("alone", play(flood(given.seed, heavy=False), []))
    for names in given.policy or ["none"]:
        policies = [{"name": name} for name in names.split("+") if name != "none"]
        _print(names, play(SCENES[given.scene](given.seed), policies))


def _print(policy: str, outcome: Outcome) -> None:
    row: dict[str, Any] = {"policy": policy, "refused": outcome.refused, "last_s": round(outcome.last_s, 1)}
    for tenant in sorted(outcome.ttft_s):
        row[f"{tenant}_ttft_mean_s"] = round(outcome.mean(tenant), 3)
        row[f"{tenant}_ttft_p99_s"] = round(outcome.quantile(tenant, 0.99), 3)
    if outcome.with_slo:
        row |= {"with_slo": outcome.with_slo, "met": outcome.met}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
