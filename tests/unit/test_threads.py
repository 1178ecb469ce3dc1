"""Threads of one agent in one session: told apart by their blocks, valued by the order they are used in."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.cache.owner import Owner
from replicas.cache.threads import FEW_THREADS, MAX_THREADS, MEMORY, Thread, ThreadRanks, Threads


def blocks(*names: str) -> list[bytes]:
    """Hashes as vLLM makes them: each stands for all before it."""
    return [name.encode() for name in itertools.accumulate(names, "{}/{}".format)]


def thread(hashes: list[bytes], shared_blocks: int) -> Thread[Owner]:
    made = Thread(Owner())
    made.begins(hashes, shared_blocks)
    return made


def test_a_prompt_goes_on_with_the_thread_whose_first_own_block_it_has() -> None:
    one, two = blocks("anchor", "one"), blocks("anchor", "two")
    threads = Threads([thread(one, 1), thread(two, 1)])
    assert threads.find([*one, b"more"], 1) == 0
    assert threads.find([*two, b"more"], 1) == 1
    assert threads.find(blocks("anchor", "three"), 1) is None
    assert threads.find(blocks("another anchor", "one"), 1) is None


def test_the_boundary_may_move_once_more_sessions_were_seen() -> None:
    """What was the session's own at first is found to be shared: the thread is found by it, and marked anew."""
    first = blocks("anchor", "task", "turn")
    found = thread(first, 0)
    threads = Threads([found])
    assert threads.find(first, 1) == 0
    found.begins(first, 1)
    assert threads.find(blocks("anchor", "other task"), 1) is None
    assert threads.find(first, 1) == threads.find(first, 0) == 0


def test_without_a_block_of_its_own_a_prompt_goes_on_with_the_newest() -> None:
    threads = Threads([thread([], 0)])
    assert threads.find([], 0) == 0
    assert threads.find(blocks("anchor", "task"), 1) == 0
    assert Threads[Owner]().find([], 0) is None


def seen(ranks: list[int | None]) -> ThreadRanks:
    made = ThreadRanks()
    for rank in ranks:
        made.observe(rank)
    return made


def test_one_thread_is_worth_as_much_as_its_agent() -> None:
    assert seen([0] * 50).factors(0.5, ThreadRanks())[0] == pytest.approx(1.0)
    assert ThreadRanks().factors(0.5, ThreadRanks())[0] == pytest.approx(1.0)


def test_of_threads_that_take_turns_the_one_just_used_is_worth_least() -> None:
    factors = seen([7] * 500).factors(0.8, ThreadRanks())[:8]
    assert factors == sorted(factors)
    assert factors[7] > 0.97
    assert factors[0] == pytest.approx(0.8**7, abs=0.02)


def test_what_is_never_gone_on_with_is_worth_nothing() -> None:
    never = seen([None] * 200)
    assert max(never.factors(0.9, never)) < 0.02
    assert never.room == FEW_THREADS
    assert seen([None] * 10).room == MAX_THREADS
    assert seen([MAX_THREADS - 1] * 100).room == MAX_THREADS


def test_old_observations_fade() -> None:
    changed = seen([0] * 1000 + [None] * int(4 * MEMORY))
    assert changed.shares()[0] < 0.1


RANKS = st.lists(st.one_of(st.none(), st.integers(0, MAX_THREADS - 1)), max_size=40)


@given(RANKS, st.floats(0.0, 1.0))
def test_factors_are_the_sum_over_all_ways(ranks: list[int | None], again: float) -> None:
    """Against the chain itself, walked request by request."""
    learned = seen(ranks)
    factors = learned.factors(again, learned)
    shares = learned.shares()
    again = min(again, 0.999)
    for rank in (0, 3, MAX_THREADS - 1):
        at = {rank: 1.0}
        discount, value = 1.0, 0.0
        for _ in range(400):
            value += discount * sum(weight * shares[r] for r, weight in at.items())
            at = _moved(at, shares)
            discount *= again
        assert factors[rank] == pytest.approx(value, abs=1e-6 + discount / (1.0 - again))
    assert all(0.0 <= factor <= 1.0 for factor in factors)


def _moved(at: dict[int, float], shares: list[float]) -> dict[int, float]:
    """One request of the agent that goes on with another thread: newer ones leave the rank, others lower it."""
    after: dict[int, float] = {}
    for rank, weight in at.items():
        stay = sum(shares[:rank])
        after[rank] = after.get(rank, 0.0) + weight * stay
        if rank + 1 < MAX_THREADS:
            after[rank + 1] = after.get(rank + 1, 0.0) + weight * (1.0 - stay - shares[rank])
    return after
