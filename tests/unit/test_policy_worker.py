"""The thread of a policy that isn't trusted to return: answers, time limits, and that nothing of it is left."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from runtime_actor.policies.guard import PolicyFailed, Worker
from tests.gateway_kit import wait_for


def eventfds() -> set[str]:
    """Of the whole process: what other tests left may be closed at any time."""
    folder = "/proc/self/fd"
    found = set()
    for name in os.listdir(folder):
        try:
            if "eventfd" in os.readlink(f"{folder}/{name}"):
                found.add(name)
        except FileNotFoundError:
            continue
    return found


def threads() -> int:
    return sum(thread.name == "policy-x" for thread in threading.enumerate())


def test_calls_run_one_after_the_other_on_its_thread() -> None:
    worker = Worker("x")
    assert [worker.call(lambda n=n: n * n, 5.0) for n in range(200)] == [n * n for n in range(200)]
    assert worker.call(threading.get_ident, 5.0) != threading.get_ident()
    worker.close()


def test_what_it_raises_is_the_callers_and_it_goes_on() -> None:
    worker = Worker("x")
    with pytest.raises(KeyError):
        worker.call(lambda: {}["missing"], 5.0)
    with pytest.raises(PolicyFailed, match="SystemExit"):
        worker.call(lambda: exit(1), 5.0)
    assert worker.call(lambda: 7, 5.0) == 7
    worker.close()


def test_a_late_answer_is_lost_and_the_next_call_gets_its_own() -> None:
    worker, gate = Worker("x"), threading.Event()
    with pytest.raises(TimeoutError):
        worker.call(lambda: gate.wait(20.0), 0.01)
    assert worker.is_busy and not worker.came_back()
    gate.set()
    wait_for(worker.came_back, 20.0, "it came back")
    assert [worker.call(lambda n=n: n, 5.0) for n in range(3)] == [0, 1, 2]
    worker.close()


@pytest.mark.parametrize("state", ["idle", "busy in Python", "busy elsewhere"])
def test_nothing_is_left_of_a_closed_one(state: str) -> None:
    before, gate, entered = eventfds(), threading.Event(), threading.Event()
    worker = Worker("x")
    opened = eventfds() - before
    assert len(opened) == 1 and threads() == 1

    def busy() -> Any:
        entered.set()
        while state == "busy in Python":
            pass
        return gate.wait(20.0)

    if state != "idle":
        with pytest.raises(TimeoutError):
            worker.call(busy, 0.05)
        assert entered.wait(20.0)
    worker.close()
    gate.set()
    wait_for(lambda: not threads(), 20.0, "its thread has ended")
    assert not eventfds() & opened
