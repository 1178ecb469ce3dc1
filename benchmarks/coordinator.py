"""What one workload costs the actor: memory, an observation, its tables and a forecast."""

from __future__ import annotations

import gc
import json
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from runtime_actor.reach import compute_tables
from runtime_actor.transitions import TransitionModel

STEPS = 6000
SESSION_STEPS = 8
SUCCESSORS = 4
PROMPT_BLOCKS = 64
"""Of 16 tokens: the prompt that one observation is about."""


def walk(agents: int, seed: int = 1) -> list[tuple[str, str, float, bool]]:
    """(session, agent, seconds, last of its session): each agent is followed by one of four."""
    rng = random.Random(seed)
    names = [f"a-{rng.getrandbits(64):016x}" for _ in range(agents)]
    successors = [rng.sample(range(agents), SUCCESSORS) for _ in range(agents)]
    events = []
    for serial in range(STEPS // SESSION_STEPS):
        at = rng.randrange(agents)
        for i in range(SESSION_STEPS):
            events.append((f"s{serial}", names[at], serial + rng.expovariate(0.2), i + 1 == SESSION_STEPS))
            at = rng.choice(successors[at])
    return events


def coordinator_cost(agents: int = 63, repeats: int = 20) -> dict[str, Any]:
    """A full window of a workload with `agents` agents; `memory_bytes` without what can be made again."""
    events = walk(agents)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    model = TransitionModel()
    play(model, events)
    gc.collect()
    memory = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    observe_us = min(_seconds(lambda: play(model, events)) for _ in range(repeats)) / len(events) * 1e6
    session, agent, t_s, _ = events[0]
    model.observe(session, agent, t_s)
    return {
        "mode": "coordinator",
        "agents": agents,
        "memory_bytes": memory,
        "checkpoint_bytes": len(json.dumps(model.state())),
        "tables_bytes": len(compute_tables(model).to_bytes()),
        "observe_us": observe_us,
        "observe_us_a_block": observe_us / PROMPT_BLOCKS,
        "tables_ms": statistics.median(_seconds(lambda: compute_tables(model)) for _ in range(repeats)) * 1e3,
        "forecast_us": statistics.median(_seconds(lambda: model.forecast(session, 1)) for _ in range(repeats)) * 1e6,
    }


def play(model: TransitionModel, events: list[tuple[str, str, float, bool]]) -> None:
    for session, agent, t_s, last in events:
        model.observe(session, agent, t_s)
        if last:
            model.end(session, t_s)


def _seconds(call: Callable[[], object]) -> float:
    started = time.thread_time()
    call()
    return time.thread_time() - started
