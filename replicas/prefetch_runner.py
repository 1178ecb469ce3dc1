"""Runs warm-ups on an engine, one slice at a time, and gives way to demand."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from replicas.anchors import Anchor, AnchorStore, decode_token_ids
from replicas.clock import Clock
from replicas.engine.port import EnginePort, EngineState
from replicas.prefetch import Job, Load, Outcome, PrefetchBook, is_idle, refusal, slice_ends
from replicas.settings import PrefetchSettings
from runtime_actor.errors import EngineBusy, EngineGone, MessageError, WarmupFailed
from runtime_actor.messages import PrefetchAction

logger = logging.getLogger(__name__)

ENGINE_DEADLINE = "deadline"

_IDLE_WAIT_S = 1.0
"""Longest wait between two looks at the book; every change also wakes the runner."""


class PrefetchRunner:
    """Owns the book of warm-ups. `on_outcome` hears of each action's end, once."""

    def __init__(
        self,
        *,
        port: EnginePort,
        anchors: AnchorStore,
        load: Callable[[], Load],
        on_outcome: Callable[[Outcome], None],
        clock: Clock,
        settings: PrefetchSettings,
    ) -> None:
        self._port = port
        self._anchors = anchors
        self._load = load
        self._on_outcome = on_outcome
        self._clock = clock
        self._settings = settings
        self.book = PrefetchBook(settings)
        self._wanted = True
        self._wake = asyncio.Event()
        self._slice: asyncio.Task[int] | None = None

    def offer(self, action: PrefetchAction) -> None:
        """Take an action on; its token ids, if any, go to the anchor store."""
        if action.token_ids:
            self._anchors.add(_anchor_of(action), announced=True)
        self.book.offer(action, self._clock.monotonic_s(), wanted=self._wanted)
        self._changed()

    def switch(self, wanted: bool) -> None:
        """Whether warm-ups are wanted now; what is live runs to its end."""
        self._wanted = wanted

    def demand_began(self) -> None:
        """A client's request came in: the slice that runs is aborted unless there is room for both."""
        if self._slice is not None and not is_idle(self._load(), self._settings):
            self._slice.cancel()

    def demand_accepted(self, workload: str, agent: str, cached_tokens: int) -> None:
        self.book.demand(workload, agent, cached_tokens)
        self._changed()

    def engine_answered(self, state: EngineState) -> None:
        """What the engine itself saw of the warmed blocks; its own deadline isn't ours."""
        for warmup in state.warmups:
            if warmup.reason != ENGINE_DEADLINE:
                self.book.settle(warmup.action_id, warmup.outcome, warmup.reason)
        self._report()

    def demand_ended(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled; then every live action ends."""
        try:
            while True:
                await self.step()
                wait_s = self._wait_s()
                await self._clock.wait(self._wake, wait_s)
                self._wake.clear()
        finally:
            self.book.close()
            self._report()

    async def step(self) -> None:
        """Run what can be run now."""
        self.book.expire(self._clock.monotonic_s())
        while is_idle(self._load(), self._settings):
            job = self.book.take(self._clock.monotonic_s())
            if job is None:
                break
            await self._run(job)
            self._report()
        self._report()

    def _wait_s(self) -> float:
        change_s = self.book.next_change_s()
        if change_s is None:
            return _IDLE_WAIT_S
        return min(_IDLE_WAIT_S, max(0.0, change_s - self._clock.monotonic_s()))

    def _changed(self) -> None:
        self._report()
        self._wake.set()

    def _report(self) -> None:
        for outcome in self.book.drain():
            self._on_outcome(outcome)

    async def _run(self, job: Job) -> None:
        now_s = self._clock.monotonic_s
        try:
            action = job.action
            anchor = self._anchors.get(action.workload, action.agent, action.digest)
            reason = "unknown" if anchor is None else await self._try_warm(job, anchor)
        except MessageError:
            reason = "malformed"
        except EngineBusy:
            reason = "busy"
        except (WarmupFailed, EngineGone) as error:
            logger.warning("Warm-up of agent %s failed: %s", job.action.agent, error)
            reason = "failed"
        if reason == _PAUSED:
            self.book.pause(job)
        elif reason is not None:
            self.book.refuse(job, reason, now_s())
        else:
            self.book.warmed(job, now_s())

    async def _try_warm(self, job: Job, anchor: Anchor) -> str | None:
        """Probe, then slice by slice; why it stopped, or None when the anchor is warm."""
        token_ids = decode_token_ids(anchor.token_ids)[: self._port.max_prompt_tokens]
        if len(token_ids) < self._settings.min_tokens:
            return "short"
        probe = await self._port.probe(anchor)
        self.book.probed(job, probe.resident_tokens)
        reason = refusal(job.action, len(token_ids), probe, self._port.block_size)
        if reason is not None:
            return reason
        for end in slice_ends(probe.resident_tokens, len(token_ids), self._settings.slice_tokens):
            if not (is_idle(self._load(), self._settings) and self.book.is_live(job.action.action_id)):
                return _PAUSED
            if self._clock.monotonic_s() >= job.deadline_s:
                return "late"
            if not await self._run_slice(job, anchor, token_ids[:end]):
                return _PAUSED
        return None

    async def _run_slice(self, job: Job, anchor: Anchor, token_ids: list[int]) -> bool:
        """False if demand ended the slice."""
        self._slice = asyncio.get_running_loop().create_task(self._port.warm(anchor, token_ids, job.action))
        try:
            # Not awaited itself: a cancelled slice must not look like a cancelled runner.
            await asyncio.wait({self._slice})
        finally:
            ended, self._slice = self._slice, None
            ended.cancel()
        if ended.cancelled():
            return False
        self.book.advance(job, ended.result())
        return True


_PAUSED = "paused"


def _anchor_of(action: PrefetchAction) -> Anchor:
    return Anchor(
        workload=action.workload,
        agent=action.agent,
        digest=action.digest,
        token_ids=action.token_ids,
        cache_salt=action.cache_salt,
        lora_name=action.lora_name,
    )
