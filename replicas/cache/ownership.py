"""Whose the cached blocks are, on this replica.

Owners are (agents, shared) for the common prefix of an agent's sessions and (agent, session) for the
rest. The directory hears of each request as it arrives, starts, waits and ends, and of tables and ended
sessions from the runtime; what owners are worth is found by its `Valuation`, whose `changed` is the callback of
an OwnerFreeQueue. Nothing here is done per block except `SharedPrefixes.see`, once a request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from replicas.cache.block_owner import ANONYMOUS, ENDED, SESSION, BlockOwner
from replicas.cache.claim import Claim
from replicas.cache.recency_guard import RecencyGuard
from replicas.cache.sessions import Sessions
from replicas.cache.settings import MAX_PRIORITY_STEPS, ValueSettings
from replicas.cache.shared_owners import SharedOwners
from replicas.cache.sharing import AgentKey, SharedPrefix, SharedPrefixes
from replicas.cache.threads import MAX_THREADS, Thread, Threads
from replicas.cache.valuation import Valuation
from replicas.cache.workload_values import Session, WorkloadValues
from replicas.cache.workloads import Workloads
from runtime_actor.messages import WARMUP, OwnerTag
from runtime_actor.tables import OTHER, ReachTables


class OwnerDirectory:
    """Sessions and owners of one replica. Not thread-safe: it lives in the engine's loop.

    Args:
        hash_block_tokens: tokens that one block hash stands for.
        cache_blocks, guard: as in Valuation.
        clock: seconds of any clock that only goes forward.
    """

    def __init__(
        self,
        settings: ValueSettings | None = None,
        hash_block_tokens: int = 1,
        clock: Callable[[], float] = time.monotonic,
        prefixes: SharedPrefixes | None = None,
        cache_blocks: int = 0,
        guard: RecencyGuard | None = None,
    ) -> None:
        settings = settings or ValueSettings()
        self.nobody = BlockOwner(ANONYMOUS, listed=False)
        self.claims: dict[str, Claim] = {}
        """By request id, of requests that wait or run."""
        self._clock = clock
        self._hash_block_tokens = hash_block_tokens
        self._prefixes = prefixes or SharedPrefixes()
        self._workloads = Workloads(settings.max_workloads)
        self._shared = SharedOwners(settings.max_shared_owners)
        self._sessions = Sessions()
        self.valuation = Valuation(
            settings,
            self._workloads,
            self._sessions,
            self._shared,
            cache_blocks=cache_blocks,
            guard=guard,
            clock=clock,
        )
        self._sequence = 0

    @property
    def settings(self) -> ValueSettings:
        return self.valuation.settings

    # --- requests -----------------------------------------------------------------------------------

    def arrive(
        self,
        request_id: str,
        tag: OwnerTag | None,
        block_hashes: Sequence[bytes],
        priority: int = 0,
        first: Claim | None = None,
    ) -> Claim:
        """A request joined the waiting queue; its owners' blocks are needed next.

        `priority`: lower is earlier. `first`: of the first choice, if this is another one of the same client's request.
        """
        if tag is None:
            claim = Claim(request_id, None, self.nobody)
        elif tag.request_kind == WARMUP:
            claim = Claim(request_id, tag, self._shared_owner(((tag.workload, tag.agent),)))
            claim.agent = (tag.workload, tag.agent)
        elif first is not None and first.tag == tag:
            claim = first.of_another_choice(request_id)
        else:
            claim = self._claim(request_id, tag, block_hashes)
            if claim.session is not None and priority <= MAX_PRIORITY_STEPS:
                claim.session.share = self.valuation.settings.priority_share ** max(priority, 0)
        claim.block_hashes = block_hashes
        claim.rest.in_use += 1
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
        guard = self.valuation.measured
        if claim is None or guard is None or not guard.started(claim.block_hashes, hits, most):
            return False
        self.valuation.all_due()
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
        claim.rest.in_use -= 1
        guard, peers = self.valuation.measured, self.valuation.peers
        if guard is not None and not claim.is_warmup:
            guard.finished(claim.block_hashes[:blocks])
        if claim.session is not None:
            claim.session.active -= 1
            self._trim_threads(claim.session, claim.rest)
            if peers is not None:
                peers.finished(claim.rest, self._clock())

    def _claim(self, request_id: str, tag: OwnerTag, block_hashes: Sequence[bytes]) -> Claim:
        session = self._session(tag)
        agent = (tag.workload, tag.agent)
        now_s = self._clock()
        session.moved_to(tag.agent, now_s)
        session.workload.arrivals.seen(now_s)
        session.active += 1
        self.valuation.moved()
        agent_sessions = session.workload.sessions_of.get(tag.agent, 0)
        prefix = self._prefixes.see(block_hashes, agent, f"{tag.workload}/{tag.session}", agent_sessions)
        rest = self._thread_owner(session, tag.agent, block_hashes, prefix)
        session.workload.touch(session)
        session.workload.observe_reuse(tag.agent, rest, prefix)
        claim = Claim(request_id, tag, rest)
        claim.agent = agent
        claim.session = session
        if self.valuation.peers is not None:
            claim.rest = self.valuation.peers.begin(tag, block_hashes, now_s)
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
            elif claim.sequence in owner.waiting:
                del owner.waiting[claim.sequence]
            else:
                continue
            owner.explain()
            self.valuation.touch(owner)

    # --- owners and sessions ------------------------------------------------------------------------

    def _forget(self, workload: WorkloadValues | None) -> None:
        if workload is None:
            return
        for session in list(workload.sessions.values()):
            self._drop(session)
        for owner in self._shared.drop(workload.name):
            self._retire(owner)

    def _session(self, tag: OwnerTag) -> Session:
        workload, gone = self._workloads.use(tag.workload)
        self._forget(gone)
        session = self._sessions.use(workload, tag.session)
        excess = self._sessions.one_too_many(self.valuation.settings.max_sessions, workload, self._workloads)
        if excess is not None:
            self._drop(excess)
        return session

    def _thread_owner(self, session: Session, agent: str, hashes: Sequence[bytes], prefix: SharedPrefix) -> BlockOwner:
        """The owner of what follows the shared prefix; a session's agents beyond the cap share one place."""
        workload = session.workload
        known = agent in session.threads
        if not known and len(session.threads) >= self.valuation.settings.max_agents_per_session:
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
                self.valuation.due()
        else:
            thread = threads.items.pop(rank)
        thread.begins(hashes, prefix.num_blocks)
        threads.items.insert(0, thread)
        if len(threads.items) > room:
            self._give_up(threads, len(threads.items) - room)
        return thread.owner

    def _trim_threads(self, session: Session, owner: BlockOwner) -> None:
        """A request of this owner ended: of calls at once there may have been more than are remembered."""
        for _, agent in owner.agents:
            threads = session.threads.get(agent)
            if threads is not None and len(threads.items) > MAX_THREADS:
                self._give_up(threads, len(threads.items) - MAX_THREADS)

    def _give_up(self, threads: Threads[BlockOwner], count: int) -> None:
        """Those not used for longest, but none that a request waits or runs for: its blocks are needed."""
        idle = [thread for thread in threads.items[1:] if not thread.owner.in_use]
        for thread in idle[-count:]:
            threads.items.remove(thread)
            self._retire(thread.owner)

    def _shared_owner(self, agents: tuple[AgentKey, ...]) -> BlockOwner:
        """The owner of blocks that these agents share; at the cap the least recent one ends."""
        owner, ended = self._shared.of(agents)
        if ended is not None:
            self.valuation.due()
            for name, _ in agents:
                workload = self._workloads.get(name)
                if workload is not None:
                    workload.anchor_added()
            for oldest in ended:
                self._retire(oldest)
        return owner

    def _drop(self, session: Session) -> None:
        """Forget a session; what it leaves in the cache is worth nothing."""
        self._sessions.remove(session)
        self.valuation.due()
        for owner in session.owners:
            self._retire(owner)

    def _retire(self, owner: BlockOwner) -> None:
        owner.kind = ENDED
        owner.worth = 0.0
        owner.listed = False
        owner.explain()
        self.valuation.touch(owner)

    # --- what the runtime says ----------------------------------------------------------------------

    def end(self, workload: str, session: str) -> None:
        """A session is over; an unknown one is ignored, a running request of it ends as nobody's."""
        known = self._sessions.get(workload, session)
        if known is not None:
            self._drop(known)
        if self.valuation.peers is not None:
            self.valuation.peers.ended(workload, session)

    def set_tables(self, tables: ReachTables) -> None:
        was_active = self.valuation.is_active
        workload, gone = self._workloads.for_tables(tables.workload)
        self._forget(gone)
        if workload is not None:
            workload.set_tables(tables)
            self.valuation.tables_came(was_active)

    def configure(self, settings: ValueSettings) -> None:
        self.valuation.configure(settings)

    # --- what they are worth ------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        return self.valuation.is_active

    def changed(self) -> Iterable[BlockOwner]:
        return self.valuation.changed()

    def anchor_value(self, workload: str, agent: str) -> float:
        return self.valuation.anchor_value(workload, agent)

    # --- reports ------------------------------------------------------------------------------------

    def sessions(self, wall_s: float) -> list[list]:
        """[workload, session, previous agent or "", current agent, t_s], longest silent first; `wall_s` is now on the
        clock that t_s is to be of."""
        return self._sessions.rows(wall_s - self._clock())

    def check_invariants(self) -> None:
        """Raises AssertionError unless caps and cross references hold; for tests."""
        settings = self.settings
        assert len(self._sessions) <= settings.max_sessions
        assert len(self._workloads) <= settings.max_workloads
        assert len(self._shared) <= settings.max_shared_owners
        assert sum(len(workload.sessions) for workload in self._workloads) == len(self._sessions)
        for session in self._sessions:
            assert len(session.threads) <= settings.max_agents_per_session + 1
            for threads in session.threads.values():
                assert sum(not thread.owner.in_use for thread in threads.items) <= MAX_THREADS
            assert all(owner.listed for owner in session.owners)
