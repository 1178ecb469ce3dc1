"""What running tool calls ahead has cost and brought, by tenant, and whether one more may be run.

Each call run ahead is open until somebody asked for it (used) or its result went unasked (wasted); one that failed
is wasted too.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, fields

TRIALS = 16
"""So many may be wasted or open, whatever their share: nothing can be said of fewer."""
FORGIVE_S = 3600.0
"""After so long half of what is settled is forgotten: a tenant that was stopped may try again."""
MAX_TENANTS = 4096
"""Tenants with an account; beyond it one with nothing open starts afresh, longest idle first."""


@dataclass(frozen=True, slots=True)
class AheadBounds:
    """Of one tenant: runs at a time, and the share of all runs that may be wasted or open beside TRIALS."""

    at_once: int
    max_waste: float


@dataclass(slots=True)
class Account:
    """`open` has both what runs (`running`) and what is kept and not asked for yet."""

    used: int = 0
    wasted: int = 0
    open: int = 0
    running: int = 0
    since_s: float = 0.0

    def refusal(self, bounds: AheadBounds) -> str | None:
        """Why no more may be run now: at_once | waste. None: one may.

        With it `wasted + open <= TRIALS + max_waste * (used + wasted + open)` holds after each start."""
        if self.running >= bounds.at_once:
            return "at_once"
        uncertain = self.wasted + self.open + 1
        return "waste" if uncertain > TRIALS + bounds.max_waste * (self.used + uncertain) else None


class AheadAccounts:
    """Accounts of all tenants, and `counts` of them together."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._accounts: OrderedDict[str, Account] = OrderedDict()

    def get(self, tenant: str) -> Account | None:
        return self._accounts.get(tenant)

    def opened(self, tenant: str, now_s: float) -> Account | None:
        """The tenant's account, made if need be; None if there are too many with something open."""
        account = self._accounts.get(tenant)
        if account is None:
            if len(self._accounts) >= MAX_TENANTS:
                idle = next((name for name, other in self._accounts.items() if not other.open), None)
                if idle is None:
                    return None
                del self._accounts[idle]
            account = self._accounts[tenant] = Account(since_s=now_s)
        self._accounts.move_to_end(tenant)
        return account

    def start(self, tenant: str) -> None:
        account = self._accounts[tenant]
        account.running += 1
        account.open += 1
        self.counts["ahead_issued"] += 1

    def landed(self, tenant: str) -> None:
        """It runs no longer; what became of it is told by `used` or `wasted`, now or later."""
        self._accounts[tenant].running -= 1

    def used(self, tenant: str) -> None:
        account = self._accounts[tenant]
        account.open -= 1
        account.used += 1
        self.counts["ahead_used"] += 1

    def wasted(self, tenant: str) -> None:
        account = self._accounts[tenant]
        account.open -= 1
        account.wasted += 1
        self.counts["ahead_wasted"] += 1

    def forgive(self, tenant: str, now_s: float) -> None:
        account = self._accounts[tenant]
        account.used, account.wasted, account.since_s = account.used // 2, account.wasted // 2, now_s

    def check_invariants(self, open_calls: Counter[str], running: Counter[str]) -> None:
        """Raises AssertionError where the accounts differ from what is open and running."""
        assert len(self._accounts) <= MAX_TENANTS, "tenants"
        assert {t: a.open for t, a in self._accounts.items() if a.open} == dict(open_calls), "open calls"
        assert {t: a.running for t, a in self._accounts.items() if a.running} == dict(running), "running calls"
        for account in self._accounts.values():
            assert all(getattr(account, f.name) >= 0 for f in fields(account)), "an account below zero"
