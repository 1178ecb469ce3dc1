"""Results of tool calls: bounded by bytes, one run for concurrent callers, dropped by age, event or need.

Pure: `now_s` comes with each call, waiting is the caller's business. Tenants share nothing but the bound on
all bytes, and there the largest tenant gives way first.
"""

from __future__ import annotations

import random
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from runtime_actor.ahead_account import FORGIVE_S, AheadAccounts, AheadBounds

ENTRY_BYTES = 256
"""What an entry takes beside its value."""
MAX_FLIGHTS = 4096
"""Runs under way, shared fairly by tenants; beyond its part a caller runs its tool for itself and nothing is kept."""

Key = tuple[str, str]
"""(tenant, digest of the call)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one call, from the allow-list. Seconds and bytes."""

    ttl_s: float
    lease_s: float
    sample: float
    max_value_bytes: int


@dataclass(slots=True)
class Entry:
    tool: str
    value: bytes
    stored_s: float
    expires_s: float
    is_ahead: bool = False
    """It was run ahead, and nobody has asked for it yet."""

    @property
    def size(self) -> int:
        return len(self.value) + ENTRY_BYTES


@dataclass(slots=True)
class Flight:
    """A run under way. `is_void`: an invalidation came meanwhile, so its result isn't kept. `is_ahead`: nobody had
    asked for it when it began; `is_awaited`: somebody has since."""

    key: Key
    tool: str
    ticket: str
    limits: Limits
    ends_s: float
    is_refresh: bool
    is_void: bool = False
    is_ahead: bool = False
    is_awaited: bool = False


@dataclass(frozen=True, slots=True)
class Hit:
    value: bytes
    age_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """The caller is to run the tool and then call `store` or `release` with the ticket (None: nothing to do)."""

    ticket: str | None
    is_refresh: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Somebody else runs it; its lease ends in `left_s`."""

    left_s: float


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing is to be run ahead: kept | running | at_once | waste | crowded."""

    reason: str


@dataclass(slots=True)
class _Tenant:
    entries: OrderedDict[str, Entry] = field(default_factory=OrderedDict)
    size: int = 0


class MemoStore:
    """At most `max_bytes` in all and `max_bytes_per_tenant`; the result unused for longest goes first."""

    def __init__(
        self,
        max_bytes: int,
        max_bytes_per_tenant: int,
        sampled: Callable[[float], bool] = lambda share: random.random() < share,
    ) -> None:
        self.max_bytes = max_bytes
        self.max_bytes_per_tenant = max_bytes_per_tenant
        self.size = 0
        self.counts: Counter[str] = Counter()
        self._sampled = sampled
        self._tenants: dict[str, _Tenant] = {}
        self._flights: OrderedDict[Key, Flight] = OrderedDict()
        self._refreshes: OrderedDict[Key, Flight] = OrderedDict()
        self._tickets: dict[str, Flight] = {}
        self._flights_of: Counter[str] = Counter()
        self._ahead = AheadAccounts()

    @property
    def ahead_counts(self) -> Counter[str]:
        """issued, used, wasted."""
        return self._ahead.counts

    @property
    def num_entries(self) -> int:
        return sum(len(tenant.entries) for tenant in self._tenants.values())

    @property
    def num_flights(self) -> int:
        return len(self._tickets)

    # --- asking -----------------------------------------------------------------------------------------

    def look(self, key: Key, tool: str, limits: Limits, now_s: float) -> Hit | Run | Wait:
        entry = self._fresh(key, now_s)
        if entry is not None:
            if entry.is_ahead:
                entry.is_ahead = False
                self._ahead.used(key[0])
            if limits.sample and self._may_sample(key, now_s) and self._sampled(limits.sample):
                return self._lead(key, tool, limits, now_s, is_refresh=True)
            self.counts["hits"] += 1
            return Hit(entry.value, now_s - entry.stored_s)
        flight = self._flights.get(key)
        if flight is not None and flight.ends_s > now_s and not flight.is_void:
            flight.is_awaited = True
            return Wait(flight.ends_s - now_s)
        if flight is not None:
            self.counts["leases_ended"] += not flight.is_void
            self._land(flight)
        self.counts["misses"] += 1
        return self._lead(key, tool, limits, now_s, is_refresh=False)

    def _may_sample(self, key: Key, now_s: float) -> bool:
        """One at a time; one whose caller never came back is given up with its lease."""
        under_way = self._refreshes.get(key)
        if under_way is not None and under_way.ends_s <= now_s:
            self.counts["leases_ended"] += 1
            self._land(under_way)
            return True
        return under_way is None

    def look_ahead(self, key: Key, tool: str, limits: Limits, bounds: AheadBounds, now_s: float) -> Run | Refused:
        """As `look`, for a call that nobody has made yet: it is run only if that is of use and within bounds."""
        reason = self._unwanted(key, now_s) or self.ahead_refusal(key[0], bounds, now_s)
        found = Run(None) if reason else self._lead(key, tool, limits, now_s, is_refresh=False)
        if not isinstance(found, Run) or found.ticket is None:
            self.counts[f"ahead_refused_{reason or 'crowded'}"] += 1
            return Refused(reason or "crowded")
        self._tickets[found.ticket].is_ahead = True
        self._ahead.start(key[0])
        return found

    def wanted(self, tenant: str, digests: list[str], bounds: AheadBounds, now_s: float) -> list[str]:
        """Those of the calls that `look_ahead` would let run now, as many as may run at once."""
        if self.ahead_refusal(tenant, bounds, now_s) is not None:
            return []
        return [digest for digest in digests if self._unwanted((tenant, digest), now_s) is None]

    def _unwanted(self, key: Key, now_s: float) -> str | None:
        tenant = self._tenants.get(key[0])
        entry = tenant.entries.get(key[1]) if tenant is not None else None
        if entry is not None and now_s < entry.expires_s:
            return "kept"
        flight = self._flights.get(key)
        if flight is None:
            return None
        if flight.ends_s > now_s and not flight.is_void:
            return "running"
        self._land(flight)
        return None

    def ahead_refusal(self, tenant: str, bounds: AheadBounds, now_s: float) -> str | None:
        """at_once | waste | crowded; None: one more may be run ahead."""
        account = self._ahead.opened(tenant, now_s)
        if account is None:
            return "crowded"
        if now_s - account.since_s >= FORGIVE_S:
            kept = self._tenants[tenant].entries if tenant in self._tenants else {}
            for digest in [d for d, entry in kept.items() if entry.is_ahead and now_s >= entry.expires_s]:
                self._remove((tenant, digest))
            self._ahead.forgive(tenant, now_s)
        reason = account.refusal(bounds)
        return account.refusal(bounds) if reason == "at_once" and self._drop_overdue(now_s) else reason

    def _fresh(self, key: Key, now_s: float) -> Entry | None:
        tenant = self._tenants.get(key[0])
        entry = tenant.entries.get(key[1]) if tenant is not None else None
        if tenant is None or entry is None:
            return None
        if now_s >= entry.expires_s:
            self._remove(key)
            self.counts["expired"] += 1
            return None
        tenant.entries.move_to_end(key[1])
        return entry

    def _lead(self, key: Key, tool: str, limits: Limits, now_s: float, is_refresh: bool) -> Run:
        if len(self._tickets) >= MAX_FLIGHTS and not (self._drop_overdue(now_s) or self._made_way(key[0])):
            self.counts["flights_refused"] += 1
            return Run(None)
        flight = Flight(key, tool, secrets.token_hex(16), limits, now_s + limits.lease_s, is_refresh)
        (self._refreshes if is_refresh else self._flights)[key] = flight
        self._tickets[flight.ticket] = flight
        self._flights_of[key[0]] += 1
        return Run(flight.ticket, is_refresh)

    def _made_way(self, tenant: str) -> bool:
        """A tenant within its part of the runs takes the place of the oldest one of whoever has most."""
        if self._flights_of[tenant] >= MAX_FLIGHTS // len({*self._flights_of, tenant}):
            return False
        crowd = max(self._flights_of, key=self._flights_of.__getitem__)
        self._land(next(flight for flight in self._tickets.values() if flight.key[0] == crowd))
        self.counts["flights_displaced"] += 1
        return True

    def _drop_overdue(self, now_s: float) -> bool:
        overdue = [flight for flight in self._tickets.values() if flight.ends_s <= now_s]
        for flight in overdue:
            self._land(flight)
        self.counts["leases_ended"] += len(overdue)
        return bool(overdue)

    # --- answering --------------------------------------------------------------------------------------

    def store(self, tenant: str, ticket: str, value: bytes, now_s: float) -> str:
        """What became of it: stored | void | too_large | unknown_ticket (or one of another tenant)."""
        flight = self._tickets.get(ticket)
        if flight is None or flight.key[0] != tenant:
            return "unknown_ticket"
        self._land(flight, may_be_kept=True)
        if flight.is_refresh:
            self._compare(flight, value, now_s)
        if flight.is_void:
            self._settle(flight, is_kept=False)
            self.counts["void"] += 1
            return "void"
        entry = Entry(flight.tool, value, now_s, now_s + flight.limits.ttl_s)
        if len(value) > flight.limits.max_value_bytes or entry.size > min(self.max_bytes, self.max_bytes_per_tenant):
            self._settle(flight, is_kept=False)
            self._remove(flight.key)
            self.counts["too_large"] += 1
            return "too_large"
        self._settle(flight, is_kept=True)
        entry.is_ahead = flight.is_ahead and not flight.is_awaited
        self._put(flight.key, entry)
        self.counts["stored"] += 1
        return "stored"

    def _compare(self, flight: Flight, value: bytes, now_s: float) -> None:
        """Was the kept result still the right one?"""
        tenant = self._tenants.get(flight.key[0])
        kept = tenant.entries.get(flight.key[1]) if tenant is not None else None
        if kept is not None and now_s < kept.expires_s:
            self.counts["samples_stale" if kept.value != value else "samples_fresh"] += 1

    def release(self, tenant: str, ticket: str) -> bool:
        """The run failed, and nothing is kept of it; the next caller runs the tool."""
        flight = self._tickets.get(ticket)
        if flight is None or flight.key[0] != tenant:
            return False
        self._land(flight)
        self.counts["ahead_failed" if flight.is_ahead else "failed"] += 1
        return True

    def flight_of(self, ticket: str) -> Flight | None:
        return self._tickets.get(ticket)

    def _settle(self, flight: Flight, is_kept: bool) -> None:
        """Whether a call run ahead was of use; one that is kept and that nobody waits for is still open."""
        if flight.is_ahead and not is_kept:
            self._ahead.wasted(flight.key[0])
        elif flight.is_ahead and flight.is_awaited:
            self._ahead.used(flight.key[0])

    def _land(self, flight: Flight, may_be_kept: bool = False) -> None:
        if flight.is_ahead:
            self._ahead.landed(flight.key[0])
            if not may_be_kept:
                self._settle(flight, is_kept=False)
        del self._tickets[flight.ticket]
        self._flights_of[flight.key[0]] -= 1
        if not self._flights_of[flight.key[0]]:
            del self._flights_of[flight.key[0]]
        flights = self._refreshes if flight.is_refresh else self._flights
        if flights.get(flight.key) is flight:
            del flights[flight.key]

    # --- dropping ---------------------------------------------------------------------------------------

    def invalidate(self, tenant: str, tool: str) -> int:
        """Drop a tenant's results of a tool, those under way included; how many were kept."""
        entries = self._tenants[tenant].entries if tenant in self._tenants else {}
        digests = [digest for digest, entry in entries.items() if entry.tool == tool]
        for digest in digests:
            self._remove((tenant, digest))
        for flight in self._tickets.values():
            if flight.key[0] == tenant and flight.tool == tool:
                flight.is_void = True
        self.counts["invalidated"] += len(digests)
        return len(digests)

    def clear(self) -> int:
        """Drop everything of everybody, what is under way included; how many results were kept."""
        keys = [(name, digest) for name, tenant in self._tenants.items() for digest in tenant.entries]
        for key in keys:
            self._remove(key)
        for flight in self._tickets.values():
            flight.is_void = True
        self.counts["invalidated"] += len(keys)
        return len(keys)

    def _put(self, key: Key, entry: Entry) -> None:
        self._remove(key)
        tenant = self._tenants.setdefault(key[0], _Tenant())
        tenant.entries[key[1]] = entry
        tenant.size += entry.size
        self.size += entry.size
        while tenant.size > self.max_bytes_per_tenant:
            self._evict(key[0])
        while self.size > self.max_bytes:
            self._evict(max(self._tenants, key=lambda name: self._tenants[name].size))

    def _evict(self, tenant: str) -> None:
        self._remove((tenant, next(iter(self._tenants[tenant].entries))))
        self.counts["evicted"] += 1

    def _remove(self, key: Key) -> None:
        tenant = self._tenants.get(key[0])
        entry = tenant.entries.pop(key[1], None) if tenant is not None else None
        if tenant is None or entry is None:
            return
        if entry.is_ahead:
            self._ahead.wasted(key[0])
        tenant.size -= entry.size
        self.size -= entry.size
        if not tenant.entries:
            del self._tenants[key[0]]

    def check_invariants(self) -> None:
        """Raises AssertionError with what doesn't hold."""
        sizes = {n: sum(e.size for e in tenant.entries.values()) for n, tenant in self._tenants.items()}
        assert sizes == {n: tenant.size for n, tenant in self._tenants.items()}, "a tenant's bytes are miscounted"
        assert self.size == sum(sizes.values()) <= self.max_bytes, "bytes in all"
        assert all(size <= self.max_bytes_per_tenant for size in sizes.values()), "a tenant's bytes"
        known = {f.ticket for flights in (self._flights, self._refreshes) for f in flights.values()}
        assert known == set(self._tickets) and len(known) <= MAX_FLIGHTS, "tickets and flights differ"
        assert self._flights_of == Counter(f.key[0] for f in self._tickets.values()), (
            "a tenant's flights are miscounted"
        )
        running = Counter(flight.key[0] for flight in self._tickets.values() if flight.is_ahead)
        unused = Counter(n for n, tenant in self._tenants.items() for e in tenant.entries.values() if e.is_ahead)
        self._ahead.check_invariants(running + unused, running)
