"""The owners of what several sessions share: one for each set of agents that has blocks in common."""

from __future__ import annotations

from collections.abc import Iterator

from replicas.cache.block_owner import ANCHOR, BlockOwner
from replicas.cache.sharing import AgentKey
from runtime_actor.fair_map import FairMap


class SharedOwners:
    """At most `most` owners; tenants with fewer than their part of them lose none to others."""

    def __init__(self, most: int) -> None:
        self._owners: FairMap[tuple[AgentKey, ...], BlockOwner] = FairMap(most)

    def __len__(self) -> int:
        return len(self._owners)

    def __iter__(self) -> Iterator[BlockOwner]:
        return (owner for _, part in self._owners for owner in part.values())

    def of(self, agents: tuple[AgentKey, ...]) -> tuple[BlockOwner, list[BlockOwner] | None]:
        """(owner, those that end because it is new; None: it was known)."""
        known = self._owners.part(agents[0][0])
        owner = known.get(agents)
        ended = None
        if owner is None:
            owner = known[agents] = BlockOwner(ANCHOR, agents)
            ended = self._owners.trim(agents[0][0])
        known.move_to_end(agents)
        return owner, ended

    def drop(self, workload: str) -> list[BlockOwner]:
        """Forget those that the workload was the first to have; returns them."""
        return self._owners.drop(workload)
