"""Conversations of one agent within one session, and which of them it goes on with.

An agent that is called for eight files at a time has eight prompts that share its anchor and nothing else.
They are told apart by the first block that isn't shared; how many others came in between when one was gone
on with (its rank) says what each is worth: the one just used is the next again where there is only one, and
the last of all where they take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from replicas.cache.owner import Owner

OwnerT = TypeVar("OwnerT", bound=Owner)

MAX_THREADS = 16
"""Threads of one agent in one session; of more, the one not used for longest is given up once no request uses it."""

FEW_THREADS = 4
"""As many are kept even where an agent was never seen to come back to an older one."""

RARE = 0.01
PRIOR = 2.0
MEMORY = 256.0
"""Observations after which what was seen counts half."""


@dataclass(slots=True)
class Thread(Generic[OwnerT]):
    """`digest` is of the prompt's block at `position`, the first that wasn't shared; empty while all was."""

    owner: OwnerT
    position: int = 0
    digest: bytes = b""

    def begins(self, hashes: Sequence[bytes], shared_blocks: int) -> None:
        """Take the first block that isn't shared for its mark, unless it has one that will do."""
        if shared_blocks < len(hashes) and (not self.digest or self.position < shared_blocks):
            self.position = shared_blocks
            self.digest = bytes(hashes[shared_blocks])


@dataclass(slots=True)
class Threads(Generic[OwnerT]):
    """Of one agent in one session, newest first: a thread's index is its rank."""

    items: list[Thread[OwnerT]] = field(default_factory=list)

    def find(self, hashes: Sequence[bytes], shared_blocks: int) -> int | None:
        """Rank of the thread that this prompt goes on with; None: it begins a new one.

        A thread that began where by now all is shared is taken only if no other fits. A prompt without a
        block of its own goes on with the newest.
        """
        if len(hashes) <= shared_blocks and self.items:
            return 0
        stale = None
        for rank, thread in enumerate(self.items):
            if not thread.digest:
                return rank
            if thread.position < len(hashes) and hashes[thread.position] == thread.digest:
                if thread.position >= shared_blocks:
                    return rank
                stale = rank if stale is None else stale
        return stale


class ThreadRanks:
    """How often an agent's request went on with the thread of each rank, or began a new one."""

    __slots__ = ("_asked", "_counts", "_factors", "_new", "_total", "_version")

    def __init__(self) -> None:
        self._counts = [0.0] * MAX_THREADS
        self._new = 0.0
        self._total = 0.0
        self._version = 0
        self._asked: tuple[float, int, int] | None = None
        self._factors: list[float] = []

    def observe(self, rank: int | None) -> None:
        """Of more threads than are told apart, which only calls at once make, the last ranks are one."""
        if self._total >= MEMORY:
            self._counts = [count / 2.0 for count in self._counts]
            self._new /= 2.0
            self._total /= 2.0
        if rank is None:
            self._new += 1.0
        else:
            self._counts[min(rank, MAX_THREADS - 1)] += 1.0
        self._total += 1.0
        self._version += 1

    @property
    def room(self) -> int:
        """Threads worth remembering."""
        if self._total < MEMORY / 4.0:
            return MAX_THREADS
        used = [rank for rank, count in enumerate(self._counts) if count >= RARE * self._total]
        return min(max(FEW_THREADS, *(rank + 2 for rank in used)), MAX_THREADS) if used else FEW_THREADS

    def shares(self, prior: Sequence[float] | None = None) -> list[float]:
        """P(the agent's next request goes on with the thread of each rank) [MAX_THREADS].

        Before anything was seen, as in `prior`; without one, there is one thread and it goes on.
        """
        total = self._total + PRIOR
        if prior is None:
            prior = (1.0, *(0.0 for _ in range(MAX_THREADS - 1)))
        return [(count + PRIOR * before) / total for count, before in zip(self._counts, prior, strict=True)]

    def factors(self, again: float, pool: ThreadRanks) -> list[float]:
        """Value of a thread by rank, relative to the value of its agent's next request [MAX_THREADS].

        `again` is the discount from one request of the agent to its next one in the session. With p[r] the
        share of rank r, each request of the agent goes on with this thread, leaves it at its rank (one that
        was newer is gone on with), or moves it one down: v[r] = again * (p[r] + stay[r] v[r] + down[r]
        v[r + 1]), and the first of these requests is not discounted here.
        """
        asked = (again, self._version, pool._version)
        if asked != self._asked:
            self._asked = asked
            shares = self.shares(None if self is pool else pool.shares())
            self._factors = _factors(shares, min(again, 0.999))
        return self._factors


def _factors(shares: Sequence[float], again: float) -> list[float]:
    factors = [0.0] * len(shares)
    below = 0.0
    newer = sum(shares)
    for rank in range(len(shares) - 1, -1, -1):
        newer -= shares[rank]
        stay = max(newer, 0.0)
        down = max(1.0 - shares[rank] - stay, 0.0)
        moved = shares[rank] + down * below
        later = again * moved / (1.0 - again * stay)
        factors[rank] = min(moved + stay * later, 1.0)
        below = later
    return factors
