"""Our scheduler beside vLLM's own, block for block, and what the value order changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replicas.engine_messages import EngineTables, decode, encode
from runtime_actor.messages import OWNER_XARG, WARMUP
from runtime_actor.tables import OTHER, ReachTables
from tests.serve.scheduler_harness import BLOCK_TOKENS, Engine, text, workload
from vllm.v1.request import RequestStatus


def play(engine: Engine, seed: int, requests: int) -> list[tuple[Any, ...]]:
    for steps, name, prompt, agent, session, max_tokens, aborts in workload(seed, requests):
        for _ in range(steps):
            engine.step()
        engine.add(name, prompt, agent, session, max_tokens=max_tokens)
        if aborts:
            engine.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        engine.log.append(("waiting", len(engine.scheduler.waiting)))
    engine.drain()
    engine.log.append(("order", [b.block_id for b in engine.pool.free_block_queue.get_all_free_blocks()]))
    return engine.log


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize(
    "runtime",
    [{"policy": "lru"}, {"policy": "reach"}, {"policy": "reach", "weight": 0.0}],
    ids=["lru", "reach without tables", "reach with weight 0"],
)
def test_the_order_is_stock_vllms_block_for_block(
    tmp_path: Path, runtime: dict[str, Any], async_scheduling: bool
) -> None:
    stock = Engine(tmp_path, None, async_scheduling=async_scheduling)
    ours = Engine(tmp_path, runtime, async_scheduling=async_scheduling)
    expected, got = play(stock, 1, 400), play(ours, 1, 400)
    evictions = sum(h is not None for kind, what in expected if kind == "get" for _, h in what)
    preempted = ours.scheduler.keeper.exchange(EngineTables(), 0, 0).preemptions
    assert evictions > 500 and preempted > 10
    assert len(expected) == len(got)
    for position, (theirs, mine) in enumerate(zip(expected, got, strict=True)):
        assert theirs == mine, f"differs at {position}"
    assert ours.cached_tokens == stock.cached_tokens
