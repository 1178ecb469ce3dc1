"""Warm-ups end exactly once, whatever happens in whatever order, and their book stays bounded."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from replicas.prefetch import (
    REFUSED,
    USEFUL,
    WASTED,
    CacheProbe,
    Job,
    Load,
    Outcome,
    Phase,
    PrefetchBook,
    is_idle,
    refusal,
    slice_ends,
)
from replicas.settings import PrefetchSettings
from tests.unit.replica_fakes import make_action

SETTINGS = PrefetchSettings(max_pending=3, max_awaiting_use=2, use_window_s=5.0)


class PrefetchBookMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.book = PrefetchBook(SETTINGS)
        self.now_s = 0.0
        self.offered: list[str] = []
        self.ended: Counter[str] = Counter()
        self.job: Job | None = None

    def collect(self) -> None:
        for outcome in self.book.drain():
            self.ended[outcome.action.action_id] += 1
            if outcome.outcome == USEFUL:
                assert outcome.tokens > 0
            if outcome.outcome == REFUSED:
                assert outcome.tokens == 0
            if outcome.outcome == WASTED:
                assert outcome.tokens > 0

    @rule(
        agent=st.sampled_from("abc"),
        digest=st.sampled_from("xyzuvw"),
        value=st.floats(0.0, 1.0),
        deadline_s=st.floats(0.0, 4.0),
        wanted=st.booleans(),
    )
    def offer(self, agent: str, digest: str, value: float, deadline_s: float, wanted: bool) -> None:
        action_id = f"p{len(self.offered)}"
        self.offered.append(action_id)
        action = make_action(action_id, agent=agent, digest=digest, value=value, deadline_s=deadline_s)
        self.book.offer(action, self.now_s, wanted=wanted)

    @precondition(lambda self: self.offered)
    @rule(data=st.data())
    def offer_again(self, data: st.DataObject) -> None:
        action_id = data.draw(st.sampled_from(self.offered))
        self.book.offer(make_action(action_id), self.now_s)

    @rule()
    def take(self) -> None:
        job = self.book.take(self.now_s)
        if job is not None:
            assert self.book.num_in(Phase.RUNNING) == 1
            self.job = job
            self.book.probed(job, 0)

    @precondition(lambda self: self.job is not None)
    @rule(tokens=st.integers(1, 256))
    def advance(self, tokens: int) -> None:
        assert self.job is not None
        self.book.advance(self.job, tokens)

    @precondition(lambda self: self.job is not None)
    @rule(how=st.sampled_from(("pause", "refuse", "warm")))
    def stop(self, how: str) -> None:
        assert self.job is not None
        if how == "pause":
            self.book.pause(self.job)
        elif how == "refuse" or not self.job.computed_tokens:
            self.book.refuse(self.job, "failed", self.now_s)
        else:
            self.book.warmed(self.job, self.now_s)
        self.job = None

    @rule(agent=st.sampled_from("abc"), cached_tokens=st.integers(0, 64))
    def demand(self, agent: str, cached_tokens: int) -> None:
        self.book.demand("w", agent, cached_tokens)

    @rule(seconds=st.floats(0.0, 3.0))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.book.expire(self.now_s)

    @invariant()
    def holds(self) -> None:
        self.collect()
        self.book.check_invariants()
        assert max(self.ended.values(), default=0) <= 1
        live = [action_id for action_id in self.offered if self.book.is_live(action_id)]
        assert len(live) + len(self.ended) == len(self.offered)

    def teardown(self) -> None:
        self.book.close()
        self.collect()
        assert len(self.book) == 0
        assert self.ended == Counter(self.offered)


TestPrefetchBook = PrefetchBookMachine.TestCase
TestPrefetchBook.settings = hypothesis_settings(max_examples=150, stateful_step_count=40, deadline=None)


def only_outcome(book: PrefetchBook) -> Outcome:
    (outcome,) = book.drain()
    return outcome


def warm_job(book: PrefetchBook, resident_tokens: int = 0) -> Job:
    book.offer(make_action(), 0.0)
    job = book.take(0.0)
    assert job is not None
    book.probed(job, resident_tokens)
    book.advance(job, 256)
    book.warmed(job, 1.0)
    return job


def test_a_request_that_finds_more_than_was_there_makes_it_useful() -> None:
    book = PrefetchBook(PrefetchSettings())
    warm_job(book, resident_tokens=64)
    book.demand("w", "a", 96)
    assert (only_outcome(book).outcome, len(book)) == (USEFUL, 0)


def test_a_request_that_finds_no_more_makes_it_wasted() -> None:
    book = PrefetchBook(PrefetchSettings())
    warm_job(book, resident_tokens=64)
    book.demand("w", "a", 64)
    outcome = only_outcome(book)
    assert (outcome.outcome, outcome.reason) == (WASTED, "missed")


def test_nobody_asks_so_it_is_wasted() -> None:
    book = PrefetchBook(PrefetchSettings(use_window_s=5.0))
    warm_job(book)
    book.expire(5.9)
    assert book.drain() == []
    book.expire(6.0)
    assert only_outcome(book).reason == "unused"


def test_the_most_valuable_action_runs_first_and_the_least_is_refused_at_the_cap() -> None:
    book = PrefetchBook(PrefetchSettings(max_pending=2))
    for action_id, value in (("low", 0.1), ("mid", 0.5), ("top", 0.9)):
        book.offer(make_action(action_id, value=value), 0.0)
    outcome = only_outcome(book)
    assert (outcome.action.action_id, outcome.reason) == ("low", "full")
    job = book.take(0.0)
    assert job is not None and job.action.action_id == "top"


def test_a_partly_warmed_action_past_its_deadline_may_still_be_used() -> None:
    book = PrefetchBook(PrefetchSettings())
    book.offer(make_action(deadline_s=2.0), 0.0)
    job = book.take(0.0)
    assert job is not None
    book.probed(job, 0)
    book.advance(job, 256)
    book.pause(job)
    book.expire(3.0)
    assert book.drain() == []
    book.demand("w", "a", 256)
    assert only_outcome(book).outcome == USEFUL


def test_the_engine_settles_what_is_warm_and_nothing_else() -> None:
    book = PrefetchBook(PrefetchSettings())
    book.settle("p1", WASTED, "evicted")
    book.offer(make_action(), 0.0)
    book.settle("p1", WASTED, "evicted")
    assert book.drain() == [] and book.is_live("p1")
    job = book.take(0.0)
    assert job is not None
    book.advance(job, 256)
    book.warmed(job, 1.0)
    book.settle("p1", WASTED, "evicted")
    assert only_outcome(book).reason == "evicted"


def test_gates() -> None:
    action = make_action(value=0.5)
    assert refusal(action, 640, CacheProbe(608), 32) == "resident"
    assert refusal(action, 640, CacheProbe(607), 32) is None
    assert refusal(action, 640, CacheProbe(0, victim_value=0.5), 32) == "outbid"
    assert refusal(action, 640, CacheProbe(0, victim_value=0.5, anchor_value=0.6), 32) is None
    assert refusal(action, 640, CacheProbe(0, missing_fits=False), 32) == "crowded"
    assert refusal(action, 640, CacheProbe(0, victim_value=0.4), 32) is None
    settings = PrefetchSettings(idle_requests=1)
    assert is_idle(Load(in_flight=1, waiting=0), settings)
    assert not is_idle(Load(in_flight=2, waiting=0), settings)
    assert not is_idle(Load(in_flight=1, waiting=1), settings)


def test_slices() -> None:
    assert slice_ends(0, 600, 256) == [256, 512, 600]
    assert slice_ends(64, 320, 256) == [320]
    assert slice_ends(0, 512, 256) == [256, 512]
    assert slice_ends(600, 600, 256) == []
