"""Owners for the orders of other systems: one a request, of every block that it was the last to use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from replicas.cache.block_owner import SESSION, BlockOwner, worth_of
from replicas.cache.peers import PeerOrder, Use
from runtime_actor.messages import OwnerTag

MAX_USES = 1024
"""Beyond it the blocks of the oldest use are worth nothing."""


class UseOwner(BlockOwner):
    """`rank` is its order's value, taken as it is."""

    __slots__ = ("rank", "use")

    def __init__(self, use: Use) -> None:
        super().__init__(SESSION, ((use.workload, use.agent),))
        self.use = use
        self.rank = 0.0

    @property
    def forecast(self) -> float:
        return worth_of(self.value)

    def settled(self, weight: float) -> float:
        return self.rank if self.listed else 0.0


class PeerOwners:
    """The uses that may have blocks, newest last."""

    def __init__(self, order: PeerOrder) -> None:
        self._order = order
        self._owners: OrderedDict[UseOwner, None] = OrderedDict()
        self._retired: list[UseOwner] = []
        self._is_stale = True

    def begin(self, tag: OwnerTag, blocks: Sequence[bytes], now_s: float) -> UseOwner:
        """A request has come: the owner of all that it will use."""
        owner = UseOwner(self._order.arrived(tag.workload, tag.agent, tag.session, blocks, now_s))
        self._owners[owner] = None
        if len(self._owners) > MAX_USES:
            self._retire(next(iter(self._owners)))
        self._is_stale = True
        return owner

    def finished(self, owner: BlockOwner, now_s: float) -> None:
        if isinstance(owner, UseOwner) and owner in self._owners:
            self._order.finished(owner.use, now_s)
            self._is_stale = True

    def ended(self, workload: str, session: str) -> None:
        self._order.ended(workload, session)
        self._is_stale = True

    def refresh(self, now_s: float) -> Iterable[BlockOwner]:
        """Owners whose rank may have changed since the last call."""
        if not self._is_stale and now_s < self._order.next_change_s():
            return ()
        self._is_stale = False
        self._order.settle(now_s)
        for owner in self._owners:
            owner.rank = self._order.value(owner.use)
        retired, self._retired = self._retired, []
        return [*self._owners, *retired]

    def retire_all(self) -> Iterable[BlockOwner]:
        """Another order takes over: what these own is worth nothing."""
        for owner in list(self._owners):
            self._retire(owner)
        retired, self._retired = self._retired, []
        return retired

    def _retire(self, owner: UseOwner) -> None:
        del self._owners[owner]
        owner.listed = False
        owner.rank = 0.0
        self._retired.append(owner)
