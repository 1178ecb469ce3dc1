"""Where conversations stand: for each history that a served prompt had, the sessions that had it (pure, bounded)."""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

MAX_ENDS = 32_768
"""Ends remembered; the least recently used is forgotten, its conversation then counts as new."""

MAX_SESSIONS_PER_END = 256
"""Sessions that stand at the same history; the oldest is forgotten first."""

MAX_BRANCHES = 64
"""Requests that may go on from one end: what more of them begin with is a text that many clients share."""


@dataclass(slots=True)
class End:
    """The end of one accepted prompt; a later one has a higher number.

    `at_s`: when it was accepted, and later when it was answered. `opens`: it was its session's first. `claims` are on
    their way, `branches` have gone on from here; `followed_by`: key of the history with the message that the first of
    them had next. `answer`: the turn that it was answered with (see `turns.py`) and `answered_number`, counted with
    the ends', once it was; `is_cut`: its answer was cut.
    """

    session: str
    agent: str
    number: int
    at_s: float
    opens: bool = False
    claims: int = 0
    branches: int = 0
    followed_by: int | None = None
    answer: int | None = None
    answered_number: int | None = None
    is_cut: bool = False

    @property
    def is_open(self) -> bool:
        return self.claims == 0 and self.branches == 0


class Ends:
    """History hash -> ends, each tenant's apart; tenants share the memory fairly, as in `FairMap`, end by end."""

    def __init__(self, cap: int = MAX_ENDS) -> None:
        self.cap = cap
        self._parts: dict[str, OrderedDict[int, list[End]]] = {}
        self._counts: Counter[str] = Counter()
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def part(self, tenant: str) -> Mapping[int, list[End]]:
        return self._parts.get(tenant) or {}

    def use(self, tenant: str, key: int) -> None:
        """It is the last to be forgotten now, if it is known."""
        if key in self.part(tenant):
            self._parts[tenant].move_to_end(key)

    def add(self, tenant: str, key: int, end: End) -> None:
        part = self._parts.get(tenant)
        if part is None:
            part = self._parts[tenant] = OrderedDict()
        there = part.get(key)
        if there is None:
            part[key] = [end]
        else:
            there.append(end)
            part.move_to_end(key)
        self._counts[tenant] += 1
        self._total += 1
        if len(part[key]) > MAX_SESSIONS_PER_END:
            self._drop_oldest(tenant, key)
        while self._total > self.cap:
            loser = self._loser(tenant)
            self._drop_oldest(loser, next(iter(self._parts[loser])))

    def _loser(self, tenant: str) -> str:
        """Who adds, beyond an equal share; else who has most."""
        if self._counts[tenant] > max(1, self.cap // len(self._counts)):
            return tenant
        return max(self._counts, key=self._counts.__getitem__)

    def _drop_oldest(self, tenant: str, key: int) -> None:
        part = self._parts[tenant]
        part[key].pop(0)
        if not part[key]:
            del part[key]
        self._counts[tenant] -= 1
        self._total -= 1
        if not self._counts[tenant]:
            del self._counts[tenant], self._parts[tenant]
