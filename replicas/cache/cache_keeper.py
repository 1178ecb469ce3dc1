"""The engine's side of the cache policy: hears of requests, takes tables, gives reports.

One instance in each engine process, driven by the scheduler between and within its steps. No method that
the scheduler calls raises: a fault is logged and counted, and the cache goes back to stock order.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec

from replicas.cache.anchor_finder import AnchorFinder
from replicas.cache.block_owner import BlockOwner
from replicas.cache.block_pool import EVICTED_KINDS, PoolOwners
from replicas.cache.claim import Claim
from replicas.cache.floors import TenantFloors
from replicas.cache.ownership import OwnerDirectory
from replicas.cache.recency_guard import RecencyGuard
from replicas.cache.residency import COUNT_INTERVAL_S, Residency, count_residency
from replicas.cache.warm_ledger import WarmLedger
from replicas.engine.messages import (
    EngineReport,
    EngineSettings,
    EngineTables,
    ProbeAnswer,
    ProbeRequest,
)
from replicas.free_queue import OwnerFreeQueue
from runtime_actor.errors import MessageError
from runtime_actor.messages import OwnerTag
from runtime_actor.tables import ReachTables

logger = logging.getLogger(__name__)

P = ParamSpec("P")

MAX_NAME_CHARS = 256
"""Longer workload, agent or session names aren't the gateway's."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """hash_block_tokens: tokens a block hash stands for; group_block_tokens: of a block, by KV group."""

    hash_block_tokens: int
    group_block_tokens: tuple[int, ...]

    @property
    def is_plain(self) -> bool:
        """A block hash stands for one block of the pool."""
        return self.group_block_tokens == (self.hash_block_tokens,)


@dataclass(frozen=True, slots=True)
class Arrival:
    """What the keeper needs of a request that joined the queue. `first_choice`: the id of its client's request's first
    choice if this is another one, else empty."""

    request_id: str
    extra_args: Any
    block_hashes: Sequence[bytes]
    prompt_token_ids: Sequence[int] | None
    cache_salt: str | None
    lora_name: str | None
    priority: int = 0
    first_choice: str = ""


def _guarded(
    method: Callable[Concatenate[CacheKeeper, P], None],
) -> Callable[Concatenate[CacheKeeper, P], None]:
    @functools.wraps(method)
    def guarded(self: CacheKeeper, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.owners.failed:
            self.owners.use_stock_order()
            return
        try:
            method(self, *args, **kwargs)
        except Exception:
            logger.exception("Cache policy: %s failed; going back to stock order", method.__name__)
            self.owners.failed = True
            self.owners.use_stock_order()

    return guarded


class CacheKeeper:
    """Owners, sessions, warm-ups and anchors of one engine."""

    def __init__(
        self,
        pool: Any,
        settings: EngineSettings,
        shape: CacheShape,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` only goes forward; `wall_clock` is for times that other processes read."""
        self._clock = clock
        self._wall_clock = wall_clock
        self._shape = shape
        self._warmup_deadline_s = settings.warmup_deadline_s
        self._anchors = AnchorFinder()
        self.warm = WarmLedger()
        self.guard = RecencyGuard(len(pool.blocks)) if shape.is_plain else None
        self.directory = OwnerDirectory(
            settings.values, shape.hash_block_tokens, clock, cache_blocks=len(pool.blocks), guard=self.guard
        )
        self.owners = PoolOwners(pool, self.directory, self.warm)
        self._floors = TenantFloors(self.directory.valuation, self.owners.owner_of, clock)
        self.policy_rows: Callable[[], list[dict[str, Any]]] = list
        """The rows of the policies that order the waiting queue, and how often somebody was passed over there."""
        self.passed_over: Callable[[], int] = int
        self._requests = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._preemptions = 0
        self._counts: tuple[Residency, Residency] = ({}, {})
        self._counted_s = 0.0
        self._set_order()

    @property
    def hash_block_tokens(self) -> int:
        return self._shape.hash_block_tokens

    @property
    def block_tokens(self) -> tuple[int, ...]:
        """Tokens of a block, by KV group."""
        return self._shape.group_block_tokens

    def _set_order(self) -> None:
        values = self.directory.settings
        if values.policy == "lru" or values.weight <= 0.0 or self.owners.failed:
            self.owners.use_stock_order()
        else:
            self.owners.use_value_order()
            self.owners.directory_changed()

    # --- the scheduler's requests -------------------------------------------------------------------

    @_guarded
    def arrived(self, arrival: Arrival) -> None:
        self._floors.look()
        tag = _tag_of(arrival.extra_args)
        first = self.directory.claims.get(arrival.first_choice)
        claim = self.directory.arrive(arrival.request_id, tag, arrival.block_hashes, arrival.priority, first)
        if tag is None or claim.agent is None or first is not None:
            return
        if claim.is_warmup:
            deadline_s = self._clock() + self._warmup_deadline_s
            self.warm.begin(tag.session, claim.agent, deadline_s)
            return
        self._move_shared(claim, arrival)
        size = self._shape.hash_block_tokens
        if claim.anchor_tokens and arrival.prompt_token_ids is not None:
            self._anchors.note(
                claim.agent,
                arrival.block_hashes[claim.anchor_tokens // size - 1],
                arrival.prompt_token_ids,
                claim.anchor_tokens,
                arrival.cache_salt,
                arrival.lora_name,
            )

    def _move_shared(self, claim: Claim, arrival: Arrival) -> None:
        """Last block first, so that each goes behind the one before it in the owner's list."""
        size = self._shape.hash_block_tokens
        for group, block_tokens in enumerate(self._shape.group_block_tokens):
            if block_tokens != size:
                continue
            self.owners.claim_moved(claim, ((i, arrival.block_hashes[i]) for i in reversed(claim.moved)), group, size)

    @_guarded
    def started(
        self,
        request_id: str,
        prompt_tokens: int,
        cached_tokens: int,
        block_ids: Sequence[Sequence[int]],
        reads_cache: bool = True,
    ) -> None:
        """A request's first step is scheduled; `block_ids` by KV group. `reads_cache`: it may use what is cached."""
        self.directory.started(request_id)
        claim = self.directory.claims.get(request_id)
        if claim is None or claim.is_warmup:
            return
        self._requests += 1
        self._prompt_tokens += prompt_tokens
        self._cached_tokens += cached_tokens
        size = self._shape.hash_block_tokens
        most = max(prompt_tokens - 1, 0) // size
        if reads_cache and self.directory.counted(request_id, cached_tokens // size, most):
            self.owners.directory_changed()
        for ids, block_tokens in zip(block_ids, self._shape.group_block_tokens, strict=True):
            hits = ids[: cached_tokens // block_tokens]
            self.owners.claim_hits(claim, hits, block_tokens)
            if self.warm.block_actions and claim.agent is not None:
                self.warm.hit(claim.agent, hits)

    @_guarded
    def resumed(self, request_id: str) -> None:
        self.directory.started(request_id)

    @_guarded
    def preempted(self, request_id: str) -> None:
        self._preemptions += 1
        self.directory.waits(request_id)

    @_guarded
    def finished(self, request_id: str, computed_tokens: int) -> None:
        self.directory.finished(request_id, computed_tokens // self._shape.hash_block_tokens)

    # --- the server's calls -------------------------------------------------------------------------

    def exchange(self, down: EngineTables, running: int, waiting: int) -> EngineReport:
        """Take what came down and say what is here; what is bad in it is refused and named."""
        rejected = self._take(down)
        now, wall_s = self._clock(), self._wall_clock()
        self.warm.expire(now)
        if not (self.owners.by_value or self.owners.failed):
            # vLLM's queue doesn't ask, and what changed would pile up.
            self.owners.changed()
        if down.with_sessions or down.with_anchors:
            self._anchors.forget_told()
        owners = self.owners
        pool = owners.pool
        values = self.directory.settings
        resident, anchors = self._resident(now)
        return EngineReport(
            t_s=wall_s,
            policy=values.policy if owners.by_value else "lru",
            weight=values.weight,
            block_size=self._shape.group_block_tokens[0],
            total_blocks=pool.num_gpu_blocks,
            free_blocks=pool.get_num_free_blocks(),
            cached_blocks=len(pool.cached_block_hash_to_block),
            running=running,
            waiting=waiting,
            requests=self._requests,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            preemptions=self._preemptions,
            resident=resident,
            resident_anchors=anchors,
            evicted=dict(zip(EVICTED_KINDS, owners.evicted, strict=True)),
            anchors=self._anchors.take(),
            warmups=self.warm.take_outcomes(),
            sessions=self.directory.sessions(wall_s) if down.with_sessions else [],
            rejected=rejected,
            faults=int(owners.failed),
            policies=self.policy_rows(),
            passed_over=self.passed_over(),
            fallbacks=self.guard.fallbacks if self.guard is not None else 0,
        )

    def _resident(self, now_s: float) -> tuple[Residency, Residency]:
        """Counted anew unless that was done a moment ago."""
        interval_s = COUNT_INTERVAL_S * len(self.owners.owner_of)
        if not 0.0 <= now_s - self._counted_s < interval_s:
            self._counts = count_residency(self.owners.owner_of)
            self._counted_s = now_s
        return self._counts

    def _take(self, down: EngineTables) -> list[str]:
        rejected = []
        for workload, payload in down.tables.items():
            try:
                tables = ReachTables.from_bytes(payload)
                if tables.workload != workload:
                    raise MessageError(f"reach tables: of {tables.workload!r}, not {workload!r}")
                self.directory.set_tables(tables)
            except MessageError as error:
                rejected.append(str(error))
        for workload, session in down.ended:
            self.directory.end(workload, session)
        asked = {"policy": down.policy, "weight": down.weight}
        changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        try:
            if changes:
                self.directory.configure(dataclasses.replace(self.directory.settings, **changes))
        except ValueError as error:
            rejected.append(str(error))
        self._set_order()
        return rejected

    def probe(self, asked: ProbeRequest, num_tokens: int, resident_tokens: int) -> ProbeAnswer:
        """`resident_tokens` of the anchor's `num_tokens` are cached: what would the rest cost?"""
        pool = self.owners.pool
        block_tokens = self._shape.group_block_tokens[0]
        missing = max(0, num_tokens // block_tokens - resident_tokens // block_tokens)
        valued = self._victims(missing)
        return ProbeAnswer(
            resident_tokens=resident_tokens,
            missing_blocks=missing,
            unvalued_blocks=min(missing, pool.get_num_free_blocks()) - sum(count for _, count in valued),
            victim_value=max((worth for worth, _ in valued), default=None),
            victim_value_sum=sum(worth * count for worth, count in valued),
            anchor_value=self.directory.anchor_value(asked.workload, asked.agent),
            missing_fits=missing <= pool.get_num_free_blocks(),
        )

    def _victims(self, blocks: int) -> list[tuple[float, int]]:
        """(worth, blocks) of what is valued among the blocks that would leave next."""
        queue = self.owners.pool.free_block_queue
        if not isinstance(queue, OwnerFreeQueue):
            return []
        lowest = queue.lowest(blocks)
        return [(owner.forecast, n) for owner, n in lowest if isinstance(owner, BlockOwner) and owner.value > 0.0]


def _tag_of(extra_args: Any) -> OwnerTag | None:
    tag = OwnerTag.of(extra_args)
    if tag is None:
        return None
    names = (tag.workload, tag.agent, tag.session)
    fits = all(name.isprintable() and 0 < len(name) <= MAX_NAME_CHARS for name in names)
    return tag if fits else None
