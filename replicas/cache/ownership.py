"""Whose the cached blocks are, and what they are worth on this replica.

Owners are (agents, shared) for the common prefix of an agent's sessions and (agent, session) for the
rest. The directory hears of each request as it arrives, starts, waits and ends, and of tables and ended
sessions from the runtime; `changed` is the callback of an OwnerFreeQueue. Nothing here is done per
block except `SharedPrefixes.see`, once a request.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from replicas.cache.claim import Claim
from replicas.cache.owner_values import ANCHOR, ANONYMOUS, ENDED, SESSION, BlockOwner, Session, WorkloadValues
from replicas.cache.peer_owners import PeerOwners
from replicas.cache.peers import PEERS, peer_order
from replicas.cache.recency_guard import RecencyGuard
from replicas.cache.sessions import Sessions
from replicas.cache.settings import MAX_PRIORITY_STEPS, ValueSettings
from replicas.cache.shared_owners import SharedOwners
from replicas.cache.sharing import AgentKey, SharedPrefix, SharedPrefixes
from replicas.cache.threads import MAX_THREADS, Thread, Threads
from runtime_actor.messages import WARMUP, OwnerTag
from runtime_actor.tables import OTHER, ReachTables

PROTECTION = 1.0
"""Added to a protected owner's value: forecasts are at most 1, what waits is above 2."""


class OwnerDirectory:
    """Sessions, owners and values of one replica. Not thread-safe: it lives in the engine's loop.

    Args:
        hash_block_tokens: tokens that one block hash stands for.
        cache_blocks: size of the cache, for orders that keep below a share of it.
        guard: measures reach beside stock order, which it goes back to where that pays more; None: never.
        clock: seconds; the same clock as the times in `sessions()`.
    """

    def __init__(
        self,
        settings: ValueSettings | None = None,
        hash_block_tokens: int = 1,
        clock: Callable[[], float] = time.time,
        prefixes: SharedPrefixes | None = None,
        cache_blocks: int = 0,
        guard: RecencyGuard | None = None,
    ) -> None:
        self.settings = settings or ValueSettings()
        self.nobody = BlockOwner(ANONYMOUS, listed=False)
        self._clock = clock
        self._hash_block_tokens = hash_block_tokens
        self._prefixes = prefixes or SharedPrefixes()
        self._workloads: OrderedDict[str, WorkloadValues] = OrderedDict()
        self._shared = SharedOwners(self.settings.max_shared_owners)
        self._sessions = Sessions()
        self.claims: dict[str, Claim] = {}
        """By request id, of requests that wait or run."""
        self.protected: frozenset[str] = frozenset()
        """Tenants whose blocks leave after those of all others (`replicas.cache.floors`)."""
        self._touched: set[BlockOwner] = set()
        self._news: set[BlockOwner] = set()
        self._sequence = 0
        self._next_tick_s = 0.0
        self._next_refresh_s = 0.0
        self._refresh_due = True
        self._quiet = False
        self._cache_blocks = cache_blocks
        self._peers = self._peers_of(self.settings.policy)
        self.guard = guard

    @property
    def _guard(self) -> RecencyGuard | None:
        return self.guard if self.settings.policy == "reach" else None

    def _peers_of(self, policy: str) -> PeerOwners | None:
        return PeerOwners(peer_order(policy, self._cache_blocks)) if policy in PEERS else None

    # --- requests -----------------------------------------------------------------------------------

    def arrive(self, request_id: str, tag: OwnerTag | None, block_hashes: Sequence[bytes], priority: int = 0) -> Claim:
        """A request joined the waiting queue; its owners' blocks are needed next. `priority`: lower is earlier."""
        if tag is None:
            claim = Claim(request_id, None, self.nobody)
        elif tag.request_kind == WARMUP:
            claim = Claim(request_id, tag, self._shared_owner(((tag.workload, tag.agent),)))
            claim.agent = (tag.workload, tag.agent)
        else:
            claim = self._claim(request_id, tag, block_hashes)
            if claim.session is not None and priority <= MAX_PRIORITY_STEPS:
                claim.session.share = self.settings.priority_share ** max(priority, 0)
        claim.block_hashes = block_hashes
        self._sequence += 1
        claim.sequence = self._sequence
        self.claims[request_id] = claim
        self.waits(request_id)
        return claim

    def started(self, request_id: str) -> None:
        """The request runs; its blocks are in use and need no protection."""
        self._set_waiting(request_id, False)
        if (claim := self.claims.get(request_id)) is not None:
            claim.reads_rest = True

    def counted(self, request_id: str, hits: int, most: int) -> bool:
        """A client's request began with `hits` cached blocks of at most `most`; whether `is_active` changed by it."""
        claim = self.claims.get(request_id)
        if claim is None or self._guard is None or not self._guard.started(claim.block_hashes, hits, most):
            return False
        self._revalue_all()
        return True

    def waits(self, request_id: str) -> None:
        """The request waits, for the first time or preempted; warm-ups don't protect anything."""
        self._set_waiting(request_id, True)

    def finished(self, request_id: str, blocks: int | None = None) -> None:
        """`blocks`: how many full ones it has computed or found; None: all."""
        self._set_waiting(request_id, False)
        claim = self.claims.pop(request_id, None)
        if claim is None:
            return
        if self._guard is not None and not claim.is_warmup:
            self._guard.finished(claim.block_hashes[:blocks])
        if claim.session is not None:
            claim.session.active -= 1
            if self._peers is not None:
                self._peers.finished(claim.rest, self._clock())

    def _claim(self, request_id: str, tag: OwnerTag, block_hashes: Sequence[bytes]) -> Claim:
        session = self._session(tag)
        agent = (tag.workload, tag.agent)
        now_s = self._clock()
        session.moved_to(tag.agent, now_s)
        session.workload.arrivals.seen(now_s)
        session.active += 1
        self._quiet = False
        agent_sessions = session.workload.sessions_of.get(tag.agent, 0)
        prefix = self._prefixes.see(block_hashes, agent, f"{tag.workload}/{tag.session}", agent_sessions)
        rest = self._thread_owner(session, tag.agent, block_hashes, prefix)
        session.workload.touch(session)
        session.workload.observe_reuse(tag.agent, rest, prefix)
        claim = Claim(request_id, tag, rest)
        claim.agent = agent
        claim.session = session
        if self._peers is not None:
            claim.rest = self._peers.begin(tag, block_hashes, self._clock())
            claim.reads_rest = False
            return claim
        claim.set_runs(self._runs(prefix))
        claim.reads_rest = prefix.known_blocks > prefix.num_blocks
        claim.moved = prefix.moved
        return claim

    def _runs(self, prefix: SharedPrefix) -> tuple[tuple[int, BlockOwner], ...]:
        size = self._hash_block_tokens
        return tuple((end * size, self._shared_owner(agents)) for end, agents in prefix.runs)

    def _set_waiting(self, request_id: str, waiting: bool) -> None:
        claim = self.claims.get(request_id)
        if claim is None or claim.is_warmup or not (waiting or claim.is_waiting):
            return
        claim.is_waiting = waiting
        for owner in claim.owners:
            if owner is self.nobody:
                continue
            if waiting:
                owner.waiting[claim.sequence] = None
            elif owner.waiting.pop(claim.sequence, 0) == 0:
                continue
            owner.explain()
            self._touched.add(owner)

    # --- owners and sessions ------------------------------------------------------------------------

    def _workload(self, name: str) -> WorkloadValues:
        workload = self._workloads.get(name)
        if workload is None:
            workload = self._workloads[name] = WorkloadValues(name)
            if len(self._workloads) > self.settings.max_workloads:
                self._drop_workload(next(iter(self._workloads.values())))
        self._workloads.move_to_end(name)
        return workload

    def _drop_workload(self, workload: WorkloadValues) -> None:
        for session in list(workload.sessions.values()):
            self._drop(session)
        for owner in self._shared.drop(workload.name):
            self._retire(owner)
        del self._workloads[workload.name]

    def _session(self, tag: OwnerTag) -> Session:
        workload = self._workload(tag.workload)
        session = self._sessions.use(workload, tag.session)
        excess = self._sessions.one_too_many(self.settings.max_sessions, workload, self._workloads.values())
        if excess is not None:
            self._drop(excess)
        return session

    def _thread_owner(self, session: Session, agent: str, hashes: Sequence[bytes], prefix: SharedPrefix) -> BlockOwner:
        """The owner of what follows the shared prefix; a session's agents beyond the cap share one place."""
        workload = session.workload
        known = agent in session.threads
        if not known and len(session.threads) >= self.settings.max_agents_per_session:
            agent = OTHER
            known = agent in session.threads
        threads = session.threads.setdefault(agent, Threads())
        rank = threads.find(hashes, prefix.num_blocks)
        room = workload.observe_thread(agent, rank) if known else MAX_THREADS
        if not known:
            workload.count_session(agent)
        if rank is None:
            thread = Thread(BlockOwner(SESSION, ((workload.name, agent),)))
            if threads.items:
                # Worth as much as the newest so far, until the next refresh.
                thread.owner.worth = threads.items[0].owner.worth
            else:
                self._refresh_due = True
        else:
            thread = threads.items.pop(rank)
        thread.begins(hashes, prefix.num_blocks)
        threads.items.insert(0, thread)
        while len(threads.items) > room:
            self._retire(threads.items.pop().owner)
        return thread.owner

    def _shared_owner(self, agents: tuple[AgentKey, ...]) -> BlockOwner:
        """The owner of blocks that these agents share; at the cap the least recent one ends."""
        owner, ended = self._shared.of(agents)
        if ended is not None:
            self._quiet = False
            self._refresh_due = True
            for workload, _ in agents:
                if workload in self._workloads:
                    self._workloads[workload].anchor_added()
            for oldest in ended:
                self._retire(oldest)
        return owner

    def _drop(self, session: Session) -> None:
        """Forget a session; what it leaves in the cache is worth nothing."""
        self._sessions.remove(session)
        self._quiet, self._refresh_due = False, True
        for owner in session.owners:
            self._retire(owner)

    def _retire(self, owner: BlockOwner) -> None:
        owner.kind = ENDED
        owner.worth = 0.0
        owner.listed = False
        owner.explain()
        self._touched.add(owner)

    # --- what the runtime says ----------------------------------------------------------------------

    def end(self, workload: str, session: str) -> None:
        """A session is over; an unknown one is ignored, a running request of it ends as nobody's."""
        known = self._sessions.get(workload, session)
        if known is not None:
            self._drop(known)
        if self._peers is not None:
            self._peers.ended(workload, session)

    def set_tables(self, tables: ReachTables) -> None:
        self._workload(tables.workload).set_tables(tables)
        self._revalue_all()

    def configure(self, settings: ValueSettings) -> None:
        if settings.policy != self.settings.policy:
            if self._peers is not None:
                self._touched.update(self._peers.retire_all())
            self._peers = self._peers_of(settings.policy)
        self.settings = settings
        self._revalue_all()

    def _revalue_all(self) -> None:
        self._quiet, self._refresh_due = False, True
        self._next_tick_s = 0.0
        self._touched.update(self._shared)
        for session in self._sessions:
            self._touched.update(session.owners)

    # --- values -------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether values say anything; if not, the order is that of the stock queue."""
        settings = self.settings
        if settings.weight <= 0.0 or settings.policy == "lru" or (self._guard and self._guard.prefers_recency):
            return False
        return settings.policy != "reach" or any(w.tables for w in self._workloads.values())

    def changed(self) -> Iterable[BlockOwner]:
        """Owners whose value changed since the last call; values decay in ticks of `tick_s`."""
        self._update()
        if not self._news:
            return ()
        news, self._news = self._news, set()
        return news

    def _update(self) -> None:
        """Bring all values up to date; cheap when nothing happened.

        What waits is known at once, and what is new is valued at once; that a session moved on counts within
        `refresh_s`, so that a busy engine values many moves together.
        """
        now = self._clock()
        if self._peers is not None:
            self._touched.update(self._peers.refresh(now))
        if now >= self._next_tick_s:
            self._next_tick_s = now + self.settings.tick_s
            for workload in self._workloads.values():
                workload.touch_all()
            self._quiet = False
            self._refresh_due = True
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

    def _refresh(self, now: float) -> set[BlockOwner]:
        """Bring worths up to date where something was touched; owners whose worth may differ."""
        owners: set[BlockOwner] = set()
        stale: dict[str, WorkloadValues] = {}
        for name, workload in self._workloads.items():
            if workload.is_stale:
                stale[name] = workload
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
        for workload, agent in agents:
            known = self._workloads.get(workload)
            if known is not None:
                idle *= 1.0 - known.anchor_worth(agent)
        return 1.0 - idle

    def _settle(self, owner: BlockOwner, active: bool) -> bool:
        value = owner.settled(self.settings.weight) if active else 0.0
        if self.protected and owner.kind in (SESSION, ANCHOR) and value <= 1.0:
            value += PROTECTION * any(workload in self.protected for workload, _ in owner.agents)
        if value == owner.value:
            return False
        owner.value = value
        return True

    def protect(self, workloads: frozenset[str]) -> None:
        """From now on these tenants' blocks are above every forecast, and below what waits."""
        changed, self.protected = workloads ^ self.protected, workloads
        for name in changed & self._workloads.keys():
            for session in self._workloads[name].sessions.values():
                self._touched.update(session.owners)
        if changed:
            self._touched.update(self._shared)

    def anchor_value(self, workload: str, agent: str) -> float:
        """Value of the agent's anchor here, with or without resident blocks."""
        self._update()
        if not self.is_active:
            return 0.0
        return self._anchor_worth(((workload, agent),))

    # --- reports ------------------------------------------------------------------------------------

    def sessions(self) -> list[list]:
        """[workload, session, previous agent or "", current agent, t_s], longest silent first."""
        return self._sessions.rows()

    def check_invariants(self) -> None:
        """Raises AssertionError unless caps and cross references hold; for tests."""
        settings = self.settings
        assert len(self._sessions) <= settings.max_sessions
        assert len(self._workloads) <= settings.max_workloads
        assert len(self._shared) <= settings.max_shared_owners
        assert sum(len(w.sessions) for w in self._workloads.values()) == len(self._sessions)
        for session in self._sessions:
            assert len(session.threads) <= settings.max_agents_per_session + 1
            assert all(len(threads.items) <= MAX_THREADS for threads in session.threads.values())
            assert all(owner.listed for owner in session.owners)
