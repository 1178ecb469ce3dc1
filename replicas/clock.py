"""Time behind a port, so that loops are tested without sleeping."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time for durations, wall time for messages, and the only way a loop may wait."""

    def monotonic_s(self) -> float: ...

    def wall_s(self) -> float: ...

    async def wait(self, event: asyncio.Event | None, timeout_s: float) -> bool:
        """Wait for `event` at most `timeout_s` seconds (None: only the time); True if it was set."""
        ...


class SystemClock:
    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()

    async def wait(self, event: asyncio.Event | None, timeout_s: float) -> bool:
        if event is None:
            await asyncio.sleep(timeout_s)
            return False
        if event.is_set():
            return True
        try:
            # Not wait_for: until Python 3.12 it swallows a cancellation that comes with the event.
            async with asyncio.timeout(timeout_s):
                return await event.wait()
        except TimeoutError:
            return False
