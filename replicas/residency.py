"""Cached blocks by workload and agent, counted from the blocks' owners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from replicas.owner_values import ANCHOR, BlockOwner

Residency = dict[str, dict[str, int]]


def residency(owner_of: Iterable[BlockOwner | None]) -> tuple[Residency, Residency]:
    """Cached blocks (all, of anchors alone) as workload -> agent -> blocks.

    A block that several agents share counts for each. Walks all blocks (30 ns each).
    """
    everything: Residency = {}
    anchors: Residency = {}
    for owner, blocks in Counter(owner_of).items():
        if owner is None:
            continue
        for workload, agent in owner.agents:
            for counts in (everything, anchors) if owner.kind == ANCHOR else (everything,):
                of_agent = counts.setdefault(workload, {})
                of_agent[agent] = of_agent.get(agent, 0) + blocks
    return everything, anchors
