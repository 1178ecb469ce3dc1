"""Values of one workload from its reach tables: sessions by where they stand, anchors by all that may need them."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from replicas.cache.arrivals import Arrivals
from replicas.cache.block_owner import MOST_WORTH, STEPS, BlockOwner
from replicas.cache.reuse import Reuse
from replicas.cache.settings import ValueSettings
from replicas.cache.sharing import SharedPrefix
from replicas.cache.threads import ThreadRanks, Threads
from runtime_actor.counts import ANY_VISITS, MAX_VISITS
from runtime_actor.tables import ReachTables

CERTAIN = 0.999_999
PRIOR_GAPS = 2.0
"""Weight of the usual pace against a session's own, in gaps."""

MAX_GAP_RATIO = 10.0
"""One long pause says no more than this about a session's pace."""

MAX_AT_ONCE = 512
"""Sessions valued anew at one look where nothing is new of them: some 10 ms, in which no token is computed."""

MAX_COUNTED_AGENTS = 1024
MAX_VISITED_AGENTS = 64
"""Agents of one session whose requests are counted: tables tell no more apart, and sessions are thousands."""


class Session:
    """Where one session stands. `active` requests of it are waiting or running."""

    __slots__ = (
        "active",
        "current",
        "gap_count",
        "gap_ratio_sum",
        "id",
        "last_s",
        "others",
        "previous",
        "share",
        "term",
        "threads",
        "visits",
        "workload",
    )

    def __init__(self, workload: WorkloadValues, session_id: str) -> None:
        self.workload = workload
        self.id = session_id
        self.previous = ""
        self.current = ""
        self.last_s = 0.0
        self.gap_ratio_sum = 0.0
        self.gap_count = 0
        self.active = 0
        self.share = 1.0
        """What its last request's priority leaves of its values."""
        self.threads: dict[str, Threads[BlockOwner]] = {}
        self.visits: dict[str, int] = {}
        """Requests of each agent, at most MAX_VISITS; agents beyond MAX_VISITED_AGENTS aren't counted."""
        self.others: tuple[tuple[str, ...], float] = ((), 0.0)
        """Its agents without a slot, and what it adds to each one's sum of log(1 - worth)."""
        self.term: NDArray[np.float64] | None = None
        """What this session adds to its workload's sum of log(1 - value)."""

    @property
    def owners(self) -> Iterator[BlockOwner]:
        for threads in self.threads.values():
            for thread in threads.items:
                yield thread.owner

    @property
    def pace(self) -> float:
        """How long its gaps are relative to what is usual after the same agents; 1.0 with none yet."""
        return (PRIOR_GAPS + self.gap_ratio_sum) / (PRIOR_GAPS + self.gap_count)

    def moved_to(self, agent: str, now_s: float) -> None:
        tables = self.workload.tables
        if self.current and tables is not None:
            usual_s = float(tables.gap_s[tables.index(self.current)])
            if 0.0 < usual_s < np.inf:
                ratio = max(0.0, now_s - self.last_s) / usual_s
                self.gap_ratio_sum += min(ratio, MAX_GAP_RATIO)
                self.gap_count += 1
        self.previous = self.current
        self.current = agent
        self.last_s = now_s
        if agent in self.visits or len(self.visits) < MAX_VISITED_AGENTS:
            self.visits[agent] = min(self.visits.get(agent, 0) + 1, MAX_VISITS)

    def standing(self, tables: ReachTables, now_s: float) -> tuple[NDArray[np.float32], float]:
        """(values at its last request [n], factor of its silence since and of its priority)."""
        current = tables.index(self.current)
        previous = tables.index(self.previous) if self.previous else tables.start
        visits = self.visits.get(self.current, ANY_VISITS)
        values, alive = tables.standing(previous, current, visits, self._silence_s(now_s))
        return values, alive * self.share

    def _silence_s(self, now_s: float) -> float:
        """Seconds of silence, on the scale of the table's gaps; none while a request waits or runs.

        A session that takes twice as long as usual for its gaps is as silent after two seconds as a usual
        one after one.
        """
        if self.active > 0:
            return 0.0
        return max(now_s - self.last_s, 0.0) / self.pace


class WorkloadValues:
    """One workload's tables and live sessions on this replica, and the sum that values its anchors.

    An anchor is needed unless no session and no arrival fires its agent: 1 - prod(1 - value), kept as a
    sum of logarithms to which each session contributes a term [n].
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.tables: ReachTables | None = None
        self.sessions: OrderedDict[str, Session] = OrderedDict()
        self.sessions_of: dict[str, int] = {}
        self.arrivals = Arrivals()
        self._reuse: dict[str, Reuse] = {}
        self._reuse_of_all = Reuse()
        self._ranks: dict[str, ThreadRanks] = {}
        self._ranks_of_all = ThreadRanks()
        self.is_stale = True
        self._touched: set[Session] = set()
        self._sum: NDArray[np.float64] | None = None
        self._anchor_worths: list[float] = []
        self._anchor_steps: NDArray[np.float64] | None = None
        """What the anchors' values were rounded to at the last refresh."""
        self._moved: frozenset[str] | None = None
        """Agents with a slot whose anchor's value changed by the last refresh; None: all."""
        self._others: dict[str, float] = {}
        """Agents without a slot that live sessions have used: sum of log(1 - worth); as bounded as those."""

    def count_session(self, agent: str) -> None:
        if agent in self.sessions_of or len(self.sessions_of) < MAX_COUNTED_AGENTS:
            self.sessions_of[agent] = self.sessions_of.get(agent, 0) + 1

    def observe_reuse(self, agent: str, owner: BlockOwner, prefix: SharedPrefix) -> None:
        """A request came for an owner: how much of what it had last time does it begin with again?"""
        start, end = owner.span
        if end > start:
            share = min(max(prefix.known_blocks - start, 0), end - start) / (end - start)
            self._reuse_of_all.observe(share)
            if agent in self._reuse or len(self._reuse) < MAX_COUNTED_AGENTS:
                self._reuse.setdefault(agent, Reuse()).observe(share)
        owner.span = (prefix.num_blocks, prefix.seen_blocks)

    def observe_thread(self, agent: str, rank: int | None) -> int:
        """A session that has threads of this agent went on with one, or began another; how many to keep."""
        self._ranks_of_all.observe(rank)
        if agent in self._ranks or len(self._ranks) < MAX_COUNTED_AGENTS:
            ranks = self._ranks.setdefault(agent, ThreadRanks())
            ranks.observe(rank)
            return ranks.room
        return self._ranks_of_all.room

    def thread_factors(self, agent: str, again: float) -> list[float]:
        """Value of each of an agent's threads, newest first, relative to that of its next request."""
        ranks = self._ranks.get(agent, self._ranks_of_all)
        return ranks.factors(again, self._ranks_of_all)

    def reuse(self, agent: str) -> float:
        """Expected share of a session's own blocks that its next request of `agent` uses."""
        overall = self._reuse_of_all.share(1.0)
        known = self._reuse.get(agent)
        return overall if known is None else known.share(overall)

    def set_tables(self, tables: ReachTables) -> None:
        """Of more sessions than MAX_AT_ONCE each is valued by them when it is next touched, if agents are the same."""
        former, self.tables = self.tables, tables
        if former is not None and former.agents == tables.agents and len(self.sessions) > MAX_AT_ONCE:
            self.is_stale = True
            return
        self._sum = None
        self._anchor_worths = []
        for session in self.sessions.values():
            session.term = None
        self.touch_all()

    def touch(self, session: Session) -> None:
        if self.sessions.get(session.id) is session:
            self._touched.add(session)
            self.is_stale = True

    def touch_all(self) -> None:
        """Also starts the sum anew, so that rounding can't add up."""
        self._touched.update(self.sessions.values())
        self._sum = None
        self._anchor_steps = None
        self._others = {}
        for session in self.sessions.values():
            session.term = None
            session.others = ((), 0.0)
        self.is_stale = True

    def sum_anew(self) -> None:
        """From what each session adds, so that rounding can't add up."""
        terms = [session.term for session in self.sessions.values() if session.term is not None]
        if self._sum is not None and terms:
            self._sum = np.sum(terms, axis=0)

    def remove(self, session: Session) -> None:
        self.sessions.pop(session.id, None)
        self._touched.discard(session)
        if session.term is not None and self._sum is not None:
            self._sum -= session.term
        session.term = None
        self._forget_others(session)
        self.is_stale = True

    def refresh(self, now_s: float, settings: ValueSettings) -> list[BlockOwner]:
        """Worths of the touched sessions' owners and of the anchors; the owners concerned."""
        self.is_stale = False
        touched, self._touched = list(self._touched), set()
        owners = [owner for session in touched for owner in session.owners]
        tables = self.tables
        if tables is None or settings.policy != "reach":
            for owner in owners:
                owner.worth = 0.0
            self._moved = None
            return owners
        if self._sum is None:
            self._sum = np.zeros(len(tables.agents))
        if touched:
            self._revalue(touched, tables, now_s, settings.learn_reuse)
        idle_logs = np.minimum(self._sum + self._new_sessions(settings, now_s), 0.0)
        worths = -np.expm1(idle_logs)
        self._anchor_worths = worths.tolist()
        self._note_moved(worths, settings.weight)
        return owners

    def _note_moved(self, worths: NDArray[np.float64], weight: float) -> None:
        """Rounded as `BlockOwner.settled` does: most sums move by less than what a value shows."""
        assert self.tables is not None
        urgency = -np.log1p(-np.minimum(worths, MOST_WORTH))
        steps = np.rint(urgency / (1.0 + urgency) * weight * STEPS)
        before, self._anchor_steps = self._anchor_steps, steps
        if before is None:
            self._moved = None
        else:
            self._moved = frozenset(self.tables.agents[i] for i in np.flatnonzero(steps != before).tolist())

    def anchor_moved(self, agent: str) -> bool:
        """Whether the last refresh can have changed the value of this agent's anchor."""
        if self._moved is None or self.tables is None or agent in self._moved:
            return True
        return self.tables.agents[self.tables.index(agent)] != agent

    def anchor_added(self) -> None:
        """An anchor that hasn't been valued yet: the next refresh is about all."""
        self._anchor_steps = None
        self.is_stale = True

    def _revalue(self, sessions: list[Session], tables: ReachTables, now_s: float, learn_reuse: bool) -> None:
        assert self._sum is not None
        rows, factors = [], []
        for session in sessions:
            row, factor = session.standing(tables, now_s)
            rows.append(row)
            factors.append(factor)
            if session.term is not None:
                self._sum -= session.term
        values = np.minimum(np.array(rows) * np.array(factors)[:, None], CERTAIN)
        terms = np.log1p(-values)
        self._sum += terms.sum(axis=0)
        of_agents: dict[str, tuple[float, list[float]]] = {}
        for session, term, worths in zip(sessions, terms, values, strict=True):
            session.term = term
            values_of = self._by_agent(session, worths, tables)
            for agent, threads in session.threads.items():
                known = of_agents.get(agent)
                if known is None:
                    known = of_agents[agent] = self._of_agent(agent, tables, learn_reuse)
                reuse, by_rank = known
                worth = values_of[agent] * reuse
                for thread, factor in zip(threads.items, by_rank, strict=False):
                    thread.owner.worth = worth * factor

    def _of_agent(self, agent: str, tables: ReachTables, learn_reuse: bool) -> tuple[float, list[float]]:
        """(what of a session's own blocks its next request uses, value of each thread by rank)."""
        index = tables.index(agent)
        factors = self.thread_factors(agent, float(tables.first[index, index]))
        return (self.reuse(agent) if learn_reuse else 1.0), factors

    def _by_agent(self, session: Session, worths: NDArray[np.float64], tables: ReachTables) -> dict[str, float]:
        """Worth of each agent that the session has used; those without a slot share OTHER's evenly."""
        positions = {agent: tables.index(agent) for agent in session.threads}
        others = [agent for agent, i in positions.items() if tables.agents[i] != agent]
        self._forget_others(session)
        if others:
            share = float(worths[-1]) / len(others)
            session.others = (tuple(others), math.log1p(-share))
            for agent in others:
                self._others[agent] = self._others.get(agent, 0.0) + session.others[1]
        return {agent: float(worths[i]) if tables.agents[i] == agent else share for agent, i in positions.items()}

    def _forget_others(self, session: Session) -> None:
        agents, term = session.others
        for agent in agents:
            left = self._others.get(agent, 0.0) - term
            if left < -1e-9:
                self._others[agent] = left
            else:
                self._others.pop(agent, None)
        session.others = ((), 0.0)

    def _crowd(self, agent: str) -> int:
        """How many agents share the slot of this one: 1 unless it has none of its own."""
        tables = self.tables
        if tables is None or tables.agents[tables.index(agent)] == agent:
            return 1
        return max(1, len(self.sessions_of) - len(tables.agents) + 1)

    def _new_sessions(self, settings: ValueSettings, now_s: float) -> NDArray[np.float64]:
        """log(1 - value) of new sessions [n].

        In one step of every session here, about as many requests arrive as there are sessions; a new
        session is among them with probability q = 1 - exp(-arrivals a request * requests). The first
        such step T is geometric: E[gamma^(T-1)] = q / (1 - (1 - q) gamma) discounts START's row.
        """
        tables = self.tables
        assert tables is not None
        requests = max(len(self.sessions), 1) * self.arrivals.share(now_s)
        rate = tables.arrivals_per_request * settings.arrival_share * requests
        q = -np.expm1(-rate)
        discount = q / (1.0 - (1.0 - q) * tables.gamma)
        return np.log1p(-np.minimum(discount * tables.first[tables.start], CERTAIN).astype(np.float64))

    def anchor_worth(self, agent: str) -> float:
        if self.tables is None or not self._anchor_worths:
            return 0.0
        crowd = self._crowd(agent)
        worth = self._anchor_worths[self.tables.index(agent)] / crowd
        return worth if crowd == 1 else max(worth, -math.expm1(self._others.get(agent, 0.0)))
