"""How many cached blocks each agent has, counted from the owners of all blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from replicas.cache.owner_values import ANCHOR, BlockOwner

Residency = dict[str, dict[str, int]]
"""workload -> agent -> blocks."""


def count_residency(owner_of: Iterable[BlockOwner | None]) -> tuple[Residency, Residency]:
    """(all blocks, anchors' blocks alone) of each agent; one that several share counts for each.

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
    return everything, anchors
