"""Calls run ahead, in the store: what is refused, what counts as used or wasted, when it stops, a machine of both."""

from __future__ import annotations

import random

import pytest

from runtime_actor import ahead_account
from runtime_actor.ahead_account import FORGIVE_S, TRIALS, Account, AheadBounds
from runtime_actor.memo_store import Hit, Limits, MemoStore, Refused, Run, Wait

LIMITS = Limits(ttl_s=100.0, lease_s=10.0, sample=0.0, max_value_bytes=1000)
BOUNDS = AheadBounds(at_once=3, max_waste=0.5)
NONE_WASTED = AheadBounds(at_once=100, max_waste=0.0)


def ahead(made: MemoStore, name: str = "k", now_s: float = 0.0, bounds: AheadBounds = BOUNDS, tenant: str = "t") -> str:
    found = made.look_ahead((tenant, name), "search", LIMITS, bounds, now_s)
    assert isinstance(found, Run) and found.ticket is not None
    made.check_invariants()
    return found.ticket


def look(made: MemoStore, name: str = "k", now_s: float = 0.0) -> Hit | Run | Wait:
    found = made.look(("t", name), "search", LIMITS, now_s)
    made.check_invariants()
    return found


def counted(made: MemoStore) -> tuple[int, int, int]:
    counts = made.ahead_counts
    return counts["ahead_issued"], counts["ahead_used"], counts["ahead_wasted"]


def store() -> MemoStore:
    return MemoStore(10_000, 10_000, lambda share: False)


def test_a_result_that_somebody_asks_for_is_used_once() -> None:
    made = store()
    assert made.store("t", ahead(made), b"1", 1.0) == "stored"
    assert counted(made) == (1, 0, 0)
    assert [look(made, now_s=2.0), look(made, now_s=3.0)] == [Hit(b"1", 1.0), Hit(b"1", 2.0)]
    assert counted(made) == (1, 1, 0)


def test_who_asks_while_it_runs_waits_for_it() -> None:
    made = store()
    ticket = ahead(made)
    assert look(made, now_s=1.0) == Wait(9.0)
    assert made.store("t", ticket, b"1", 2.0) == "stored"
    assert counted(made) == (1, 1, 0)


def test_what_failed_is_not_kept_and_the_caller_runs_it() -> None:
    made = store()
    ticket = ahead(made)
    assert isinstance(look(made), Wait)
    assert made.release("t", ticket)
    assert isinstance(look(made), Run) and made.counts["ahead_failed"] == 1
    assert counted(made) == (1, 0, 1)


@pytest.mark.parametrize("how", ["expired", "invalidated", "evicted", "void", "too_large", "lease"])
def test_what_nobody_asked_for_is_wasted(how: str) -> None:
    made = store()
    ticket = ahead(made)
    if how == "void":
        made.invalidate("t", "search")
    if how != "lease":
        made.store("t", ticket, b"x" * (2000 if how == "too_large" else 10), 0.0)
    if how == "invalidated":
        made.invalidate("t", "search")
    if how == "evicted":
        for number in range(30):
            found = look(made, f"other{number}")
            assert isinstance(found, Run) and found.ticket is not None
            made.store("t", found.ticket, b"x" * 800, 0.0)
    assert isinstance(look(made, now_s=100.0), Run)
    assert counted(made) == (1, 0, 1)


def test_nothing_is_run_that_is_kept_or_runs() -> None:
    made = store()
    ticket = ahead(made)
    assert made.look_ahead(("t", "k"), "search", LIMITS, BOUNDS, 0.0) == Refused("running")
    made.store("t", ticket, b"1", 0.0)
    assert made.look_ahead(("t", "k"), "search", LIMITS, BOUNDS, 1.0) == Refused("kept")
    assert made.wanted("t", ["k", "other"], BOUNDS, 1.0) == ["other"]
    ahead(made, now_s=100.0)


def test_so_many_at_once_and_a_lost_client_holds_no_place() -> None:
    made = store()
    for number in range(3):
        ahead(made, str(number))
    assert made.look_ahead(("t", "4"), "search", LIMITS, BOUNDS, 9.0) == Refused("at_once")
    assert made.wanted("t", ["4"], BOUNDS, 9.0) == []
    ahead(made, "4", tenant="other")
    ahead(made, "4", now_s=10.0)
    assert counted(made)[2] == 4, "the three of this tenant and the other one's ran out of time"


def waste(made: MemoStore, count: int, now_s: float = 0.0, bounds: AheadBounds = NONE_WASTED) -> None:
    for number in range(count):
        made.store("t", ahead(made, f"waste{number}", now_s, bounds), b"1", now_s)


def test_waste_stops_it_and_use_lets_it_go_on() -> None:
    made = store()
    waste(made, TRIALS)
    assert made.look_ahead(("t", "more"), "search", LIMITS, NONE_WASTED, 1.0) == Refused("waste")
    assert made.wanted("t", ["more"], NONE_WASTED, 1.0) == []
    ahead(made, "more", 1.0, NONE_WASTED, tenant="other")
    assert isinstance(look(made, "waste3", 2.0), Hit)
    ahead(made, "more", 3.0, NONE_WASTED)


def test_what_was_wasted_is_forgiven_by_halves() -> None:
    made = store()
    waste(made, TRIALS)
    assert made.look_ahead(("t", "more"), "search", LIMITS, NONE_WASTED, FORGIVE_S - 1.0) == Refused("waste")
    waste(made, TRIALS // 2, FORGIVE_S)
    assert made.look_ahead(("t", "more"), "search", LIMITS, NONE_WASTED, FORGIVE_S + 1.0) == Refused("waste")


def test_accounts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead_account, "MAX_TENANTS", 2)
    made = store()
    first, _ = ahead(made, tenant="a"), ahead(made, tenant="b")
    assert made.look_ahead(("c", "k"), "search", LIMITS, BOUNDS, 0.0) == Refused("crowded")
    made.release("a", first)
    ahead(made, tenant="c")


def test_the_bound_holds_after_each_start() -> None:
    account = Account(used=0, wasted=TRIALS, open=4, running=1)
    bounds = AheadBounds(at_once=2, max_waste=0.2)
    assert account.refusal(bounds) == "waste"
    assert Account(used=30, wasted=TRIALS, open=3, running=1).refusal(bounds) is None
    assert Account(used=30, running=2).refusal(bounds) == "at_once"


@pytest.mark.parametrize("seed", range(10))
def test_random_histories_keep_account_and_bounds(seed: int) -> None:
    rng = random.Random(seed)
    made = MemoStore(6_000, 3_000, lambda share: rng.random() < share)
    limits, bounds = Limits(8.0, 2.0, 0.1, 900), AheadBounds(rng.choice([1, 3, 8]), rng.choice([0.0, 0.3, 0.8]))
    open_tickets: list[tuple[str, str]] = []
    now_s = 0.0
    for _ in range(2000):
        now_s += rng.random() * rng.choice([0.2, 0.2, 0.2, 30.0])
        tenant, key = rng.choice("abc"), str(rng.randrange(12))
        kind = rng.random()
        if kind < 0.6:
            is_ahead = rng.random() < 0.5
            found = (
                made.look_ahead((tenant, key), "x", limits, bounds, now_s)
                if is_ahead
                else made.look((tenant, key), "x", limits, now_s)
            )
            if isinstance(found, Run) and found.ticket is not None:
                open_tickets.append((tenant, found.ticket))
                account = made._ahead.get(tenant)
                if is_ahead:
                    assert account is not None and account.running <= bounds.at_once
                    uncertain = account.wasted + account.open
                    assert uncertain <= TRIALS + bounds.max_waste * (account.used + uncertain)
        elif kind < 0.95 and open_tickets:
            owner, one = open_tickets.pop(rng.randrange(len(open_tickets)))
            if rng.random() < 0.2:
                made.release(owner, one)
            else:
                made.store(owner, one, b"v" * rng.randrange(1200), now_s)
        elif kind > 0.98:
            made.invalidate(tenant, "x")
        made.check_invariants()
    issued, used, wasted = counted(made)
    still_open = sum(account.open for account in made._ahead._accounts.values())
    assert issued == used + wasted + still_open and wasted and issued
