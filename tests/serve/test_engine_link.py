"""The channel between the server process and the engine process, both ends without the process between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vllm.v1.engine.core import EngineCore
from vllm.v1.engine.exceptions import EngineDeadError

from replicas.engine.link import EXCHANGE, EngineLink
from replicas.engine.messages import EngineTables, ProbeRequest
from runtime_actor.errors import EngineBusy, EngineGone, MessageError
from tests.serve.scheduler_harness import Engine, text

Call = Callable[[str, bytes], Awaitable[bytes]]


def link(call: Call, errored: bool = False, timeout_s: float = 5.0) -> EngineLink:
    client = SimpleNamespace(errored=errored, engine_core=SimpleNamespace(call_utility_async=call))
    return EngineLink(SimpleNamespace(_engine_client=client), timeout_s)


def into(engine: Engine) -> EngineLink:
    """Straight into what EngineCore would call between two steps."""
    core: Any = SimpleNamespace(scheduler=engine.scheduler, request_block_hasher=engine.hasher)

    async def call(method: str, payload: bytes) -> bytes:
        return getattr(EngineCore, method)(core, payload)

    return link(call)


def ids(tokens: list[int]) -> bytes:
    return np.array(tokens, "<i4").tobytes()


def test_a_probe_says_what_is_there_and_what_the_rest_would_cost(tmp_path: Path) -> None:
    engine = Engine(tmp_path, {"policy": "reach"}, num_blocks=60)
    engine.serve("r", text("anchor", 160), "a", "s", salt="tenant")
    ask = into(engine).probe
    longer = ids(text("anchor", 160) + text("tail", 160))
    answer = asyncio.run(ask(ProbeRequest("w", "a", longer, cache_salt="tenant")))
    assert (answer.resident_tokens, answer.missing_blocks, answer.missing_fits) == (160, 10, True)
    assert answer.victim_value is None and answer.unvalued_blocks == 10
    other = asyncio.run(ask(ProbeRequest("w", "a", longer, cache_salt="another")))
    assert (other.resident_tokens, other.missing_blocks) == (0, 20)
    before = engine.pool.get_num_free_blocks()
    assert asyncio.run(ask(ProbeRequest("w", "a", ids(text("huge", 3200))))).missing_fits is False
    assert engine.pool.get_num_free_blocks() == before


@pytest.mark.parametrize("payload", [b"", b"\xff\xff", b"\x80", ids([-5, 3]), b"\x93\x01\x02\x03"])
@pytest.mark.parametrize("method", ["agent_runtime_exchange", "agent_runtime_probe"])
def test_nonsense_is_answered_and_never_raised_in_the_engine(tmp_path: Path, method: str, payload: bytes) -> None:
    engine = Engine(tmp_path, {"policy": "reach"})
    core: Any = SimpleNamespace(scheduler=engine.scheduler, request_block_hasher=engine.hasher)
    assert isinstance(getattr(EngineCore, method)(core, payload), bytes)
    assert engine.serve("r", text("r", 40), "a", "s") == 0


def test_a_fault_of_the_engine_is_a_message_error() -> None:
    async def call(method: str, payload: bytes) -> bytes:
        return b"\x01KeyError: 'x'"

    with pytest.raises(MessageError, match="KeyError"):
        asyncio.run(link(call).exchange(EngineTables()))


def test_a_call_that_is_never_answered_ends() -> None:
    async def call(method: str, payload: bytes) -> bytes:
        assert method == EXCHANGE
        await asyncio.Event().wait()
        return b""

    with pytest.raises(EngineBusy):
        asyncio.run(link(call, timeout_s=0.05).exchange(EngineTables()))


def test_a_dead_engine_is_gone() -> None:
    async def call(method: str, payload: bytes) -> bytes:
        raise EngineDeadError

    with pytest.raises(EngineGone):
        asyncio.run(link(call).exchange(EngineTables()))
    with pytest.raises(EngineGone):
        asyncio.run(link(call, errored=True).check_alive())
