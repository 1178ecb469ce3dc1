"""Tool calls that the runtime expects next, run in the background before the program makes them.

Which ones comes with the runtime's answers. Each is looked up first, so that nothing is run twice; at most `at_once`
run at a time and MAX_QUEUED wait, the rest is dropped. A call that fails is given back and nothing is said of it: the
program makes it again, or doesn't.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

logger = logging.getLogger(__name__)

AT_ONCE = 4
MAX_QUEUED = 16
CLOSE_WAIT_S = 2.0
"""What closing waits for look-ups under way, so that no run is promised that nobody makes."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool that may be run ahead. `run` takes the arguments as an object; `keep` says whether a result may be
    kept."""

    version: str | None
    run: Callable[[dict[str, Any]], Any]
    keep: Callable[[Any], bool] = lambda result: True


@dataclass(frozen=True, slots=True)
class Expected:
    """One entry of an answer's `ahead`."""

    tool: str
    arguments: dict[str, Any]
    offer: Offer


class PlainWay(Protocol):
    """What the threads need of the connection to the runtime; neither raises."""

    def ticket_ahead(self, tool: str, version: str | None, arguments: dict[str, Any]) -> str | None: ...

    def end_ahead(self, ticket: str, offer: Offer, result: Any, failed: bool) -> None: ...


class AsyncWay(Protocol):
    async def aticket_ahead(self, tool: str, version: str | None, arguments: dict[str, Any]) -> str | None: ...

    async def aend_ahead(self, ticket: str, offer: Offer, result: Any, failed: bool) -> None: ...


def expected(answer: dict[str, Any], offers: dict[str, Offer]) -> list[Expected]:
    """Those calls that an answer names and that are offered here, in the same version."""
    named = answer.get("ahead")
    found = []
    for entry in named if isinstance(named, list) else ():
        tool, arguments = (entry.get("tool"), entry.get("arguments")) if isinstance(entry, dict) else (None, None)
        offer = offers.get(tool) if isinstance(tool, str) else None
        if offer is not None and isinstance(arguments, dict) and entry.get("version") == offer.version:
            found.append(Expected(str(tool), arguments, offer))
    return found


class PlainAhead:
    """Threads that are there while there is something to run. They don't keep the program from ending."""

    def __init__(self, way: PlainWay, at_once: int) -> None:
        self.offers: dict[str, Offer] = {}
        self._way = way
        self._at_once = at_once
        self._lock = threading.Condition()
        self._queue: deque[Expected] = deque()
        self._threads = 0
        self._asking = 0
        self._tickets: dict[str, Offer] = {}
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        with self._lock:
            return not self._threads

    def take(self, answer: dict[str, Any]) -> None:
        for call in expected(answer, self.offers):
            with self._lock:
                if self._is_closed or not self._at_once or len(self._queue) >= MAX_QUEUED:
                    return
                self._queue.append(call)
                if self._threads >= self._at_once:
                    continue
                self._threads += 1
            threading.Thread(target=self._work, name="agent-runtime-ahead", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._threads -= 1
                    return
                call = self._queue.popleft()
                self._asking += 1
            ticket = self._ask(call)
            if ticket is not None:
                self._run(call, ticket)

    def _ask(self, call: Expected) -> str | None:
        """The right to run it, unless the end came meanwhile."""
        ticket = self._way.ticket_ahead(call.tool, call.offer.version, call.arguments)
        with self._lock:
            is_late = self._is_closed
            if ticket is not None and not is_late:
                self._tickets[ticket] = call.offer
        if ticket is not None and is_late:
            self._way.end_ahead(ticket, call.offer, None, True)
        with self._lock:
            self._asking -= 1
            self._lock.notify_all()
        return None if is_late else ticket

    def _run(self, call: Expected, ticket: str) -> None:
        result, failed = None, False
        try:
            result = call.offer.run(call.arguments)
        except BaseException as error:  # noqa: BLE001 - the program didn't make this call
            logger.debug("%s failed ahead: %r", call.tool, error)
            failed = True
        with self._lock:
            is_ours = self._tickets.pop(ticket, None) is not None
        if is_ours:
            self._way.end_ahead(ticket, call.offer, result, failed)

    def close(self) -> None:
        """Nothing more is run; what runs is given back, and its result is lost."""
        with self._lock:
            self._is_closed = True
            self._queue.clear()
            tickets, self._tickets = self._tickets, {}
            self._lock.wait_for(lambda: not self._asking, CLOSE_WAIT_S)
        for ticket, offer in tickets.items():
            self._way.end_ahead(ticket, offer, None, True)


class AsyncAhead:
    """Tasks on the event loop of the functions that are run."""

    def __init__(self, way: AsyncWay, at_once: int) -> None:
        self.offers: dict[str, Offer] = {}
        self._way = way
        self._at_once = at_once
        self._queue: deque[Expected] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        return not self._tasks

    def take(self, answer: dict[str, Any]) -> None:
        for call in expected(answer, self.offers):
            if self._at_once and len(self._queue) < MAX_QUEUED and not self._is_closed:
                self._queue.append(call)
        self._start()

    def _start(self) -> None:
        while self._queue and len(self._tasks) < self._at_once:
            task = asyncio.get_running_loop().create_task(self._run(self._queue.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._start()

    async def _run(self, call: Expected) -> None:
        ticket = await self._way.aticket_ahead(call.tool, call.offer.version, call.arguments)
        if ticket is None:
            return
        result, failed = None, self._is_closed
        if not failed:
            try:
                result = await self._made(call)
            except BaseException as error:  # noqa: BLE001 - the program didn't make this call; closing cancels it
                logger.debug("%s failed ahead: %r", call.tool, error)
                failed = True
        await self._way.aend_ahead(ticket, call.offer, result, failed)

    async def _made(self, call: Expected) -> Any:
        run: Awaitable[Any] = call.offer.run(call.arguments)
        task = asyncio.ensure_future(run)
        self._running.add(task)
        try:
            return await task
        finally:
            self._running.discard(task)

    async def aclose(self) -> None:
        """What runs is ended and given back; what is being asked for is not begun."""
        self._is_closed = True
        self._queue.clear()
        for running in list(self._running):
            running.cancel()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_WAIT_S)
            for task in late:
                task.cancel()
