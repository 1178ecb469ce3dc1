"""The scenes of `benchmarks.gateway_queue` on real vLLM: one server, whose policies are switched between cells."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from benchmarks.engine.drive import REQUEST_TIMEOUT_S, Endpoint, HttpSender, Sample, open_loop
from benchmarks.engine.schedule import Prompt
from benchmarks.engine.servers import Machine, RuntimeApi, started
from benchmarks.engine.text import ROOM_FOR_TEMPLATE, ModelText
from benchmarks.queue_scenes import ALONE, SWITCHED, Ask, Outcome, short_burst, short_deadlines, short_flood
from cluster.embedded_model import ensure_embedded_model
from serve_app.policies.desk import SLO_HEADER

BLOCKS = 400
TENANTS = ("heavy", "light")


@dataclass(slots=True)
class Served:
    """A server's tenants, as a client and as its operator. `salt`: what has another one shares no cache."""

    api: RuntimeApi
    endpoints: dict[str, Endpoint]
    text: ModelText
    salt: str
    _cells: int = field(default=0, init=False)

    def switch(self, names: Sequence[str]) -> None:
        """These of the gateway's ordering policies on, the others off. Raises ServerError."""
        for name in SWITCHED:
            self.api.switch(name, name in names)

    def play(self, asks: Sequence[Ask]) -> Outcome:
        """Prompts are new in every cell."""
        self._cells += 1
        samples = asyncio.run(self._drive([self._prompt(n, ask) for n, ask in enumerate(asks)], asks))
        return outcome_of(samples, asks)

    def _prompt(self, number: int, ask: Ask) -> Prompt:
        name = f"{self.salt} {self._cells} {number}"
        system = f"You are {ask.agent} of {ask.tenant}."
        tokens = ask.prompt_tokens - self.text.count(system) - 2 * ROOM_FOR_TEMPLATE
        messages = ({"role": "system", "content": system}, {"role": "user", "content": self.text.filler(name, tokens)})
        headers = ((SLO_HEADER, str(ask.slo_s * 1000.0)),) if ask.slo_s is not None else ()
        return Prompt(number, name, ask.agent, messages, ask.output_tokens, (), 0, None, True, headers)

    async def _drive(self, prompts: Sequence[Prompt], asks: Sequence[Ask]) -> list[Sample]:
        limits = httpx.Limits(max_connections=None)
        async with contextlib.AsyncExitStack() as stack:
            senders: dict[str, HttpSender] = {}
            for tenant, endpoint in self.endpoints.items():
                client = httpx.AsyncClient(
                    base_url=endpoint.url,
                    headers=endpoint.headers,
                    timeout=REQUEST_TIMEOUT_S,
                    limits=limits,
                    trust_env=False,
                )
                senders[tenant] = HttpSender(await stack.enter_async_context(client), endpoint, lambda: None)
            return await open_loop(_ByTenant(senders, asks), prompts, [ask.at_s for ask in asks])


class _ByTenant:
    """Each request with its tenant's key."""

    def __init__(self, senders: dict[str, HttpSender], asks: Sequence[Ask]) -> None:
        self._senders = senders
        self._asks = asks

    def now_s(self) -> float:
        return next(iter(self._senders.values())).now_s()

    async def send(self, prompt: Prompt, due_s: float) -> Sample:
        return await self._senders[self._asks[prompt.position].tenant].send(prompt, due_s)


def outcome_of(samples: Sequence[Sample], asks: Sequence[Ask]) -> Outcome:
    """A refusal (429) is no failure; a failed request is none of a TTFT and meets no deadline."""
    outcome = Outcome()
    for sample in samples:
        ask = asks[sample.position]
        outcome.with_slo += ask.slo_s is not None
        outcome.last_s = max(outcome.last_s, sample.start_s + sample.e2e_s)
        if sample.error:
            outcome.refused += sample.error.startswith("429")
            outcome.failed += not sample.error.startswith("429")
            continue
        outcome.ttft_s.setdefault(ask.tenant, []).append(sample.ttft_s)
        outcome.met += ask.slo_s is not None and sample.ttft_s <= ask.slo_s
    return outcome


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: `rounds` at most, none begun after `minutes`; `policies` in turns, from round to round in the
    other direction."""

    scene: str
    policies: tuple[str, ...]
    rounds: int
    minutes: float
    seed: int


def rounds(served: Served, plan: Plan, clock: Callable[[], float] = time.monotonic) -> Iterator[tuple[str, Outcome]]:
    """Each cell's policy and what came of it. A round's load is scaled to what the server serves just before it: on a
    machine that does other things too that is not the same for long."""
    began_s = clock()
    served.switch(())
    served.play(short_burst())  # what is slow only once
    for number in range(plan.rounds):
        if clock() - began_s > 60.0 * plan.minutes:
            return
        served.switch(())
        served_per_s = len(short_burst()) / served.play(short_burst()).last_s
        seed = plan.seed * 1000 + number
        for policy in plan.policies if number % 2 == 0 else plan.policies[::-1]:
            if policy == ALONE:
                asks = short_flood(served_per_s, seed, heavy=False)
            else:
                asks = (short_flood if plan.scene == "flood" else short_deadlines)(served_per_s, seed)
            served.switch([name for name in policy.split("+") if name in SWITCHED])
            yield policy, served.play(asks)


def together(cells: Sequence[Outcome]) -> Outcome:
    """Of all rounds of one policy; `last_s` is the mean of the rounds'."""
    total = Outcome(last_s=statistics.fmean(cell.last_s for cell in cells))
    for cell in cells:
        for tenant, values in cell.ttft_s.items():
            total.ttft_s.setdefault(tenant, []).extend(values)
        total.refused += cell.refused
        total.failed += cell.failed
        total.with_slo += cell.with_slo
        total.met += cell.met
    return total


@contextmanager
def server(url: str | None, keys: Sequence[str], operator_key: str, replicas: int) -> Iterator[Served]:
    """The one at `url`, or real vLLM with the embedded model on a Ray of its own; both policies are off in the end.

    Raises:
        LaunchError: it didn't start.
        ServerError: it doesn't answer, or doesn't list the policies.
        StopRequested: a signal came.
    """
    with contextlib.ExitStack() as stack:
        if url is None:
            own = stack.enter_context(started(Machine(replicas=replicas, blocks=BLOCKS, with_stock=False)))
            url, keys, operator_key = own.url, own.keys[: len(TENANTS)], own.operator_key
        api = RuntimeApi(url, operator_key)
        model = api.model()
        endpoints = {tenant: Endpoint(url, model, key) for tenant, key in zip(TENANTS, keys, strict=True)}
        served = Served(api, endpoints, ModelText(ensure_embedded_model()), secrets.token_hex(4))
        try:
            yield served
        finally:
            served.switch(())
