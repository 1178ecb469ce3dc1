"""The store of tool results: single flight, leases, ages, bytes, invalidation, samples, tenants."""

from __future__ import annotations

import asyncio
import random

import pytest

from runtime_actor import memo_actor
from runtime_actor.memo_store import ENTRY_BYTES, MAX_FLIGHTS, Hit, Limits, MemoStore, Run, Wait

LIMITS = Limits(ttl_s=100.0, lease_s=10.0, sample=0.0, max_value_bytes=1000)
KEY = ("t", "k")


def store(max_bytes: int = 10_000, per_tenant: int = 10_000, sampled: bool = False) -> MemoStore:
    return MemoStore(max_bytes, per_tenant, lambda share: sampled)


def ticket(made: MemoStore, key: tuple[str, str] = KEY, now_s: float = 0.0, tool: str = "search") -> str:
    found = made.look(key, tool, LIMITS, now_s)
    assert isinstance(found, Run) and found.ticket is not None
    return found.ticket


def put(
    made: MemoStore, key: tuple[str, str] = KEY, value: bytes = b"1", now_s: float = 0.0, tool: str = "search"
) -> None:
    assert made.store(key[0], ticket(made, key, now_s, tool), value, now_s) == "stored"


def test_one_runs_the_others_wait_then_all_hit() -> None:
    made = store()
    first = ticket(made)
    assert made.look(KEY, "search", LIMITS, 4.0) == Wait(6.0)
    assert made.store("t", first, b"[1]", 5.0) == "stored"
    assert made.look(KEY, "search", LIMITS, 8.0) == Hit(b"[1]", 3.0)
    assert (made.counts["misses"], made.counts["hits"], made.num_flights) == (1, 1, 0)


def test_a_lease_ends_and_its_ticket_is_worth_nothing() -> None:
    made = store()
    late = ticket(made)
    second = ticket(made, now_s=10.0)
    assert made.store("t", late, b"late", 11.0) == "unknown_ticket"
    assert made.store("t", second, b"right", 11.0) == "stored"


def test_errors_are_not_kept_and_the_next_one_runs() -> None:
    made = store()
    assert made.release("t", ticket(made))
    assert isinstance(made.look(KEY, "search", LIMITS, 1.0), Run)
    assert made.counts["failed"] == 1


def test_ages() -> None:
    made = store()
    put(made)
    assert isinstance(made.look(KEY, "search", LIMITS, 99.9), Hit)
    assert isinstance(made.look(KEY, "search", LIMITS, 100.0), Run)
    assert made.size == 0 and made.counts["expired"] == 1


def test_invalidation_reaches_what_is_kept_and_what_runs_and_no_other_tenant_or_tool() -> None:
    made = store()
    put(made)
    put(made, ("t", "other"), tool="read")
    put(made, ("u", "k"))
    running = ticket(made, ("t", "k2"))
    assert made.invalidate("t", "search") == 1
    assert made.store("t", running, b"old", 1.0) == "void"
    assert isinstance(made.look(KEY, "search", LIMITS, 1.0), Run)
    assert isinstance(made.look(("t", "other"), "read", LIMITS, 1.0), Hit)
    assert isinstance(made.look(("u", "k"), "search", LIMITS, 1.0), Hit)


def test_after_an_invalidation_the_next_caller_runs_at_once() -> None:
    made = store()
    void = ticket(made)
    made.invalidate("t", "search")
    fresh = ticket(made, now_s=1.0)
    assert made.store("t", void, b"old", 2.0) == "unknown_ticket"
    assert made.store("t", fresh, b"new", 2.0) == "stored"


@pytest.mark.parametrize(("value", "counted"), [(b"1", "samples_fresh"), (b"2", "samples_stale")])
def test_a_sampled_hit_is_run_again_and_compared(value: bytes, counted: str) -> None:
    made = store(sampled=True)
    put(made)
    often = Limits(100.0, 10.0, 0.5, 1000)
    found = made.look(KEY, "search", often, 1.0)
    assert isinstance(found, Run) and found.is_refresh and found.ticket is not None
    assert isinstance(made.look(KEY, "search", often, 1.0), Hit), "one sample at a time, the others go on"
    assert made.store("t", found.ticket, value, 2.0) == "stored"
    assert made.counts[counted] == 1
    assert made.look(KEY, "search", LIMITS, 2.0) == Hit(value, 0.0)


def test_a_sample_that_never_comes_back_is_not_the_last_one() -> None:
    made = store(sampled=True)
    put(made)
    often = Limits(100.0, 10.0, 0.5, 1000)
    lost = made.look(KEY, "search", often, 1.0)
    assert isinstance(lost, Run) and isinstance(made.look(KEY, "search", often, 10.9), Hit)
    again = made.look(KEY, "search", often, 11.0)
    assert isinstance(again, Run) and again.is_refresh and again.ticket not in (None, lost.ticket)
    assert made.num_flights == 1
    made.check_invariants()


def test_bytes_are_bounded_and_the_largest_tenant_gives_way() -> None:
    size = ENTRY_BYTES + 100
    made = store(max_bytes=4 * size, per_tenant=3 * size)
    put(made, ("small", "k"), b"x" * 100)
    for number in range(6):
        put(made, ("large", str(number)), b"x" * 100)
        made.check_invariants()
    assert isinstance(made.look(("small", "k"), "search", LIMITS, 1.0), Hit)
    assert [isinstance(made.look(("large", str(n)), "search", LIMITS, 1.0), Hit) for n in range(6)] == [False] * 3 + [
        True
    ] * 3
    assert made.counts["evicted"] == 3


def test_what_is_too_large_is_not_kept_and_what_it_replaces_is_gone() -> None:
    made = store(sampled=True)
    put(made)
    found = made.look(KEY, "search", Limits(100.0, 10.0, 1.0, 1000), 1.0)
    assert isinstance(found, Run) and found.ticket is not None
    assert made.store("t", found.ticket, b"x" * 1001, 1.0) == "too_large"
    assert made.num_entries == 0


def test_a_ticket_is_of_one_tenant() -> None:
    made = store()
    mine = ticket(made)
    assert made.store("u", mine, b"1", 1.0) == "unknown_ticket" and not made.release("u", mine)
    assert made.store("t", mine, b"1", 1.0) == "stored"


def test_runs_under_way_are_bounded() -> None:
    made = store()
    for number in range(MAX_FLIGHTS):
        ticket(made, ("t", str(number)))
    assert made.look(("t", "one more"), "search", LIMITS, 1.0) == Run(None)
    assert made.num_flights == MAX_FLIGHTS
    assert isinstance(made.look(("t", "one more"), "search", LIMITS, 10.0), Run)
    assert made.num_flights == 1 and made.counts["leases_ended"] == MAX_FLIGHTS
    made.check_invariants()


def test_everything_can_be_dropped() -> None:
    made = store()
    put(made)
    under_way = ticket(made, ("u", "k"))
    assert made.clear() == 1 and made.size == 0
    assert made.store("u", under_way, b"1", 1.0) == "void"
    assert isinstance(made.look(KEY, "search", LIMITS, 1.0), Run)
    made.check_invariants()


def test_a_tenant_that_takes_every_run_leaves_others_their_part() -> None:
    """Its tools take for ever, or it never says what came of them."""
    made = store()
    flood = [ticket(made, ("t", str(number))) for number in range(MAX_FLIGHTS)]
    mine = [ticket(made, ("u", str(number))) for number in range(MAX_FLIGHTS // 2)]
    assert made.look(("u", "too many"), "search", LIMITS, 1.0) == Run(None), "its own part, no more"
    assert made.look(("t", "too many"), "search", LIMITS, 1.0) == Run(None)
    assert made.num_flights == MAX_FLIGHTS
    assert made.store("u", mine[0], b"1", 1.0) == "stored"
    assert made.store("t", flood[0], b"1", 1.0) == "unknown_ticket", "the oldest gave way"
    assert made.store("t", flood[-1], b"1", 1.0) == "stored"
    made.check_invariants()


@pytest.mark.parametrize("seed", range(10))
def test_random_histories_keep_the_account(seed: int) -> None:
    rng = random.Random(seed)
    made = MemoStore(5_000, 3_000, lambda share: rng.random() < share)
    limits = Limits(12.0, 2.0, 0.2, 900)
    open_tickets: list[tuple[str, str]] = []
    now_s = 0.0
    for _ in range(1500):
        now_s += rng.random() * 0.4
        tenant = rng.choice("abc")
        kind = rng.random()
        if kind < 0.6:
            found = made.look((tenant, str(rng.randrange(8))), rng.choice("xy"), limits, now_s)
            if isinstance(found, Run) and found.ticket is not None:
                open_tickets.append((tenant, found.ticket))
        elif kind < 0.9 and open_tickets:
            owner, one = open_tickets.pop(rng.randrange(len(open_tickets)))
            if rng.random() < 0.2:
                made.release(owner, one)
            else:
                made.store(owner, one, b"v" * rng.randrange(1200), now_s)
        elif kind > 0.998:
            made.clear()
        elif kind > 0.97:
            made.invalidate(tenant, rng.choice("xy"))
        made.check_invariants()
    assert made.counts["hits"] and made.counts["evicted"] and made.counts["expired"]


def test_one_tenants_callers_leave_room_for_another_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo_actor, "MAX_WAITING", 8)
    limits = {"ttl_s": 60.0, "lease_s": 60.0, "sample": 0.0, "max_value_bytes": 1000}

    async def main() -> None:
        actor = memo_actor.MemoActor(1 << 20, 1 << 20)
        tickets = {t: (await actor.lookup(t, "d", "tool", limits, 0.0))["ticket"] for t in ("loud", "quiet")}
        loud = [asyncio.create_task(actor.lookup("loud", "d", "tool", limits, 20.0)) for _ in range(20)]
        await asyncio.sleep(0)
        quiet = asyncio.create_task(actor.lookup("quiet", "d", "tool", limits, 20.0))
        await asyncio.sleep(0)
        assert [task.done() for task in loud].count(False) == 4 and not quiet.done()
        for tenant, ticket in tickets.items():
            await actor.store(tenant, ticket, b"1")
        answers = [await task for task in loud]
        assert [one["outcome"] for one in answers].count("hit") == 4 and (await quiet)["outcome"] == "hit"
        assert (await actor.state())["waiting"] == 0

    asyncio.run(main())
