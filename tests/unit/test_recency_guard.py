"""When stock order takes over from values, and for how long."""

from __future__ import annotations

from replicas.cache.block_owner import BlockOwner
from replicas.cache.ownership import OwnerDirectory
from replicas.cache.recency_guard import FIRST_REST, MOST_BEHIND, MOST_CREDIT, RecencyGuard
from replicas.cache.settings import ValueSettings
from runtime_actor.messages import OwnerTag
from runtime_actor.reach import compute_tables
from runtime_actor.transitions import TransitionModel

CAPACITY = 100
PROMPT = 20


class Stream:
    """Requests of one prompt that stock order would always have had, all but its last block."""

    def __init__(self) -> None:
        self.guard = RecencyGuard(CAPACITY)
        self.hashes = [bytes([i]) for i in range(PROMPT)]
        self.guard.finished(self.hashes)

    def send(self, hits: int) -> bool:
        changed = self.guard.started(self.hashes, hits, PROMPT - 1)
        self.guard.finished(self.hashes)
        return changed

    def until_change(self, hits: int, at_most: int = 10_000) -> int:
        return next(n for n in range(1, at_most) if self.send(hits))


def test_it_stays_with_values_that_keep_up() -> None:
    stream = Stream()
    assert not any(stream.send(PROMPT - 1) for _ in range(1_000))
    assert not stream.guard.prefers_recency and stream.guard.fallbacks == 0


def test_it_goes_back_to_stock_order_once_hits_fall_behind() -> None:
    stream = Stream()
    lost = (stream.until_change(hits=0) - 1) * (PROMPT - 1)
    assert lost <= MOST_BEHIND * CAPACITY < lost + PROMPT - 1
    assert stream.guard.prefers_recency and stream.guard.fallbacks == 1


def test_each_failed_trial_is_followed_by_a_rest_twice_as_long() -> None:
    stream = Stream()
    rests = []
    for _ in range(4):
        stream.until_change(hits=0)
        rests.append(stream.until_change(hits=PROMPT - 1))
        assert not stream.guard.prefers_recency
    expected = [FIRST_REST * CAPACITY * 2**i / (PROMPT - 1) for i in range(4)]
    assert all(abs(rest - due) <= 1.0 for rest, due in zip(rests, expected, strict=True))


def test_gains_of_long_ago_pay_only_for_so_much() -> None:
    stream = Stream()
    unknown = [bytes([i]) * 2 for i in range(PROMPT)]
    for _ in range(100):
        # Nothing of this is in the shadow: each is a gain.
        stream.guard.started(unknown, PROMPT - 1, PROMPT - 1)
    lost = (stream.until_change(hits=0) - 1) * (PROMPT - 1)
    assert lost <= (MOST_BEHIND + MOST_CREDIT) * CAPACITY < lost + PROMPT - 1


def test_a_trial_that_pays_makes_the_next_rest_short_again() -> None:
    stream = Stream()
    unknown = [bytes([i]) * 2 for i in range(PROMPT)]
    for _ in range(3):
        stream.until_change(hits=0)
        stream.until_change(hits=PROMPT - 1)
    for _ in range(100):
        stream.guard.started(unknown, PROMPT - 1, PROMPT - 1)
    stream.until_change(hits=0)
    assert abs(stream.until_change(hits=PROMPT - 1) - FIRST_REST * CAPACITY / (PROMPT - 1)) <= 1.0


def test_after_a_reset_nothing_counts_as_lost() -> None:
    stream = Stream()
    stream.guard.emptied()
    assert not stream.guard.started(stream.hashes, 0, PROMPT - 1)
    assert not stream.guard.prefers_recency


def test_owners_lose_their_values_with_it_and_get_them_back() -> None:
    """Through the directory, as an engine calls it: who is due again has a value, but not while stock order rules."""
    now = [0.0]
    model = TransitionModel()
    for i in range(40):
        model.observe("s", "ab"[i % 2], float(i))
    directory = OwnerDirectory(
        ValueSettings(refresh_s=0.0), 1, lambda: now[0], cache_blocks=CAPACITY, guard=RecencyGuard(CAPACITY)
    )
    directory.set_tables(compute_tables(model, workload="w"))
    hashes = [bytes([i]) for i in range(PROMPT)]

    def turn(hits: int) -> BlockOwner:
        now[0] += 1.0
        name = str(now[0])
        claim = directory.arrive(name, OwnerTag("w", "a", "s"), hashes)
        directory.started(name)
        directory.counted(name, hits, PROMPT - 1)
        directory.finished(name)
        directory.changed()
        return claim.rest

    assert turn(PROMPT - 1).value > 0.0
    values = [turn(0).value for _ in range(5)]
    assert directory.valuation.guard is not None and directory.valuation.guard.prefers_recency
    assert values[-1] == 0.0 and not directory.is_active
    turns = next(n for n in range(1, 100) if turn(PROMPT - 1).value > 0.0)
    assert abs(turns - FIRST_REST * CAPACITY / (PROMPT - 1)) <= 1.0
    assert directory.is_active
