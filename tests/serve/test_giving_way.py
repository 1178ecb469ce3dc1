"""A request that is to lead, in vLLM's real scheduler: prompts under way give it their part of a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.serve.scheduler_harness import Engine, text

RUNTIME = {"policy": "lru"}


def engine(folder: Path, runtime: dict[str, Any] | None = RUNTIME, **options: Any) -> Engine:
    return Engine(folder, runtime, **{"policy": "priority", "num_blocks": 400, **options})


def shares(engine: Engine) -> dict[str, int]:
    """Tokens of each request in the next step."""
    output = engine.scheduler.schedule()
    engine.scheduler.update_from_output(output, engine.answer(output))
    return dict(output.num_scheduled_tokens)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_long_prompt_under_way_gives_way_and_goes_on(tmp_path: Path, async_scheduling: bool) -> None:
    """256 tokens a step: the long prompt has computed one step of its four when the other one comes."""
    ours = engine(tmp_path, async_scheduling=async_scheduling)
    ours.add("long", text("long", 1000), max_tokens=2)
    assert shares(ours) == {"long": 256}
    ours.add("lead", text("lead", 300), max_tokens=2, priority=-1)
    assert shares(ours) == {"lead": 256}
    assert shares(ours) == {"lead": 44, "long": 212}
    ours.drain()
    assert ours.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 399


@pytest.mark.parametrize("priority", [0, 3])
def test_without_one_that_leads_it_is_vllms_own_scheduling(tmp_path: Path, priority: int) -> None:
    seen = []
    for runtime in (None, RUNTIME):
        made = engine(tmp_path, runtime)
        made.add("long", text("long", 1000), max_tokens=2, priority=5)
        steps = [shares(made)]
        made.add("other", text("lead", 300), max_tokens=2, priority=priority)
        steps += [shares(made) for _ in range(8)]
        seen.append(steps)
    assert seen[0] == seen[1] and seen[0][1] == {"long": 256}


def test_one_that_could_not_begin_holds_nothing_up(tmp_path: Path) -> None:
    """Neither for want of blocks nor of a place: the prompt under way goes on, and the other one follows."""
    full = engine(tmp_path, num_blocks=70)
    full.add("long", text("long", 1000), max_tokens=2)
    assert shares(full) == {"long": 256}
    full.add("lead", text("lead", 900), max_tokens=2, priority=-1)
    assert shares(full) == {"long": 256}
    full.drain()
    crowded = engine(tmp_path, max_num_seqs=2)
    for name in ("long", "short"):
        crowded.add(name, text(name, 1000 if name == "long" else 20), max_tokens=50)
    shares(crowded)
    shares(crowded)
    crowded.add("lead", text("lead", 300), max_tokens=2, priority=-1)
    crowded.drain()


def test_one_that_can_not_begin_for_another_reason_costs_one_step(tmp_path: Path) -> None:
    made = engine(tmp_path)
    made.add("long", text("long", 1000), max_tokens=2)
    shares(made)
    manager = made.scheduler.kv_cache_manager
    allocate = manager.allocate_slots
    manager.allocate_slots = (
        lambda request, *a, **k: None if request.request_id == "lead" else allocate(request, *a, **k)
    )
    made.add("lead", text("lead", 300), max_tokens=2, priority=-1)
    assert [shares(made) for _ in range(4)] == [{}, {"long": 256}, {"long": 256}, {"long": 232}]
    manager.allocate_slots = allocate
    made.drain()


@pytest.mark.parametrize("seed", range(3))
def test_a_mixed_load_with_leading_requests_comes_to_its_end(tmp_path: Path, seed: int) -> None:
    """More than the blocks hold at once, so that requests are preempted too; places are never exceeded."""
    made = engine(tmp_path, num_blocks=120, seed=seed, max_num_seqs=4)
    for number in range(120):
        length = made.rng.choice((20, 90, 400, 900))
        made.add(f"r{number}", text(f"{seed} {number}", length), max_tokens=8, priority=made.rng.choice((-1, 0, 0, 2)))
        for _ in range(made.rng.randrange(4)):
            shares(made)
            assert len(made.scheduler.running) <= 4
    made.drain()
    assert made.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 119
