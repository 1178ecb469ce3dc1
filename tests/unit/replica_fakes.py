"""Stand-ins for a replica's neighbours: time, engine and actor. Nothing here sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from replicas.anchors import Anchor
from replicas.engine.port import EngineState, HandDown
from replicas.prefetch import CacheProbe
from runtime_actor.errors import EngineBusy, EngineGone, RuntimeUnavailable, WarmupFailed
from runtime_actor.messages import ExchangeReply, ExchangeRequest, PrefetchAction

TURNS = 20
"""Turns of the event loop that other tasks get before a wait times out."""


class FakeClock:
    """Time passes only in `wait`, at once; `waits` keeps (waited for an event, seconds)."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.waits: list[tuple[bool, float]] = []

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return 1_000_000.0 + self.now_s

    async def wait(self, event: asyncio.Event | None, timeout_s: float) -> bool:
        self.waits.append((event is not None, timeout_s))
        for _ in range(TURNS):
            if event is not None and event.is_set():
                return True
            await asyncio.sleep(0)
        self.now_s += timeout_s
        return False


@dataclass
class FakePort:
    """An engine that answers what it is told to; `warm` waits for `gate` if there is one."""

    block_size: int = 32
    max_prompt_tokens: int = 8191
    state: EngineState = field(
        default_factory=lambda: EngineState(
            t_s=1.0,
            policy="reach",
            block_size=32,
            total_blocks=100,
            free_blocks=90,
            running=0,
            waiting=0,
        )
    )
    downs: list[HandDown] = field(default_factory=list)
    busy: bool = False
    gone: bool = False
    probe_answer: CacheProbe = field(default_factory=lambda: CacheProbe(resident_tokens=0))
    warmed: list[tuple[int, str]] = field(default_factory=list)
    gate: asyncio.Event | None = None
    warm_error: bool = False
    on_warm: Callable[[], None] = lambda: None

    async def check_alive(self) -> None:
        if self.gone:
            raise EngineGone("process ended")

    async def exchange(self, down: HandDown) -> EngineState:
        if self.busy:
            raise EngineBusy("too slow")
        self.downs.append(down)
        return self.state

    async def probe(self, anchor: Anchor) -> CacheProbe:
        if self.busy:
            raise EngineBusy("too slow")
        return self.probe_answer

    async def warm(self, anchor: Anchor, token_ids: list[int], action: PrefetchAction) -> int:
        self.on_warm()
        if self.gate is not None:
            await self.gate.wait()
        if self.warm_error:
            raise WarmupFailed("refused")
        before = self.warmed[-1][0] if self.warmed else self.probe_answer.resident_tokens
        self.warmed.append((len(token_ids), action.action_id))
        return len(token_ids) - before


class FakeActor:
    """Answers from a script; None in it means that the actor is away."""

    def __init__(self, *script: ExchangeReply | None) -> None:
        self.script = list(script)
        self.requests: list[ExchangeRequest] = []
        self.in_flight = 0

    async def __call__(self, request: ExchangeRequest) -> ExchangeReply:
        assert self.in_flight == 0, "two calls in flight"
        self.in_flight += 1
        try:
            await asyncio.sleep(0)
            self.requests.append(request)
            reply = self.script.pop(0) if self.script else make_reply()
            if reply is None:
                raise RuntimeUnavailable("away")
            return reply
        finally:
            self.in_flight -= 1


def make_reply(**changes: object) -> ExchangeReply:
    values: dict = {
        "epoch": 7,
        "version": 1,
        "tables": {},
        "actions": [],
        "ended": [],
        "next_call_s": 1.0,
    }
    return ExchangeReply(**{**values, **changes})


def make_action(action_id: str = "p1", **changes: object) -> PrefetchAction:
    values: dict = {
        "action_id": action_id,
        "workload": "w",
        "agent": "a",
        "session": "s",
        "digest": f"d-{action_id}",
        "deadline_s": 10.0,
        "value": 1.0,
        "token_ids": bytes(4 * 600),
        "cache_salt": None,
        "lora_name": None,
    }
    return PrefetchAction(**{**values, **changes})
