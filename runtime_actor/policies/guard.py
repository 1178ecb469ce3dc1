"""Calls into policies that can't take their host down: bounded in time, checked, counted.

Code that says of itself that it returns at once (`Policy.in_place`) is called directly. Any other policy is
called on a thread of its own while the caller waits for at most the limit; one that is still busy then fails
every call until it comes back.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
import time
from _thread import allocate_lock
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from runtime_actor.errors import AgentRuntimeError
from runtime_actor.policies.base import Observation, Policy

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_UNSEEN = 32
"""Events that a policy on a thread of its own is behind at most; one that hangs misses the oldest."""
MAX_HANGS = 3
"""A policy that so often failed to answer in time is switched off, whatever the bound of its other failures."""


class PolicyFailed(AgentRuntimeError):
    """Raised when a policy raised, took too long, or answered what its hook doesn't allow; `policy` is its name (None:
    it is the host that can't have it judged)."""

    def __init__(self, message: str, policy: str | None = None) -> None:
        super().__init__(message)
        self.policy = policy

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.policy)


class BusyPolicy(AgentRuntimeError):
    """Raised when a policy hasn't come back from an earlier call."""


class _Ended(BaseException):
    """Raised inside a policy's thread to end what it is doing."""


class Worker:
    """One thread that runs one call at a time for one caller.

    The thread waits at an eventfd, since writing to that lets go of the interpreter's lock: the thread that wakes
    finds it free, and often is done before the caller has it back. Woken through a lock it has to wait once more,
    for a caller that still holds the interpreter: twice the time at the median.
    """

    def __init__(self, name: str) -> None:
        self.is_busy = False
        self._job: Callable[[], Any] = lambda: None
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_closed = False
        self._go = os.eventfd(0)
        self._done = allocate_lock()
        self._done.acquire()
        self._thread = threading.Thread(target=self._run, name=f"policy-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_closed:
                os.eventfd_read(self._go)
                self._work()
        except _Ended:
            return
        finally:
            os.close(self._go)

    def _work(self) -> None:
        if self._is_closed:
            return
        try:
            self._result, self._error = self._job(), None
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            self._result, self._error = None, error
        self._done.release()

    def call(self, job: Callable[[], T], limit_s: float) -> T:
        """Raises TimeoutError if it isn't done in time: the thread is then busy until `came_back`."""
        self.is_busy, self._job = True, job
        os.eventfd_write(self._go, 1)
        if not self._done.acquire(True, limit_s):
            raise TimeoutError
        self.is_busy = False
        error, self._error = self._error, None
        if error is not None:
            # A policy has no say over its host's thread: an exit or a cancellation is a failure like any other.
            raise error if isinstance(error, Exception) else PolicyFailed(repr(error))
        result: T = self._result
        return result

    def came_back(self) -> bool:
        """Whether a call that timed out has ended since; its answer is lost."""
        if self.is_busy and self._done.acquire(False):
            self.is_busy = False
            self._error = None
        return not self.is_busy

    def close(self) -> None:
        """End the thread; one that is inside a policy gets an exception when it next runs Python code."""
        self._is_closed = True
        # First this: once the thread ends, its file descriptor is closed and may soon be another's.
        os.eventfd_write(self._go, 1)
        if self.is_busy and self._thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(_Ended))


@dataclass(slots=True)
class Hosted:
    """A policy and how it behaves. `switched_off` is set once it failed too often."""

    policy: Policy
    calls: Counter[str] = field(default_factory=Counter)
    decisions: Counter[str] = field(default_factory=Counter)
    failures: int = 0
    hangs: int = 0
    slow: int = 0
    switched_off: bool = False
    worker: Worker | None = None
    unseen: list[Observation] = field(default_factory=list)
    """Events that the policy sees before its next call."""

    @property
    def name(self) -> str:
        return self.policy.settings.name

    @property
    def enabled(self) -> bool:
        return self.policy.settings.enabled and not self.switched_off

    @property
    def fails_closed(self) -> bool:
        """Whether requests are refused while it can't judge them."""
        return self.policy.settings.enabled and bool(getattr(self.policy.settings, "fail_closed", False))

    def replace(self, policy: Policy) -> None:
        """Put `policy` in the place of the one here; the old one's failures are forgiven."""
        self.close()
        self.policy = policy
        self.failures = self.hangs = 0
        self.switched_off = False

    def succeeded_by(self, policy: Policy) -> Hosted:
        """As after `replace`, while this one stays as it is."""
        return Hosted(policy, self.calls.copy(), self.decisions.copy(), slow=self.slow)

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
            self.worker = None

    def __del__(self) -> None:
        """A filter of an answer under way may have called it once more after it was closed."""
        self.close()


def _see(policy: Policy, events: list[Observation], errors: list[str]) -> None:
    """A policy that raises at one of them has still seen the others."""
    for event in events:
        try:
            policy.observe(event)
        except Exception as error:  # noqa: BLE001 - whatever a policy raises stays here
            errors.append(repr(error)[:200])


class Guard:
    """`limit_s` is what a call may take, `failure_limit` after how many failures a policy is switched off."""

    def __init__(self, failure_limit: int, limit_s: float) -> None:
        self._failure_limit = failure_limit
        self._limit_s = limit_s

    def defer(self, hosted: Hosted, event: Observation) -> None:
        """Have the policy see the event before its next call, or now where many wait."""
        if not hosted.enabled:
            return
        hosted.unseen.append(event)
        if len(hosted.unseen) >= MAX_UNSEEN:
            try:
                self.call(hosted, "observe", lambda _: None)
            except PolicyFailed:
                del hosted.unseen[:-MAX_UNSEEN]

    def call(self, hosted: Hosted, primitive: str, job: Callable[[Policy], T]) -> T:
        """The policy's answer. Raises PolicyFailed; the failure has been counted and logged by then."""
        if not hosted.enabled:
            hosted.unseen.clear()
            raise PolicyFailed(f"{hosted.name} is switched off", hosted.name)
        hosted.calls[primitive] += 1
        try:
            return self._direct(hosted, job) if hosted.policy.in_place else self._on_thread(hosted, job)
        except TimeoutError:
            hosted.hangs += 1
            reason = f"no answer within {self._limit_s:g} s"
        except BusyPolicy:
            reason = "still busy with an earlier call"
        except Exception as error:  # noqa: BLE001 - whatever a policy raises stays here
            reason = repr(error)[:200]
        self._failed(hosted, primitive, reason)
        raise PolicyFailed(f"{hosted.name}: {reason}", hosted.name)

    def _direct(self, hosted: Hosted, job: Callable[[Policy], T]) -> T:
        """A slow call is told of and no failure: on a busy machine any code may have to wait."""
        began_s = time.perf_counter()
        answer = job(hosted.policy)
        took_s = time.perf_counter() - began_s
        if took_s > self._limit_s:
            hosted.slow += 1
            if hosted.slow == 1:
                logger.warning("policy %s: a call took %.3g s", hosted.name, took_s)
        return answer

    def _on_thread(self, hosted: Hosted, job: Callable[[Policy], T]) -> T:
        if hosted.worker is None:
            hosted.worker = Worker(hosted.name)
        elif hosted.worker.is_busy and not hosted.worker.came_back():
            raise BusyPolicy
        policy = hosted.policy
        unseen, hosted.unseen = hosted.unseen, []
        if not unseen:
            return hosted.worker.call(lambda: job(policy), self._limit_s)
        errors: list[str] = []

        def seen_first() -> T:
            _see(policy, unseen, errors)
            return job(policy)

        try:
            return hosted.worker.call(seen_first, self._limit_s)
        finally:
            for error in errors:
                self._failed(hosted, "observe", error)

    def _failed(self, hosted: Hosted, primitive: str, reason: str) -> None:
        hosted.failures += 1
        if hosted.failures == 1:
            logger.error(
                "policy %s failed in %s: %s", hosted.name, primitive, reason, exc_info=sys.exc_info()[0] is not None
            )
        if hosted.failures >= self._failure_limit or hosted.hangs >= MAX_HANGS:
            hosted.switched_off = True
            hosted.close()
            logger.error("policy %s switched off after %d failures", hosted.name, hosted.failures)
