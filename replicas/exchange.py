"""The exchange loop: events and a report up to the actor, tables and actions down to the engine.

The request path only adds to the event buffer. While the actor is away the engine goes on with the last
tables it has; events wait, bounded, and go up when the actor is back.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from replicas.anchors import AnchorStore
from replicas.clock import Clock
from replicas.engine.port import EngineState
from replicas.engine_feed import EngineFeed
from replicas.metrics import ReplicaStats
from replicas.settings import ExchangeSettings
from runtime_actor.errors import MessageError, RuntimeUnavailable
from runtime_actor.event_buffer import EventBuffer
from runtime_actor.messages import (
    AnchorRecorded,
    ExchangeReply,
    ExchangeRequest,
    PrefetchAction,
    ReplicaReport,
)

logger = logging.getLogger(__name__)

ActorCall = Callable[[ExchangeRequest], Awaitable[ExchangeReply]]
"""Raises RuntimeUnavailable when the actor doesn't answer in time, MessageError when it refuses."""

_MAX_ANCHORS_A_CALL = 16
_NO_EPOCH = 0


@dataclass(frozen=True, slots=True)
class ReplicaName:
    replica: str
    node: str


class ExchangeLoop:
    """One call to the actor in flight; the next at once when events wait, else when the actor said.

    `on_action` gets each PrefetchAction, `on_prefetch_switch` whether warm-ups are wanted at all, `on_adapters` what
    the adapters are worth, `policies` the rows of what runs beside the engine, `silent_s` for how long the engine has
    had work and said nothing, `next_event_id` names the events made here. `config_version` is this replica's
    deployment's.
    """

    def __init__(
        self,
        *,
        name: ReplicaName,
        call: ActorCall,
        feed: EngineFeed,
        events: EventBuffer,
        anchors: AnchorStore,
        stats: ReplicaStats,
        on_action: Callable[[PrefetchAction], None],
        on_prefetch_switch: Callable[[bool], None],
        on_adapters: Callable[[dict], None],
        policies: Callable[[], list[dict]],
        silent_s: Callable[[], float],
        next_event_id: Callable[[], str],
        clock: Clock,
        settings: ExchangeSettings,
        config_version: int = 0,
    ) -> None:
        self._name = name
        self._call = call
        self._feed = feed
        self._events = events
        self._anchors = anchors
        self._stats = stats
        self._on_action = on_action
        self._on_prefetch_switch = on_prefetch_switch
        self._on_adapters = on_adapters
        self._policies, self._silent_s = policies, silent_s
        self._next_event_id = next_event_id
        self._clock = clock
        self._settings = settings
        self._config_version = config_version
        self._epoch, self._version = _NO_EPOCH, 0
        self._min_gap_s = settings.min_gap_s
        self.actor_is_away = False
        self.last_failure = ""
        """What went wrong at the last call that failed."""
        self.last_reply_s = clock.monotonic_s()
        self._dropped_before = 0

    @property
    def epoch(self) -> int:
        """Of the actor that answered last; 0 before the first answer."""
        return self._epoch

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            started_s = self._clock.monotonic_s()
            next_call_s = await self.step()
            await self._pause(started_s, next_call_s)

    async def step(self) -> float:
        """One exchange with the engine and the actor; seconds until the next is due without events."""
        await self._feed.refresh(self._settings.engine_wait_s)
        self._record_anchors()
        batch = self._events.take(self._settings.batch_events)
        sessions = self._feed.sessions
        request = ExchangeRequest(
            caller=self._name.replica,
            caller_kind="replica",
            epoch=self._epoch,
            version=self._version,
            events=[event.to_wire() for event in batch],
            report=self._report(sessions),
        )
        try:
            reply = await self._call(request)
        except RuntimeUnavailable as error:
            self._events.put_back(batch)
            self._away(error)
            return self._settings.away_retry_s
        except MessageError as error:
            # Sent again it would be refused again, and hold back everything behind it.
            self._events.dropped += len(batch)
            self._away(error)
            return self._settings.away_retry_s
        except BaseException:
            self._events.put_back(batch)
            raise
        self._feed.sessions_sent(sessions)
        await self._accept(reply)
        return min(max(reply.next_call_s, self._min_gap_s), self._settings.max_gap_s)

    async def _pause(self, started_s: float, next_call_s: float) -> None:
        """The minimum gap, then until events wait or the next call is due.

        While the actor is away new events don't hasten a call that would find nobody.
        """
        await self._clock.wait(None, self._left_s(started_s, self._min_gap_s))
        left_s = self._left_s(started_s, next_call_s)
        if left_s > 0.0:
            await self._clock.wait(None if self.actor_is_away else self._events.filled, left_s)

    def _left_s(self, started_s: float, gap_s: float) -> float:
        return max(0.0, started_s + gap_s - self._clock.monotonic_s())

    def _away(self, error: Exception) -> None:
        self._stats.exchange_failures += 1
        self.last_failure = f"{type(error).__name__}: {error}"
        if not self.actor_is_away:
            logger.warning("The runtime actor is away, going on with the last tables: %s", error)
        self.actor_is_away = True

    async def _accept(self, reply: ExchangeReply) -> None:
        if self.actor_is_away:
            logger.info("The runtime actor is back (epoch %d)", reply.epoch)
            if self._events.dropped > self._dropped_before:
                # While it was away, and anchors may have been among them.
                self._anchors.forget_announcements()
        self.actor_is_away = False
        self.last_failure = ""
        self._dropped_before = self._events.dropped
        self.last_reply_s = self._clock.monotonic_s()
        self._stats.exchanges += 1
        if reply.need_sessions or reply.epoch != self._epoch:
            self._register_again(first=self._epoch == _NO_EPOCH)
        self._min_gap_s = min(max(reply.min_gap_s, self._settings.min_gap_s), self._settings.max_gap_s)
        self._feed.hand_down(reply.tables, _sessions(reply.ended))
        # Only now: what the actor is told to be known here isn't sent again.
        self._epoch, self._version = reply.epoch, reply.version
        self._take_policy(reply.policy)
        self._take_queue_policies(reply.policies, reply.config_version)
        self._on_adapters(reply.adapters)
        for wire in reply.actions:
            self._take_action(wire)
        if self._feed.has_news:
            await self._feed.refresh(self._settings.engine_wait_s)

    def _register_again(self, *, first: bool) -> None:
        """Another actor: it may know nothing of this replica's sessions and anchors."""
        self._feed.ask_for_sessions()
        if not first:
            self._anchors.forget_announcements()

    def _take_policy(self, policy: dict) -> None:
        mode, weight = policy.get("mode"), policy.get("weight")
        if isinstance(mode, str) and isinstance(weight, (int, float)):
            self._feed.set_policy((mode, float(weight)))
        elif policy:
            self._stats.bad_messages += 1
            logger.warning("Policy from the actor left out: %r", policy)
        if isinstance(policy.get("prefetch"), bool):
            self._on_prefetch_switch(policy["prefetch"])

    def _take_queue_policies(self, policies: list, config_version: int) -> None:
        """What the actor says is in force, unless it is of an older deployment than this replica."""
        if config_version < self._config_version:
            return
        try:
            self._feed.set_queue_policies(json.dumps(policies))
        except (TypeError, ValueError, RecursionError) as error:
            self._stats.bad_messages += 1
            logger.warning("Policies from the actor left out: %s", error)

    def _take_action(self, wire: dict) -> None:
        try:
            self._on_action(PrefetchAction.from_wire(wire))
        except MessageError as error:
            self._stats.bad_messages += 1
            logger.warning("Action from the actor left out: %s", error)

    def _record_anchors(self) -> None:
        for anchor in self._feed.take_anchors():
            self._anchors.add(anchor)
        for anchor in self._anchors.unannounced(_MAX_ANCHORS_A_CALL):
            self._events.add(
                AnchorRecorded(
                    event_id=self._next_event_id(),
                    t_s=self._clock.wall_s(),
                    replica=self._name.replica,
                    workload=anchor.workload,
                    agent=anchor.agent,
                    digest=anchor.digest,
                    token_ids=anchor.token_ids,
                    cache_salt=anchor.cache_salt,
                    lora_name=anchor.lora_name,
                )
            )

    def _report(self, sessions: list[list] | None) -> dict | None:
        """None until the engine has answered once."""
        state = self._feed.state
        if state is None:
            return None
        report = _replica_report(self._name, state, self._anchors, self._stats, self._events.dropped, sessions)
        policies = [*report.policies, *self._policies()]
        return dataclasses.replace(report, policies=policies, silent_s=self._silent_s()).to_wire()


def _replica_report(
    name: ReplicaName,
    state: EngineState,
    anchors: AnchorStore,
    stats: ReplicaStats,
    dropped_events: int,
    sessions: list[list] | None,
) -> ReplicaReport:
    return ReplicaReport(
        replica=name.replica,
        node=name.node,
        t_s=state.t_s,
        policy=state.policy,
        block_size=state.block_size,
        total_blocks=state.total_blocks,
        free_blocks=state.free_blocks,
        running=state.running,
        waiting=state.waiting,
        resident=state.resident,
        anchors=anchors.listing(),
        sessions=sessions or [],
        prompt_tokens=stats.prompt_tokens,
        cached_tokens=stats.cached_tokens,
        evicted_blocks=state.evicted_blocks,
        dropped_events=dropped_events,
        policies=state.policies,
    )


def _sessions(ended: list[list]) -> list[tuple[str, str]]:
    return [(str(entry[0]), str(entry[1])) for entry in ended if isinstance(entry, (list, tuple)) and len(entry) == 2]
