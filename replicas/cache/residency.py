"""How many cached blocks each agent has, counted from the owners of all blocks."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable

from replicas.cache.block_owner import ANCHOR, BlockOwner
from runtime_actor.messages import MAX_REPORTED_AGENTS

COUNT_INTERVAL_S = 10e-6
"""Least time between two counts of resident blocks, for each block of the pool: a count walks over all
blocks, 30 ns each, so this bounds its share of the engine's time to 0.3 %."""

Residency = dict[str, dict[str, int]]
"""workload -> agent -> blocks."""


def count_residency(owner_of: Iterable[BlockOwner | None]) -> tuple[Residency, Residency]:
    """(all blocks, anchors' blocks alone) of each agent; one that several share counts for each. Of a workload's
    agents the `MAX_REPORTED_AGENTS` with most blocks.

    Linear in the number of blocks, about 30 ns each: counting while blocks come and go would cost more.
    """
    everything: Residency = {}
    anchors: Residency = {}
    for owner, blocks in Counter(owner_of).items():
        if owner is None:
            continue
        for counts in (everything, anchors) if owner.kind == ANCHOR else (everything,):
            for workload, agent in owner.agents:
                of_workload = counts.setdefault(workload, {})
                of_workload[agent] = of_workload.get(agent, 0) + blocks
    return _largest(everything), _largest(anchors)


def _largest(counts: Residency) -> Residency:
    return {
        workload: agents
        if len(agents) <= MAX_REPORTED_AGENTS
        else dict(heapq.nlargest(MAX_REPORTED_AGENTS, agents.items(), key=lambda item: item[1]))
        for workload, agents in counts.items()
    }
