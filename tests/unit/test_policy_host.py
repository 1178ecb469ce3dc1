"""Isolation of policies that raise, hang or answer nonsense, and the rules by which several are combined."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from runtime_actor.policies.base import (
    GuessSuggestion,
    InvalidateSuggestion,
    Policy,
    PrefetchSuggestion,
    QueuedPrefill,
    Refusal,
    RequestView,
    Rewrite,
)
from runtime_actor.policies.catalogue import NoClock
from runtime_actor.policies.guard import MAX_HANGS, MAX_UNSEEN, PolicyFailed
from runtime_actor.policies.host import PolicyHost
from runtime_actor.settings import PluggedSettings

LIMIT_S = 0.05
REQUEST = RequestView(1, "t", "w", "s", "a", 0.0, 10, 10, 0, None, {"model": "m"})
PREFILLS = [QueuedPrefill("g", True, False), QueuedPrefill("h", False, False)]


class Scripted(Policy):
    """Every hook does what `does` says."""

    name = "scripted"

    def __init__(self, does: Callable[[], Any], name: str = "scripted", **settings: Any) -> None:
        super().__init__(PluggedSettings(name, **settings), NoClock())
        self.does = does

    def _any(self, *_: Any) -> Any:
        return self.does()

    observe = score = order = predict = act = admit = output = score_tables = _any  # type: ignore[assignment]


def raising() -> Any:
    raise RuntimeError("broken on purpose")


def exiting() -> Any:
    raise SystemExit(3)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Holds whoever waits for it until the test ends."""
    event = threading.Event()
    yield event
    event.set()


def host(*policies: Policy, failure_limit: int = 1000) -> PolicyHost:
    return PolicyHost(policies, failure_limit, LIMIT_S)


def calls(made: PolicyHost) -> dict[str, Any]:
    """Each primitive's answer, as if by name."""
    made.observe(REQUEST)  # type: ignore[arg-type]
    return {
        "score": made.score("x"),  # type: ignore[arg-type]
        "tables": made.score_tables(),
        "order": made.order(PREFILLS),
        "predict": made.predict("w", "s", 1),
        "act": made.act(),
        "admit": made.admit(REQUEST),
        "outputs": made.outputs(REQUEST),
    }


SILENT = {
    "score": None,
    "tables": {},
    "order": [(), ()],
    "predict": None,
    "act": [],
    "admit": (REQUEST, None),
    "outputs": [],
}


@pytest.mark.parametrize("does", [raising, exiting, lambda: None])
def test_faults_are_no_opinion(does: Callable[[], Any]) -> None:
    assert calls(host(Scripted(does))) == SILENT


@pytest.mark.parametrize(
    "nonsense",
    [
        math.nan,
        -0.1,
        "high",
        [(1.0,)],
        [(1.0,), (1.0, 2.0)],
        [(math.nan,), (1.0,)],
        [(), ()],
        {"a": 1.5},
        {1: 0.5},
        {"w": "tables"},
        [PrefetchSuggestion("p", "r", "w", "a", "s", 1.0, math.nan)],
        ["prefetch"],
        [("first",), ("second",)],
        [(None,), (None,)],
        [(1.0,), ("second",)],
        [PrefetchSuggestion("p", "r", ["w"], "a", "s", 1.0, 0.5)],  # type: ignore[arg-type]
        [GuessSuggestion("p", "t", "w", "s", "a", "chat", {}, 1, math.nan)],
        Refusal(200, "fine", "all is well"),
        Refusal(429, "later", "at some time", retry_after_s=math.nan),
        Refusal(429, "later", "never", retry_after_s=math.inf),
        Refusal(403, "no", 5),  # type: ignore[arg-type]
        Refusal(403, "no", "not this", param=7),  # type: ignore[arg-type]
        Rewrite(5),  # type: ignore[arg-type]
        object(),
    ],
)
def test_nonsense_is_no_opinion_and_counted(nonsense: Any) -> None:
    made = host(Scripted(lambda: nonsense))
    answers = calls(made)
    del answers["outputs"]
    assert answers == {name: answer for name, answer in SILENT.items() if name != "outputs"}
    assert made.policies[0].failures >= 5


def test_keys_of_any_sequence_are_compared_with_those_of_others() -> None:
    made = host(Scripted(lambda: [[2.0], [1.0]]), Scripted(lambda: [(0.0,), (0.0,)], "other"))
    assert made.order(PREFILLS) == [(2.0, 0.0), (1.0, 0.0)]


def test_a_successor_goes_on_with_what_was_counted_and_asked_for() -> None:
    """What a policy has asked for is not lost where settings change before it is carried out."""
    asked = InvalidateSuggestion("p", "t", "tool")
    kept, changed = Scripted(raising, "kept"), Scripted(lambda: [asked], "changed")
    former = host(kept, changed, failure_limit=2)
    former.guesses()
    former.guesses()
    assert former.policies[0].switched_off
    made = host(kept, Scripted(list, "changed"), failure_limit=2)
    made.take_over(former)
    former.close_others(made)
    assert [s.tool for s in made.invalidations()] == ["tool"] * 3
    assert made.policies[0].switched_off, "nothing of its own was changed"


class Watching(Policy):
    """On a thread of its own; raises at every third event."""

    name = "watching"
    seat = "gateway"

    def __init__(self) -> None:
        super().__init__(PluggedSettings("watching"), NoClock())
        self.seen: list[Any] = []

    def observe(self, event: Any) -> None:
        self.seen.append(event)
        if len(self.seen) % 3 == 0:
            raise RuntimeError("every third")

    def admit(self, request: RequestView) -> None:
        self.seen.append("admit")


def test_events_are_seen_in_order_before_the_next_call_and_their_faults_counted() -> None:
    policy = Watching()
    made = PolicyHost([policy], failure_limit=100)
    made.observe_all(["a", "b", "c"])  # type: ignore[list-item]
    assert policy.seen == []
    assert made.admit(REQUEST) == (REQUEST, None)
    assert policy.seen == ["a", "b", "c", "admit"] and made.policies[0].failures == 1
    made.observe("d")  # type: ignore[arg-type]
    made.as_state(None)
    assert policy.seen[4:] == ["d"], "who asks for its counters asks for all that happened"
    for _ in range(MAX_UNSEEN):
        made.observe("e")  # type: ignore[arg-type]
    assert policy.seen.count("e") == MAX_UNSEEN, "no further behind than the bound"
    made.close()


def test_a_policy_that_hangs_costs_one_limit_then_nothing(
    gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    made = host(Scripted(gate.wait, "stuck"), Scripted(lambda: 0.4, "sound"), failure_limit=6)
    with caplog.at_level(logging.ERROR):
        assert [made.score("x") for _ in range(8)] == [0.4] * 8  # type: ignore[arg-type]
    stuck, sound = made.as_state(None)
    assert made.policies[0].hangs == 1, "only the first call was waited for"
    assert (stuck["failures"], stuck["switched_off"], stuck["enabled"]) == (6, True, False)
    assert sound["enabled"] and sound["failures"] == 0
    assert [("stuck" in r.getMessage()) for r in caplog.records] == [True, True]


def test_a_policy_that_comes_back_is_asked_again_until_it_hung_too_often() -> None:
    turn = threading.Semaphore(0)
    made = host(Scripted(lambda: turn.acquire() and 0.5))
    for hang in range(1, MAX_HANGS + 1):
        assert made.score("x") is None  # type: ignore[arg-type]
        assert made.policies[0].hangs == hang
        worker = made.policies[0].worker
        turn.release()
        if worker is not None:
            assert until(worker.came_back)
    assert made.policies[0].switched_off


def test_an_endless_loop_is_ended_when_its_policy_is_switched_off() -> None:
    left = threading.Event()

    def spin() -> None:
        try:
            while True:
                pass
        finally:
            left.set()

    made = host(Scripted(spin), failure_limit=1)
    assert made.score("x") is None  # type: ignore[arg-type]
    assert left.wait(10.0)


def test_switched_off_by_faults_and_named(caplog: pytest.LogCaptureFixture) -> None:
    made = host(Scripted(raising, "faulty"), failure_limit=3)
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            made.admit(REQUEST)
    assert made.policies[0].calls["admit"] == 3
    assert len(caplog.records) == 2 and all("faulty" in record.getMessage() for record in caplog.records)


def test_a_slow_call_in_place_is_told_of_and_its_answer_taken(caplog: pytest.LogCaptureFixture) -> None:
    class Slow(Scripted):
        in_place = True

    def burn() -> float:
        began_s = time.perf_counter()
        while time.perf_counter() - began_s < 2 * LIMIT_S:
            pass
        return 0.5

    made = host(Slow(burn, "slow"))
    with caplog.at_level(logging.WARNING):
        assert [made.score("x"), made.score("x")] == [0.5, 0.5]  # type: ignore[arg-type]
    (row,) = made.as_state(None)
    assert (row["slow"], row["failures"], len(caplog.records)) == (2, 0, 1)


# --- composition ---------------------------------------------------------------------------------------


def test_order_is_lexicographic_in_configured_order() -> None:
    first = Scripted(lambda: [(1.0,), (1.0,)], "first")
    second = Scripted(lambda: [(2.0, 0.0), (1.0, 9.0)], "second")
    assert host(first, second).order(PREFILLS) == [(1.0, 2.0, 0.0), (1.0, 1.0, 9.0)]
    reverse = host(second, first).order(PREFILLS)
    assert reverse[0] > reverse[1], "the second breaks the first's tie"
    assert host(Scripted(lambda: [(2.0,), (1.0,)], "a"), second).order(PREFILLS)[1] == (1.0, 1.0, 9.0)


def test_no_key_goes_last() -> None:
    keys = host(Scripted(lambda: [None, (5.0, 5.0)])).order(PREFILLS)
    assert keys[0] == (math.inf, math.inf) and keys[1] < keys[0]


def test_the_first_refusal_ends_it_and_rewrites_add_up() -> None:
    def rewrite(name: str) -> Scripted:
        policy = Scripted(lambda: None, name)
        policy.admit = lambda r: Rewrite({**r.fields, name: len(r.fields)})  # type: ignore[method-assign]
        return policy

    refusing = Scripted(lambda: Refusal(403, "no", "No."), "refusing")
    never = Scripted(raising, "never")
    made = host(rewrite("one"), rewrite("two"), refusing, never)
    request, refusal = made.admit(REQUEST)
    assert request.fields == {"model": "m", "one": 1, "two": 2}
    assert refusal is not None and refusal.code == "no"
    assert made.policies[3].calls["admit"] == 0
    assert REQUEST.fields == {"model": "m"}


def test_two_suggestions_for_one_place_keep_the_first() -> None:
    def one(value: float) -> Callable[[], list[PrefetchSuggestion]]:
        return lambda: [PrefetchSuggestion("self-made name", "r", "w", "a", "s", 1.0, value)]

    (suggestion,) = host(Scripted(one(0.1), "first"), Scripted(one(0.9), "second")).act()
    assert (suggestion.policy, suggestion.value) == ("first", 0.1)


# --- fail closed ----------------------------------------------------------------------------------------


def test_fail_closed_refuses_what_it_cannot_judge() -> None:
    made = host(Scripted(raising, "strict", fail_closed=True), failure_limit=2)
    for _ in range(4):
        _, refusal = made.admit(REQUEST)
        assert refusal is not None and (refusal.status, refusal.code) == (503, "policy_unavailable")
    assert made.policies[0].switched_off
    with pytest.raises(PolicyFailed):
        made.outputs(REQUEST)
    off = host(Scripted(raising, "strict", fail_closed=True, enabled=False))
    assert off.admit(REQUEST) == (REQUEST, None), "switched off on purpose has no say"


class Upper:
    def feed(self, text: str) -> str:
        if text == "bad":
            raise RuntimeError("broken on purpose")
        return text.upper()

    def end(self) -> str:
        return "!"


def test_a_filter_that_fails_lets_pass_or_ends_the_answer() -> None:
    (one,) = host(Scripted(Upper, "shout")).outputs(REQUEST)
    assert [one.feed("a"), one.feed("bad"), one.feed("b"), one.end()] == ["A", "bad", "b", ""]
    (strict,) = host(Scripted(Upper, "shout", fail_closed=True)).outputs(REQUEST)
    assert strict.feed("a") == "A"
    with pytest.raises(PolicyFailed):
        strict.feed("bad")


def until(holds: Callable[[], bool], limit_s: float = 10.0) -> bool:
    waiting = threading.Event()
    for _ in range(int(limit_s / 0.01)):
        if holds():
            return True
        waiting.wait(0.01)
    return False
