"""The server process's way to its engine process, over vLLM's utility channel."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from vllm.v1.engine.exceptions import EngineDeadError

from replicas.engine.messages import (
    EngineReport,
    EngineTables,
    ProbeAnswer,
    ProbeRequest,
    encode,
    open_answer,
)
from replicas.engine.ray_engine import client_of
from runtime_actor.errors import EngineBusy, EngineGone

EXCHANGE = "agent_runtime_exchange"
PROBE = "agent_runtime_probe"

CALL_TIMEOUT_S = 10.0
"""Longer than the longest engine step (1-2 s on a CPU): calls are answered between steps, and one that is
pending when the engine dies is never answered."""

T = TypeVar("T")


class EngineLink:
    """Calls into the engine behind `server_engine` (Ray's VLLMEngine, or vLLM's AsyncLLM itself).

    Every call raises EngineGone if the engine's process is dead, EngineBusy if there was no answer
    within the timeout, MessageError if the engine refused or the answer makes no sense.
    """

    def __init__(self, server_engine: Any, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._server_engine = server_engine
        self._timeout_s = timeout_s

    async def exchange(self, down: EngineTables) -> EngineReport:
        return await self._call(EXCHANGE, down, EngineReport)

    async def probe(self, asked: ProbeRequest) -> ProbeAnswer:
        return await self._call(PROBE, asked, ProbeAnswer)

    async def check_alive(self) -> None:
        """Raises EngineGone once vLLM knows that its engine process died; asks nothing of the engine."""
        client = self.client
        if client.errored:
            raise EngineGone("the engine process died")

    @property
    def client(self) -> Any:
        """vLLM's AsyncLLM."""
        return client_of(self._server_engine)

    async def _call(self, method: str, message: Any, kind: type[T]) -> T:
        await self.check_alive()
        call = self.client.engine_core.call_utility_async(method, encode(message))
        try:
            # Not wait_for: until Python 3.12 it swallows a cancellation that comes with the answer.
            async with asyncio.timeout(self._timeout_s):
                answer = await call
        except TimeoutError as error:
            await self.check_alive()
            raise EngineBusy(f"{method}: no answer within {self._timeout_s} s") from error
        except EngineDeadError as error:
            raise EngineGone(f"{method}: the engine process died") from error
        return open_answer(answer, kind)
