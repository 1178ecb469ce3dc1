"""What owners are worth now: which of them are looked at again and when, and whose value changed by it.

What waits is known at once, and what is new is valued at once. That a session moved on counts within `refresh_s`, so
that a busy engine values many moves together; silence is looked at every `tick_s`, of many sessions in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from replicas.cache.block_owner import ANCHOR, SESSION, BlockOwner
from replicas.cache.peer_owners import PeerOwners
from replicas.cache.peers import PEERS, peer_order
from replicas.cache.recency_guard import RecencyGuard
from replicas.cache.sessions import Sessions
from replicas.cache.settings import ValueSettings
from replicas.cache.shared_owners import SharedOwners
from replicas.cache.sharing import AgentKey
from replicas.cache.workload_values import MAX_AT_ONCE, Session, WorkloadValues
from replicas.cache.workloads import Workloads

PROTECTION = 1.0
"""Added to a protected owner's value: forecasts are at most 1, what waits is above 2."""


class Valuation:
    """Values of the owners that a directory has; it says what was touched, and `changed` gives the outcome.

    Args:
        cache_blocks: size of the cache, for orders that keep below a share of it.
        guard: measures reach beside stock order, which it goes back to where that pays more; None: never.
        clock: seconds that only go forward; where they don't, nothing is put off for longer than it would be anyhow.
    """

    def __init__(
        self,
        settings: ValueSettings,
        workloads: Workloads,
        sessions: Sessions,
        shared: SharedOwners,
        *,
        cache_blocks: int,
        guard: RecencyGuard | None,
        clock: Callable[[], float],
    ) -> None:
        self.settings = settings
        self.guard = guard
        self.protected: frozenset[str] = frozenset()
        """Tenants whose blocks leave after those of all others (`replicas.cache.floors`)."""
        self._workloads = workloads
        self._sessions = sessions
        self._shared = shared
        self._cache_blocks = cache_blocks
        self._clock = clock
        self.peers = self._peers_of(settings.policy)
        self._touched: set[BlockOwner] = set()
        self._news: set[BlockOwner] = set()
        self._turns: list[Session] = []
        """Whose silence is still to be looked at in this round, last first."""
        self._next_tick_s = 0.0
        self._next_refresh_s = 0.0
        self._refresh_due = True
        self._quiet = False

    def _peers_of(self, policy: str) -> PeerOwners | None:
        return PeerOwners(peer_order(policy, self._cache_blocks)) if policy in PEERS else None

    # --- what is told -------------------------------------------------------------------------------

    def touch(self, owner: BlockOwner) -> None:
        """Its value may be another by what it is: waited for, or ended."""
        self._touched.add(owner)

    def moved(self) -> None:
        """A session moved on: forecasts are others, within `refresh_s`."""
        self._quiet = False

    def due(self) -> None:
        """Something is new: forecasts are made at the next look."""
        self._quiet, self._refresh_due = False, True

    def tables_came(self, was_active: bool) -> None:
        """Tables of a workload are others; `was_active`: whether values said anything before."""
        if self.is_active != was_active:
            self.all_due()
        else:
            self._next_tick_s = 0.0

    def all_due(self) -> None:
        """Every owner is valued anew."""
        self.due()
        self._next_tick_s = 0.0
        for workload in self._workloads:
            workload.touch_all()
        self._touched.update(self._shared)
        for session in self._sessions:
            self._touched.update(session.owners)

    def configure(self, settings: ValueSettings) -> None:
        if settings.policy != self.settings.policy:
            if self.peers is not None:
                self._touched.update(self.peers.retire_all())
            self.peers = self._peers_of(settings.policy)
        self.settings = settings
        self.all_due()

    def protect(self, workloads: frozenset[str]) -> None:
        """From now on these tenants' blocks are above every forecast, and below what waits."""
        changed, self.protected = workloads ^ self.protected, workloads
        for name in changed:
            workload = self._workloads.get(name)
            if workload is not None:
                for session in workload.sessions.values():
                    self._touched.update(session.owners)
        if changed:
            self._touched.update(self._shared)

    # --- what comes of it ---------------------------------------------------------------------------

    @property
    def measured(self) -> RecencyGuard | None:
        """The guard while what it measures is in force."""
        return self.guard if self.settings.policy == "reach" else None

    @property
    def is_active(self) -> bool:
        """Whether values say anything; if not, the order is that of the stock queue."""
        settings = self.settings
        if settings.weight <= 0.0 or settings.policy == "lru":
            return False
        if self.measured is not None and self.measured.prefers_recency:
            return False
        return settings.policy != "reach" or any(workload.tables for workload in self._workloads)

    def changed(self) -> Iterable[BlockOwner]:
        """Owners whose value changed since the last call."""
        self._update()
        if not self._news:
            return ()
        news, self._news = self._news, set()
        return news

    def anchor_value(self, workload: str, agent: str) -> float:
        """Value of the agent's anchor here, with or without resident blocks."""
        self._update()
        if not self.is_active:
            return 0.0
        return self._anchor_worth(((workload, agent),))

    def _update(self) -> None:
        """Bring all values up to date; cheap when nothing happened."""
        now = self._clock()
        if self.peers is not None:
            self._touched.update(self.peers.refresh(now))
        if not 0.0 < self._next_tick_s - now <= self.settings.tick_s:
            self._next_tick_s = now + self.settings.tick_s
            self._look_at_silence()
        elif self._quiet and not self._touched:
            return
        active = self.is_active
        touched = self._touched
        self._touched = set()
        if not self._quiet and (self._refresh_due or not 0.0 < self._next_refresh_s - now <= self.settings.refresh_s):
            self._refresh_due = False
            self._next_refresh_s = now + self.settings.refresh_s
            self._quiet = True
            if active:
                touched |= self._refresh(now)
        self._news.update(owner for owner in touched if self._settle(owner, active))

    def _look_at_silence(self) -> None:
        """Of all sessions, or of MAX_AT_ONCE in turn where there are more."""
        self.due()
        if len(self._sessions) <= MAX_AT_ONCE:
            for workload in self._workloads:
                workload.touch_all()
            return
        for workload in self._workloads:
            workload.is_stale = True
        if not self._turns:
            self._turns = list(self._sessions)
            for workload in self._workloads:
                workload.sum_anew()
        for session in self._turns[-MAX_AT_ONCE:]:
            session.workload.touch(session)
        del self._turns[-MAX_AT_ONCE:]

    def _refresh(self, now: float) -> set[BlockOwner]:
        """Bring worths up to date where something was touched; owners whose worth may differ."""
        owners: set[BlockOwner] = set()
        stale: dict[str, WorkloadValues] = {}
        for workload in self._workloads:
            if workload.is_stale:
                stale[workload.name] = workload
                owners.update(workload.refresh(now, self.settings))
        for owner in self._shared:
            moved = False
            for name, agent in owner.agents:
                moved = moved or (name in stale and (len(owner.agents) > 1 or stale[name].anchor_moved(agent)))
            if moved:
                owner.worth = self._anchor_worth(owner.agents)
                owners.add(owner)
        return owners

    def _anchor_worth(self, agents: tuple[AgentKey, ...]) -> float:
        if self.settings.policy != "reach":
            return float(self.settings.policy == "anchors")
        idle = 1.0
        for name, agent in agents:
            workload = self._workloads.get(name)
            if workload is not None:
                idle *= 1.0 - workload.anchor_worth(agent)
        return 1.0 - idle

    def _settle(self, owner: BlockOwner, active: bool) -> bool:
        value = owner.settled(self.settings.weight) if active else 0.0
        if self.protected and owner.kind in (SESSION, ANCHOR) and value <= 1.0:
            value += PROTECTION * any(workload in self.protected for workload, _ in owner.agents)
        if value == owner.value:
            return False
        owner.value = value
        return True
