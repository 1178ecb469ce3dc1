"""The way to the engine and back: what waits to be handed down, and the newest state that came up."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable

from replicas.anchors import Anchor
from replicas.clock import Clock
from replicas.engine.port import EnginePort, EngineState, HandDown
from runtime_actor.errors import EngineBusy, EngineGone, MessageError

logger = logging.getLogger(__name__)

_MAX_WORKLOADS = 1024
_MAX_ENDED = 8192
_MAX_NEW_ANCHORS = 256
"""Beyond a cap the oldest entry is dropped: tables come again when they change, an ended session that the
engine wasn't told of decays like any idle one, and anchors are taken with each call, which has fewer."""


class EngineFeed:
    """One call to the engine in flight. A call that fails leaves what it carried for the next.

    `on_state` hears of every answer.
    """

    def __init__(
        self,
        port: EnginePort,
        clock: Clock,
        on_state: Callable[[EngineState], None] = lambda state: None,
    ) -> None:
        self._port = port
        self._clock = clock
        self._on_state = on_state
        self._tables: OrderedDict[str, bytes] = OrderedDict()
        self._ended: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._policy: tuple[str, float] | None = None
        self._handed_policy: tuple[str, float] | None = None
        self._queue_policies: str | None = None
        self._handed_queue_policies: str | None = None
        self._with_sessions = False
        self._with_anchors = False
        self._call: asyncio.Task[None] | None = None
        self._done = asyncio.Event()
        self._anchors: list[Anchor] = []
        self.state: EngineState | None = None
        self.sessions: list[list] | None = None
        """What the engine answered when it was asked for its sessions, until these were sent."""
        self.last_answer_s = clock.monotonic_s()
        self.busy_calls = 0
        self.refused_calls = 0

    @property
    def has_news(self) -> bool:
        return bool(self._tables or self._ended or self._policy or self._queue_policies or self._with_sessions)

    def hand_down(self, tables: dict[str, bytes], ended: list[tuple[str, str]]) -> None:
        """Queue for the engine; newer tables of a workload replace older ones."""
        for workload, data in tables.items():
            self._tables[workload] = data
            self._tables.move_to_end(workload)
        for session in ended:
            self._ended[session] = None
        self._trim()

    def set_policy(self, policy: tuple[str, float]) -> None:
        """Order the cache so from the next call on; nothing to do if the engine was told already."""
        self._policy = None if policy == self._handed_policy else policy

    def set_queue_policies(self, settings: str) -> None:
        """Order the waiting queue so (as in EngineTables); nothing to do if the engine was told already."""
        self._queue_policies = None if settings == self._handed_queue_policies else settings

    def ask_for_sessions(self) -> None:
        self._with_sessions = True

    def sessions_sent(self, sent: list[list] | None) -> None:
        """These have arrived; what came up since they were taken is still to be sent."""
        if self.sessions is sent:
            self.sessions = None

    async def refresh(self, wait_s: float) -> None:
        """Start a call unless one is in flight and wait for it, at most `wait_s` seconds."""
        if self._call is None or self._call.done():
            self._done.clear()
            self._call = asyncio.get_running_loop().create_task(self._exchange())
        await self._clock.wait(self._done, wait_s)

    def take_anchors(self) -> list[Anchor]:
        """Anchors the engine found since the last call of this."""
        anchors, self._anchors = self._anchors, []
        return anchors

    async def close(self) -> None:
        if self._call is not None:
            self._call.cancel()
            await asyncio.wait({self._call})

    async def _exchange(self) -> None:
        down = HandDown(
            dict(self._tables),
            tuple(self._ended),
            self._policy,
            self._queue_policies,
            self._with_sessions,
            self._with_anchors,
        )
        self._tables.clear()
        self._ended.clear()
        self._policy = self._queue_policies = None
        self._with_sessions = self._with_anchors = False
        try:
            state = await self._port.exchange(down)
        except (EngineBusy, EngineGone) as error:
            self.busy_calls += 1
            self._restore(down)
            logger.debug("No answer from the engine: %s", error)
        except MessageError as error:
            # Handed down again it would be refused again. An engine that refuses isn't stuck.
            self.refused_calls += 1
            self.last_answer_s = self._clock.monotonic_s()
            logger.warning("The engine refused what was handed down: %s", error)
        except Exception:
            self.busy_calls += 1
            self._restore(down)
            logger.exception("The call to the engine failed")
        else:
            self._accept(state, down)
        finally:
            self._done.set()

    def _accept(self, state: EngineState, down: HandDown) -> None:
        self.last_answer_s = self._clock.monotonic_s()
        self.state = state
        if down.policy is not None:
            self._handed_policy = down.policy
        if down.queue_policies is not None:
            self._handed_queue_policies = down.queue_policies
        if down.with_sessions:
            self.sessions = state.sessions
        self._anchors = [*self._anchors, *state.anchors][-_MAX_NEW_ANCHORS:]
        self.refused_calls += len(state.rejected)
        for reason in state.rejected:
            logger.warning("The engine left out a part of what was handed down: %s", reason)
        self._on_state(state)

    def _restore(self, down: HandDown) -> None:
        for workload, data in reversed(down.tables.items()):
            if workload not in self._tables:
                self._tables[workload] = data
                self._tables.move_to_end(workload, last=False)
        for session in down.ended:
            self._ended.setdefault(session)
        # A call that got no answer in time may be carried out later: what it set has to be told again either way.
        if down.policy is not None:
            self._handed_policy = None
        if down.queue_policies is not None:
            self._handed_queue_policies = None
        self._policy = self._policy or down.policy
        self._queue_policies = self._queue_policies or down.queue_policies
        self._with_sessions |= down.with_sessions
        # So may its answer, with anchors that the engine takes for told.
        self._with_anchors = True
        self._trim()

    def _trim(self) -> None:
        while len(self._tables) > _MAX_WORKLOADS:
            self._tables.popitem(last=False)
        while len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)
