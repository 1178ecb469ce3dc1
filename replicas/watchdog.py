"""Ends a replica whose engine is dead or stuck.

A dead engine answers every request at once with an error, so its queue is always the shortest and it
draws the whole load: a replica must end with its engine, long before Serve's own health check would.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Awaitable, Callable
from typing import NoReturn

from replicas.clock import Clock
from replicas.settings import WatchdogSettings
from runtime_actor.errors import EngineGone

logger = logging.getLogger(__name__)

_PAUSED_POLLS = 25
"""A gap of this many polls between two looks means that this process itself did not run."""


class EngineWatchdog:
    """Polls the engine; `exit_process` is called once with the reason.

    Stuck means: it was given work, and for `stuck_after_s` there was neither an output from the engine nor an
    answer to a call between its steps, even if whoever waited has left meanwhile. Load can't trigger it: a
    loaded engine still finishes steps, each of which gives outputs and answers. Time in which this process
    didn't run (suspended, starved) is not counted.
    """

    def __init__(
        self,
        *,
        check_alive: Callable[[], Awaitable[None]],
        busy: Callable[[], bool],
        progress_s: Callable[[], float],
        exit_process: Callable[[str], None],
        clock: Clock,
        settings: WatchdogSettings,
    ) -> None:
        self._check_alive = check_alive
        self._busy = busy
        self._progress_s = progress_s
        self._exit_process = exit_process
        self._clock = clock
        self._settings = settings
        self._waiting_since_s = clock.monotonic_s()
        self._last_poll_s = clock.monotonic_s()
        self._silent_s = 0.0
        self._owes = False
        """It was given work and has said nothing since."""

    @property
    def silent_s(self) -> float:
        """For how long the engine, given work, has given neither output nor answer, as of the last look."""
        return self._silent_s

    async def run(self) -> None:
        """Until the engine is gone or the task is cancelled."""
        while True:
            reason = await self.poll()
            if reason is not None:
                self._exit_process(reason)
                return
            await self._clock.wait(None, self._settings.poll_s)

    async def poll(self) -> str | None:
        """One look at the engine; the reason to end the process, if there is one."""
        try:
            await self._check_alive()
        except EngineGone as error:
            return f"engine is dead: {error}"
        return self._stuck(self._clock.monotonic_s())

    def _stuck(self, now_s: float) -> str | None:
        starved = now_s - self._last_poll_s > _PAUSED_POLLS * self._settings.poll_s
        self._last_poll_s = now_s
        is_busy = self._busy()
        if starved or not (is_busy or self._owes):
            self._waiting_since_s = now_s
            self._silent_s = 0.0
            return None
        progress_s = self._progress_s()
        self._owes = is_busy or progress_s <= self._waiting_since_s
        self._waiting_since_s = max(self._waiting_since_s, progress_s)
        self._silent_s = now_s - self._waiting_since_s if self._owes else 0.0
        if self._silent_s < self._settings.stuck_after_s:
            return None
        return f"engine is stuck: no output and no answer for {self._silent_s:.0f} s since it was given work"


def end_process(reason: str) -> NoReturn:
    """Kill the engine's processes (children of this one) and leave without any clean-up.

    An orderly shutdown would wait for an engine that no longer answers.
    """
    logger.error("Ending this replica: %s", reason)
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(1)
