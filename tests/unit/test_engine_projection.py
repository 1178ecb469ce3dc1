"""The projection: virtual time, and an engine whose costs are known."""

from __future__ import annotations

import asyncio
import time

import pytest

from benchmarks.engine.project import VirtualLoop, project
from benchmarks.engine.schedule import Prompt, Schedule
from replicas.simulation.engine import CostModel

COST = CostModel(prefill_s_per_token=0.01, decode_s_per_token=1.0, num_blocks=64, block_size=4)


def prompts(count: int, tokens: int = 40, shared: int = 0) -> Schedule:
    found = []
    for position in range(count):
        ids = tuple(range(shared)) + tuple(1000 * (position + 1) + k for k in range(tokens - shared))
        found.append(Prompt(position, f"s{position}", "a", (), 2, ids, shared, None, True))
    return Schedule(tuple(found), 0)


def test_virtual_hours_take_no_time() -> None:
    loop = VirtualLoop()
    started_s = time.perf_counter()
    loop.run_until_complete(asyncio.sleep(7200.0))
    assert loop.time() >= 7200.0
    assert time.perf_counter() - started_s < 5.0
    loop.close()


def test_one_request_costs_what_the_model_says() -> None:
    (sample,) = project(prompts(1), COST, "lru", 1)
    assert sample.ttft_s == pytest.approx(40 * 0.01 + 1.0)
    assert sample.e2e_s == pytest.approx(40 * 0.01 + 2.0)
    assert (sample.prompt_tokens, sample.cached_tokens, sample.completion_tokens) == (40, 0, 2)


def test_what_is_shared_is_computed_once_and_prefills_wait_for_each_other() -> None:
    one_by_one = project(prompts(3, shared=32), COST, "lru", 1)
    assert [sample.cached_tokens for sample in one_by_one] == [0, 32, 32]
    assert one_by_one[1].ttft_s == pytest.approx(8 * 0.01 + 1.0)
    together = project(prompts(2), COST, "lru", 2)
    assert together[1].ttft_s == pytest.approx(2 * 40 * 0.01 + 1.0)


def test_an_open_loop_counts_from_when_a_request_was_due() -> None:
    samples = project(prompts(2), COST, "reach", 1, times=[0.0, 0.1])
    assert [sample.start_s for sample in samples] == [0.0, 0.1]
    assert samples[1].ttft_s == pytest.approx(0.4 + 0.4 - 0.1 + 1.0)
