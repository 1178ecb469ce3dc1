"""The whole runtime side of a replica: simulated engine below, the real runtime core above."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

from replicas.clock import Clock
from replicas.exchange import ReplicaName
from replicas.metrics import ReplicaStats
from replicas.requests import CURRENT_REQUEST, RequestLedger
from replicas.settings import ReplicaSettings
from replicas.sidecar import Sidecar
from replicas.simulation.cache import Prompt
from replicas.simulation.engine import CostModel, SimulatedCore, SimulatedRequest
from replicas.simulation.port import SimulatedPort
from runtime_actor.errors import RuntimeUnavailable
from runtime_actor.messages import (
    OWNER_XARG,
    ExchangeReply,
    ExchangeRequest,
    OwnerTag,
    RequestAccepted,
    RequestArrived,
)
from runtime_actor.runtime import AgentRuntime
from runtime_actor.settings import RuntimeSettings
from tests.unit.replica_fakes import FakeClock

COST = CostModel(prefill_s_per_token=0.0, decode_s_per_token=0.0, num_blocks=64, max_model_len=4096)
QUICK = {"exchange": {"min_gap_s": 0.005, "max_gap_s": 0.02, "away_retry_s": 0.01}}


class Replica:
    """A sidecar with its engine; `actor` is None while the actor is away."""

    def __init__(self, actor: AgentRuntime | None, clock: Clock | None = None) -> None:
        self.actor = actor
        self.core = SimulatedCore(COST)
        self.exits: list[str] = []
        self.published = 0
        self.number = 0
        self.sidecar = Sidecar(
            name=ReplicaName("r1", "n1"),
            port_of=self._port,
            call=self._call,
            settings=ReplicaSettings.from_dict(QUICK),
            clock=clock,
            exit_process=self.exits.append,
            publish=self._publish,
        )

    def _port(self, ledger: RequestLedger) -> SimulatedPort:
        return SimulatedPort(self.core)

    def _publish(self, stats: ReplicaStats) -> None:
        self.published += 1

    async def _call(self, request: ExchangeRequest) -> ExchangeReply:
        if self.actor is None:
            raise RuntimeUnavailable("away")
        return self.actor.exchange(ExchangeRequest.from_wire(request.to_wire()))

    async def request(self, ids: list[int], agent: str, session: str) -> list[Any]:
        """All items of a client's response."""
        tag = OwnerTag("w", agent, session)
        self.number += 1
        number = self.number

        async def open_stream() -> AsyncGenerator[Any, None]:
            return stream()

        async def stream() -> AsyncGenerator[Any, None]:
            record = CURRENT_REQUEST.get()
            assert record is not None
            sequence = SimulatedRequest(
                request_id=f"q{number}",
                prompt=Prompt(tuple(ids)),
                max_tokens=2,
                tag=tag,
                on_prefill=lambda cached: self.sidecar.ledger.prompt_seen(
                    record, prompt_tokens=len(ids), cached_tokens=cached
                ),
            )
            async for token in self.core.generate(sequence):
                reason = "length" if token == 2 else None
                self.sidecar.ledger.tokens_seen(record, new_tokens=1, finish_reason=reason)
                yield token

        request = SimpleNamespace(vllm_xargs={OWNER_XARG: tag.encode()})
        return [item async for item in self.sidecar.respond(request, open_stream)]


async def until(condition: Any, seconds: float = 60.0) -> None:
    """Give the loops turns until it holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.001)


def new_actor(epoch: int) -> AgentRuntime:
    return AgentRuntime(RuntimeSettings(table_interval_s=0.0), time.time, epoch)


def arrive(actor: AgentRuntime, number: int, agent: str, session: str, t_s: float) -> None:
    """What the gateway tells the actor of the same request."""
    event = RequestArrived(f"g{number}", t_s, "w", "w", session, agent, agent, "r1")
    actor.exchange(ExchangeRequest("g1", "gateway", 0, 0, [event.to_wire()]))


def test_requests_reports_and_tables_make_the_round() -> None:
    async def scenario() -> None:
        actor = new_actor(1)
        replica = Replica(actor)
        replica.sidecar.start()
        for number in range(12):
            agent, session = ("a-1", "a-2")[number % 2], f"s-{number // 4}"
            arrive(actor, number, agent, session, time.time())
            items = await replica.request([ord(agent[-1])] * 100, agent, session)
            assert RequestAccepted.from_wire(items[0]).prompt_tokens == 100
            assert items[1:] == [1, 2]
        await until(lambda: replica.core.cache.directory.is_active)
        await until(lambda: not len(replica.sidecar.events))
        state = actor.state(None)
        assert sum(agent["requests"] for agent in state["agents"]) == 12
        assert state["replicas"][0]["replica"] == "r1"
        assert replica.sidecar.stats.cached_tokens == 10 * 96
        assert replica.published > 0 and not replica.exits
        await replica.sidecar.stop()
        actor.check_invariants()

    asyncio.run(scenario())


def test_the_actors_absence_costs_no_request_and_no_event() -> None:
    async def scenario() -> None:
        replica = Replica(None)
        replica.sidecar.start()
        for number in range(3):
            items = await replica.request([number] * 64, "a-1", "s-1")
            assert len(items) == 3
        await until(lambda: replica.sidecar.exchange.actor_is_away)
        assert len(replica.sidecar.events) == 3
        replica.actor = new_actor(2)
        await until(lambda: not len(replica.sidecar.events))
        await until(lambda: replica.sidecar.exchange.epoch == 2)
        await replica.sidecar.stop()

    asyncio.run(scenario())


def test_a_last_exchange_that_fails_oddly_holds_up_no_shutdown() -> None:
    async def scenario() -> None:
        replica = Replica(new_actor(1))
        replica.sidecar.start()
        await until(lambda: replica.sidecar.exchange.epoch == 1)

        async def odd(request: ExchangeRequest) -> ExchangeReply:
            raise OSError("broken pipe")

        replica.sidecar.exchange._call = odd
        await replica.sidecar.stop()

    asyncio.run(scenario())


def test_a_dead_engine_ends_the_replica() -> None:
    async def scenario() -> None:
        replica = Replica(None)
        replica.sidecar.start()
        replica.core.die()
        await until(lambda: replica.exits)
        await replica.sidecar.stop()

    asyncio.run(scenario())


def test_a_loop_that_fails_is_started_again() -> None:
    async def scenario() -> None:
        sidecar = Replica(None, FakeClock()).sidecar
        attempts = 0

        async def fail_once() -> None:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                raise RuntimeError("unforeseen")

        await sidecar._keep_running(fail_once)
        assert (attempts, sidecar.stats.loop_failures) == (2, 1)

    asyncio.run(scenario())
