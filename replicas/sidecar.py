"""The runtime side of a replica: everything that runs beside the engine, put together.

It is the same for every engine: it knows the engine only through its port.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from replicas.adapters import AdapterKeeper
from replicas.anchors import AnchorStore
from replicas.clock import Clock, SystemClock
from replicas.engine.port import EnginePort
from replicas.engine_feed import EngineFeed
from replicas.exchange import ActorCall, ExchangeLoop, ReplicaName
from replicas.metrics import MetricsPublisher, ReplicaStats
from replicas.prefetch import Load, Outcome
from replicas.prefetch_runner import PrefetchRunner
from replicas.requests import ABORT, RequestLedger, RequestRecord
from replicas.settings import ReplicaSettings
from replicas.tracked_response import tracked_response
from replicas.watchdog import EngineWatchdog, end_process
from runtime_actor.event_buffer import EventBuffer
from runtime_actor.messages import PrefetchFinished, RequestFinished

logger = logging.getLogger(__name__)

_METRICS_INTERVAL_S = 1.0
_RESTART_DELAY_S = 1.0
_LAST_EXCHANGE_S = 1.0


class Sidecar:
    """Owns a replica's buffers, books and loops. All of it lives on one event loop."""

    def __init__(
        self,
        *,
        name: ReplicaName,
        port_of: Callable[[RequestLedger], EnginePort],
        call: ActorCall,
        settings: ReplicaSettings,
        clock: Clock | None = None,
        exit_process: Callable[[str], None] = end_process,
        publish: Callable[[ReplicaStats], None] | None = None,
        adapters: AdapterKeeper | None = None,
        config_version: int = 0,
    ) -> None:
        self._name = name
        self._adapters = adapters
        self._clock = clock or SystemClock()
        self._event_numbers = itertools.count()
        self.stats = ReplicaStats()
        self._publish = publish or MetricsPublisher(name.replica).publish
        self.events = EventBuffer(max_events=settings.exchange.buffer_events, max_bytes=settings.exchange.buffer_bytes)
        self.anchors = AnchorStore(cap_bytes=settings.anchors.cap_bytes, max_anchors=settings.anchors.max_anchors)
        self.ledger = self._make_ledger()
        self.port = port_of(self.ledger)
        self.feed = EngineFeed(self.port, self._clock, on_state=lambda state: self.prefetch.engine_answered(state))
        self.prefetch = self._make_prefetch(settings)
        self.exchange = self._make_exchange(call, settings, config_version)
        self.watchdog = self._make_watchdog(exit_process, settings)
        self._tasks: list[asyncio.Task[None]] = []

    def _make_ledger(self) -> RequestLedger:
        return RequestLedger(
            replica=self._name.replica,
            clock=self._clock,
            next_event_id=self._next_event_id,
            on_begin=self._began,
            on_accepted=self._accepted,
            on_finish=self._finished,
        )

    def _make_prefetch(self, settings: ReplicaSettings) -> PrefetchRunner:
        return PrefetchRunner(
            port=self.port,
            anchors=self.anchors,
            load=self._load,
            on_outcome=self._prefetch_ended,
            clock=self._clock,
            settings=settings.prefetch,
        )

    def _make_exchange(self, call: ActorCall, settings: ReplicaSettings, config_version: int) -> ExchangeLoop:
        return ExchangeLoop(
            name=self._name,
            call=call,
            feed=self.feed,
            events=self.events,
            anchors=self.anchors,
            stats=self.stats,
            on_action=self.prefetch.offer,
            on_prefetch_switch=self.prefetch.switch,
            on_adapters=lambda values: self._adapters.take_values(values) if self._adapters is not None else None,
            policies=lambda: [self._adapters.as_row()] if self._adapters is not None else [],
            silent_s=lambda: self.watchdog.silent_s,
            next_event_id=self._next_event_id,
            clock=self._clock,
            settings=settings.exchange,
            config_version=config_version,
        )

    def _make_watchdog(self, exit_process: Callable[[str], None], settings: ReplicaSettings) -> EngineWatchdog:
        return EngineWatchdog(
            check_alive=self.port.check_alive,
            busy=lambda: self.ledger.num_in_flight > 0,
            progress_s=lambda: max(self.ledger.last_output_s, self.feed.last_answer_s),
            exit_process=exit_process,
            clock=self._clock,
            settings=settings.watchdog,
        )

    def start(self) -> None:
        """Start the loops on the running event loop."""
        loops = [self.watchdog.run, self.exchange.run, self.prefetch.run, self._publish_metrics]
        if self._adapters is not None:
            loops.append(self._adapters.run)
        self._tasks = [asyncio.get_running_loop().create_task(self._keep_running(run)) for run in loops]

    async def stop(self) -> None:
        """End the loops; every live warm-up gets its outcome. May be called twice."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
            await self._last_exchange()
        await self.feed.close()

    async def _last_exchange(self) -> None:
        """What ended with the replica still goes up, if the actor is there."""
        try:
            async with asyncio.timeout(_LAST_EXCHANGE_S):
                await self.exchange.step()
        except TimeoutError:
            logger.warning("%d events did not reach the runtime actor", len(self.events))
        except Exception:
            # Whatever it is, the engine is still to be shut down.
            logger.exception("The last exchange failed; %d events did not reach the runtime actor", len(self.events))

    def respond(
        self, request: Any, open_stream: Callable[[], Awaitable[AsyncGenerator[Any, None]]]
    ) -> AsyncGenerator[Any, None]:
        """A client's response, with RequestAccepted before it and RequestFinished after it."""
        return tracked_response(open_stream, request, self.ledger, self._name.replica)

    def routing_stats(self) -> dict[str, Any]:
        """For Serve's own broadcast, the router's fallback; small and without identities."""
        state = self.feed.state
        return {
            "in_flight": self.ledger.num_in_flight,
            "running": state.running if state else 0,
            "waiting": state.waiting if state else 0,
            "free_blocks": state.free_blocks if state else 0,
            "total_blocks": state.total_blocks if state else 0,
            "hit_rate": self.stats.hit_rate,
        }

    def _next_event_id(self) -> str:
        return f"{self._name.replica}:{next(self._event_numbers)}"

    def _load(self) -> Load:
        """A warm-up of our own may be among the engine's waiting: no more than our demand counts."""
        in_flight = self.ledger.num_in_flight
        waiting = self.feed.state.waiting if self.feed.state else 0
        return Load(in_flight=in_flight, waiting=min(waiting, in_flight))

    def _began(self, record: RequestRecord) -> None:
        self.prefetch.demand_began()
        if self._adapters is not None:
            self._adapters.request_began(record.model)

    def _accepted(self, record: RequestRecord) -> None:
        if record.tag is not None:
            self.prefetch.demand_accepted(record.tag.workload, record.tag.agent, record.cached_tokens)

    def _finished(self, record: RequestRecord, event: RequestFinished | None) -> None:
        self.stats.requests += 1
        self.stats.prompt_tokens += record.prompt_tokens
        self.stats.cached_tokens += record.cached_tokens
        self.stats.completion_tokens += record.completion_tokens
        if event is not None:
            self.stats.aborted_requests += event.finish_reason == ABORT
            self.events.add(event)
        self.prefetch.demand_ended()
        if self._adapters is not None:
            self._adapters.request_ended(record.model)

    def _prefetch_ended(self, outcome: Outcome) -> None:
        self.stats.prefetches[outcome.outcome, outcome.reason] += 1
        self.stats.warmed_tokens += outcome.tokens
        self.events.add(
            PrefetchFinished(
                event_id=self._next_event_id(),
                t_s=self._clock.wall_s(),
                replica=self._name.replica,
                workload=outcome.action.workload,
                agent=outcome.action.agent,
                action_id=outcome.action.action_id,
                outcome=outcome.outcome,
                reason=outcome.reason,
                tokens=outcome.tokens,
            )
        )

    async def _publish_metrics(self) -> None:
        while True:
            self.stats.exchange_age_s_now = self._clock.monotonic_s() - self.exchange.last_reply_s
            self.stats.in_flight_now = self.ledger.num_in_flight
            self.stats.dropped_events = self.events.dropped
            self.stats.engine_busy_calls = self.feed.busy_calls
            self.stats.engine_refusals = self.feed.refused_calls
            if self.feed.state is not None:
                self.stats.evicted_blocks = self.feed.state.evicted_blocks
                self.stats.passed_over = self.feed.state.passed_over
                self.stats.fallbacks = self.feed.state.fallbacks
                self.stats.free_blocks_now = self.feed.state.free_blocks
            self._publish(self.stats)
            await self._clock.wait(None, _METRICS_INTERVAL_S)

    async def _keep_running(self, run: Callable[[], Awaitable[None]]) -> None:
        """A loop that fails is logged, counted and started again: requests must not pay for it."""
        while True:
            try:
                await run()
                return
            except Exception:
                self.stats.loop_failures += 1
                logger.exception("A background loop failed; it starts again in %.0f s", _RESTART_DELAY_S)
            await self._clock.wait(None, _RESTART_DELAY_S)
