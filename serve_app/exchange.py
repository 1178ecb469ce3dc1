"""The gateway's exchange with the runtime actor: events up, tables and the cluster's view down.

One call in flight. New events wake it at once, within the least gap; a request never waits for it.
While the actor is away events are kept (bounded) and routing goes on with the last view.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable

from runtime_actor.errors import MessageError, RuntimeUnavailable
from runtime_actor.event_buffer import EventBuffer
from runtime_actor.messages import ExchangeReply, ExchangeRequest, Message
from runtime_actor.tables import ReachTables
from serve_app.policies.desk import PolicyDesk
from serve_app.routing_state import RoutingState

logger = logging.getLogger("ray.serve")

BATCH_EVENTS = 512
MAX_EVENTS = 4096
"""About a minute of a busy gateway; the actor away for longer costs the oldest events."""

MAX_BYTES = 16 << 20
MIN_GAP_S = 0.1
MAX_GAP_S = 5.0
AWAY_RETRY_S = 1.0

ActorCall = Callable[[ExchangeRequest], Awaitable[ExchangeReply]]
"""Raises RuntimeUnavailable when the actor doesn't answer in time."""


class GatewayExchange:
    """Lives on one event loop; `start` is idempotent and restarts a loop that ended."""

    def __init__(self, caller: str, call: ActorCall, routing: RoutingState, policies: PolicyDesk | None = None) -> None:
        self.buffer = EventBuffer(max_events=MAX_EVENTS, max_bytes=MAX_BYTES)
        self._numbers = itertools.count()
        self._caller = caller
        self._call = call
        self._routing = routing
        self._policies = policies
        self._epoch = 0
        self._version = 0
        self._min_gap_s = MIN_GAP_S
        self._one_call = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.away = False
        self.answered_s = float("-inf")

    @property
    def age_s(self) -> float:
        """Seconds since the actor last answered; infinite before its first answer."""
        return time.monotonic() - self.answered_s

    def next_event_id(self) -> str:
        """Unique over all gateways and their restarts, if the caller's name is."""
        return f"{self._caller}:{next(self._numbers)}"

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def add(self, event: Message) -> None:
        self.buffer.add(event)
        if self._policies is not None:
            self._policies.observe(event)

    async def flush(self) -> None:
        """Deliver what is buffered now, so that a caller sees its own requests. Raises RuntimeUnavailable."""
        for _ in range(MAX_EVENTS // BATCH_EVENTS + 1):
            if not len(self.buffer):
                return
            await self._step()

    async def _run(self) -> None:
        while True:
            try:
                pause_s = await self._step()
            except RuntimeUnavailable as error:
                if not self.away:
                    logger.warning("The runtime actor is away, routing goes on with the last view: %s", error)
                self.away = True
                await asyncio.sleep(AWAY_RETRY_S)
                continue
            except Exception:
                logger.exception("The exchange with the runtime actor failed; it goes on")
                await asyncio.sleep(AWAY_RETRY_S)
                continue
            await asyncio.sleep(self._min_gap_s)
            await self._wait(max(0.0, pause_s - self._min_gap_s))

    async def _wait(self, limit_s: float) -> None:
        """Not `wait_for`: on Python 3.11 it can swallow a cancellation that comes together with the event."""
        try:
            async with asyncio.timeout(limit_s):
                await self.buffer.filled.wait()
        except TimeoutError:
            return

    async def _step(self) -> float:
        """One call; seconds until the next is due if nothing happens. Raises RuntimeUnavailable."""
        async with self._one_call:
            batch = self.buffer.take(BATCH_EVENTS)
            try:
                reply = await self._call(self._request(batch))
            except MessageError as error:
                # Sent again it would be refused again, and hold back everything behind it.
                self.buffer.dropped += len(batch)
                raise RuntimeUnavailable(f"the actor refused {len(batch)} events: {error}") from error
            except BaseException:
                self.buffer.put_back(batch)
                raise
            self._accept(reply)
            return min(max(reply.next_call_s, self._min_gap_s), MAX_GAP_S)

    def _request(self, batch: list[Message]) -> ExchangeRequest:
        return ExchangeRequest(
            caller=self._caller,
            caller_kind="gateway",
            epoch=self._epoch,
            version=self._version,
            events=[event.to_wire() for event in batch],
        )

    def _accept(self, reply: ExchangeReply) -> None:
        if self.away:
            logger.info("The runtime actor is back")
        self.away = False
        self.answered_s = time.monotonic()
        self._epoch, self._version = reply.epoch, reply.version
        self._min_gap_s = max(MIN_GAP_S, min(reply.min_gap_s, MAX_GAP_S))
        if self._policies is not None:
            self._policies.follow(reply.policies, reply.config_version)
        try:
            for wire in reply.tables.values():
                self._routing.update_tables(ReachTables.from_bytes(wire))
            if reply.cluster is not None:
                self._routing.update_cluster(reply.cluster)
        except MessageError as error:
            logger.warning("Part of the actor's answer left out: %s", error)
        for entry in reply.ended:
            if len(entry) == 2:
                self._routing.end_session(str(entry[0]), str(entry[1]))
