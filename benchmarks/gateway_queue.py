"""What the gateway's queue does to time to first token, on the simulated engine in virtual time or on real vLLM.

    python -m benchmarks.gateway_queue flood --policy none --policy fairness [--engine vllm]
    python -m benchmarks.gateway_queue deadlines --policy none --policy deadline [--engine vllm]

Simulated, the desk, its queue and the policies are the gateway's own; the engine is `replicas.simulation` with its cost
model. On vLLM a whole server is started (or `--url` names one), with the embedded model; policies are switched
in it and take turns for some rounds, so that what else the machine does meets all alike, and the load is scaled to what
the server serves. Each policy gets the same requests, at the same times.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from benchmarks.queue_scenes import ALONE, NONE, SWITCHED, Ask, Outcome, deadlines, flood
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


SCENES: dict[str, Callable[[int], list[Ask]]] = {"flood": flood, "deadlines": deadlines}


def play(asks: Sequence[Ask], policies: Sequence[dict[str, Any]]) -> Outcome:
    loop = VirtualLoop()
    return run_virtually(Scene(policies, loop).play(asks), loop)


def main(arguments: list[str] | None = None) -> None:
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.engine == "vllm":
        wrong = {name for names in given.policy for name in names.split("+")} - {NONE, *SWITCHED}
        if wrong:
            parser.error(
                f"--policy: {', '.join(sorted(wrong))}; with --engine vllm allowed: {NONE}, {', '.join(SWITCHED)}"
            )
        _on_vllm(given)
        return
    if given.scene == "flood":
        _print(ALONE, play(flood(given.seed, heavy=False), []))
    for names in given.policy or [NONE]:
        policies = [{"name": name} for name in names.split("+") if name != NONE]
        _print(names, play(SCENES[given.scene](given.seed), policies))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gateway_queue", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("scene", choices=sorted(SCENES))
    parser.add_argument("--policy", action="append", default=[], help="none, or names joined by +")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=("simulated", "vllm"), default="simulated")
    served = parser.add_argument_group("with --engine vllm")
    served.add_argument("--rounds", type=int, default=5, help="how often the policies take turns")
    served.add_argument("--minutes", type=float, default=8.0, help="no round begins later")
    served.add_argument("--replicas", type=int, default=1)
    served.add_argument("--url", help="a server that runs, instead of one of its own")
    served.add_argument("--keys", nargs=2, default=("", ""), help="of the heavy tenant and of the light one")
    served.add_argument("--operator-key", default="")
    return parser


def _on_vllm(given: argparse.Namespace) -> None:
    """A line a cell, and then one for all cells of a policy."""
    # Here, since the simulated engine needs no Ray.
    from benchmarks import queue_served  # noqa: PLC0415

    policies = ((ALONE,) if given.scene == "flood" else ()) + tuple(given.policy or [NONE])
    plan = queue_served.Plan(given.scene, policies, given.rounds, given.minutes, given.seed)
    cells: dict[str, list[Outcome]] = {}
    with queue_served.server(given.url, given.keys, given.operator_key, given.replicas) as served:
        for policy, outcome in queue_served.rounds(served, plan):
            cells.setdefault(policy, []).append(outcome)
            _print(policy, outcome, round=len(cells[policy]))
    for policy, outcomes in cells.items():
        _print(policy, queue_served.together(outcomes), rounds=len(outcomes))


def _print(policy: str, outcome: Outcome, **about: int) -> None:
    row: dict[str, Any] = {"policy": policy, **about, "refused": outcome.refused, "last_s": round(outcome.last_s, 1)}
    for tenant in sorted(outcome.ttft_s):
        row[f"{tenant}_ttft_mean_s"] = round(outcome.mean(tenant), 3)
        row[f"{tenant}_ttft_p99_s"] = round(outcome.quantile(tenant, 0.99), 3)
    if outcome.with_slo:
        row |= {"with_slo": outcome.with_slo, "met": outcome.met}
    if outcome.failed:
        row["failed"] = outcome.failed
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
