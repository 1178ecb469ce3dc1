"""What the runtime side of a replica needs from its engine; implemented for vLLM and for the simulation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from replicas.anchors import Anchor
from replicas.cache.warm_ledger import WarmupOutcome
from replicas.prefetch import CacheProbe
from runtime_actor.messages import PrefetchAction

WARMUP_PRIORITY = 1_000_000
"""Lower than any request's of a client; only where the engine schedules by priority it says anything."""


@dataclass(frozen=True, slots=True)
class HandDown:
    """For the engine's scheduler. `tables`: workload -> ReachTables bytes; `ended`: (workload, session).

    `policy`: (mode, weight) of the eviction order, None to leave it. `queue_policies`: as in EngineTables, None to
    leave them. `with_sessions` and `with_anchors` are as in EngineTables.
    """

    tables: dict[str, bytes] = field(default_factory=dict)
    ended: tuple[tuple[str, str], ...] = ()
    policy: tuple[str, float] | None = None
    queue_policies: str | None = None
    with_sessions: bool = False
    with_anchors: bool = False


@dataclass(frozen=True, slots=True)
class EngineState:
    """What the engine holds at `t_s` (wall clock). `sessions` as in ReplicaReport; `anchors` are new
    since the last answer, and so are `warmups`. `evicted_blocks` is a total since the engine's start.
    `rejected` says what of the hand-down was refused, and why; `policies`, `passed_over` and `fallbacks` are as in
    EngineReport."""

    t_s: float
    policy: str
    block_size: int
    total_blocks: int
    free_blocks: int
    running: int
    waiting: int
    resident: dict[str, dict[str, int]] = field(default_factory=dict)
    sessions: list[list] = field(default_factory=list)
    anchors: tuple[Anchor, ...] = ()
    warmups: tuple[WarmupOutcome, ...] = ()
    evicted_blocks: int = 0
    rejected: tuple[str, ...] = ()
    policies: list[dict[str, Any]] = field(default_factory=list)
    passed_over: int = 0
    fallbacks: int = 0


class EnginePort(Protocol):
    """Every call ends within the adapter's timeout: with EngineBusy if the engine was too slow, with
    EngineGone if its process is dead."""

    block_size: int
    """Tokens a cache block holds."""
    max_prompt_tokens: int
    """Longest prompt a warm-up may have, one token of output included in the model's limit."""

    async def check_alive(self) -> None: ...

    async def exchange(self, down: HandDown) -> EngineState: ...

    async def probe(self, anchor: Anchor) -> CacheProbe: ...

    async def warm(self, anchor: Anchor, token_ids: list[int], action: PrefetchAction) -> int:
        """Run the prompt at the lowest priority; tokens computed.

        Raises WarmupFailed if the engine refused it, CancelledError (always) if it was cancelled.
        """
        ...
