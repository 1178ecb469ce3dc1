"""The gateway's way to the memo actor: fast when it is there, no obstacle when it isn't.

While the actor can't be reached a caller is told to run its tool and nothing is kept. An invalidation that
could not be delivered is owed: until it is, nothing is looked up. What is kept from before this gateway, or from other
settings of the policy, is dropped before the first look-up: nobody knows what happened meanwhile, or is owed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar, cast

from ray.exceptions import RayError

from runtime_actor.errors import RuntimeUnavailable
from runtime_actor.fair_map import FairMap
from runtime_actor.memo_actor import get_or_create
from runtime_actor.memo_store import Limits
from runtime_actor.next_calls import ToolCall
from runtime_actor.policies.memo import ALL, MemoKey, MemoPolicy
from serve_app.policies.desk import PolicyDesk

logger = logging.getLogger("ray.serve")

T = TypeVar("T")

CALL_TIMEOUT_S = 5.0
RETRY_S = 1.0
MAX_WAIT_S = 30.0
RUN = {"outcome": "run", "ticket": None}
MAX_OPEN_CALLS = 4096
"""Runs under way whose result may say what comes next; shared fairly, beyond it the oldest one's says nothing."""
MAX_TOLD = 8
"""Calls to run ahead that one answer names."""


class MemoDesk:
    """Lives on the gateway's event loop. `resolve` finds or makes the actor, and may block."""

    def __init__(self, desk: PolicyDesk, resolve: Callable[[int, int], Any] = get_or_create) -> None:
        self._desk = desk
        self._resolve = resolve
        self._handle: Any = None
        self._bounds = (0, 0)
        self._retry_at_s = 0.0
        self._lock = asyncio.Lock()
        self._resolving = asyncio.Lock()
        self._owed: dict[tuple[str, str], int] = {}
        """(tenant, allowed tool), as many as there are of both: when it came up, by number."""
        self._numbers = itertools.count()
        self._open: FairMap[str, tuple[str, str]] = FairMap(MAX_OPEN_CALLS)
        """Tenant's tickets: session and digest of the call."""
        self._delivering: asyncio.Task[None] | None = None
        self._listening: MemoPolicy | None = None
        """The policy since whose beginning everything that makes results void was heard of."""
        self._jobs: set[asyncio.Task[Any]] = set()
        desk.after_event = self._deliver_soon
        self.unreachable = 0

    @property
    def policy(self) -> MemoPolicy | None:
        """The policy, if it is on."""
        return self._desk.host.running(MemoPolicy)

    # --- calls ------------------------------------------------------------------------------------------

    async def lookup(
        self,
        tenant: str,
        tool: str,
        version: str | None,
        arguments: Mapping[str, Any],
        wait_s: float,
        session: str | None = None,
    ) -> dict[str, Any]:
        """{"outcome": hit | run | wait, ...}; a hit's `value` is JSON as bytes. With a session `ahead` may name calls
        that it will probably make next."""
        policy = self.policy
        key = policy.key(tenant, tool, version, arguments) if policy is not None else None
        if key is None:
            return dict(RUN)
        try:
            await self._deliver()
            wait_s = min(max(wait_s, 0.0), MAX_WAIT_S)
            about = (key.digest, tool, _limits(key), wait_s)
            answer: dict[str, Any] = await self._granted("lookup", tenant, *about, timeout_s=CALL_TIMEOUT_S + wait_s)
        except RuntimeUnavailable:
            self.unreachable += 1
            return dict(RUN)
        if session is not None and answer["outcome"] != "wait":
            told = self._called(session, key, version, arguments)
            if answer["outcome"] == "hit":
                told += self._returned(tenant, session, key.digest, answer["value"])
            elif answer["ticket"] is not None:
                self._note(tenant, answer["ticket"], session, key.digest)
            try:
                answer |= await self._ahead(tenant, told)
            except asyncio.CancelledError:
                self._give_back(tenant, answer)
                raise
        return answer

    async def lookup_ahead(
        self, tenant: str, tool: str, version: str | None, arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        """For a call that nobody has made: {"outcome": "run", "ticket"}, or "refused" with a reason."""
        policy = self.policy
        key = policy.key_ahead(tenant, tool, version, arguments) if policy is not None else None
        if policy is None or key is None:
            return {"outcome": "refused", "reason": "off" if policy is None else "not_allowed"}
        try:
            await self._deliver()
            bounds = dataclasses.asdict(policy.ahead_bounds)
            found: dict[str, Any] = await self._granted("lookup_ahead", tenant, key.digest, tool, _limits(key), bounds)
            return found
        except RuntimeUnavailable:
            self.unreachable += 1
            return {"outcome": "refused", "reason": "unreachable"}

    async def store(self, tenant: str, ticket: str, value: bytes) -> dict[str, Any]:
        """`reason`: stored | void | too_large | unknown_ticket | off | unreachable; `ahead` as for `lookup`."""
        if self.policy is None:
            return {"reason": "off"}
        return await asyncio.shield(self._apart(self._store(tenant, ticket, value)))

    async def _store(self, tenant: str, ticket: str, value: bytes) -> dict[str, Any]:
        session, digest = self._open.pop(tenant, ticket) or (None, "")
        try:
            await self._deliver()
            outcome: str = await self._call("store", tenant, ticket, value)
        except RuntimeUnavailable:
            self.unreachable += 1
            return {"reason": "unreachable"}
        if session is None or outcome == "unknown_ticket":
            return {"reason": outcome}
        return {"reason": outcome} | await self._ahead(tenant, self._returned(tenant, session, digest, value))

    async def release(self, tenant: str, ticket: str) -> bool:
        self._open.pop(tenant, ticket)
        try:
            return bool(await self._call("release", tenant, ticket)) if self.policy is not None else False
        except RuntimeUnavailable:
            self.unreachable += 1
            return False

    async def invalidate(self, tenant: str, tool: str | None, event: str | None) -> int:
        """Drop a tool's results, or what an event of that name makes void; how many were kept.

        Raises RuntimeUnavailable; it is then owed."""
        policy = self.policy
        if policy is None:
            return 0
        if event is not None:
            policy.happened(tenant, event)
        if tool is not None and policy.keeps(tool):
            self._owe(tenant, tool)
        return await self._deliver()

    async def state(self) -> dict[str, int] | None:
        """The actor's counters; None while the policy is off or the actor away."""
        if self.policy is None:
            return None
        try:
            return {**await self._call("state"), "unreachable": self.unreachable}
        except RuntimeUnavailable:
            return None

    # --- what comes next ----------------------------------------------------------------------------------

    def _called(self, session: str, key: MemoKey, version: str | None, arguments: Mapping[str, Any]) -> list[ToolCall]:
        return self._foretold(lambda policy: policy.called(session, key, version, arguments))

    def _returned(self, tenant: str, session: str, digest: str, value: bytes) -> list[ToolCall]:
        return self._foretold(lambda policy: policy.returned(tenant, session, digest, value))

    def _foretold(self, job: Callable[[MemoPolicy], list[ToolCall]]) -> list[ToolCall]:
        """Asked as every policy is: one that fails is counted, and the look-up goes on."""
        return self._desk.host.ask(MemoPolicy.name, "predict", lambda policy: job(cast(MemoPolicy, policy))) or []

    def _note(self, tenant: str, ticket: str, session: str, digest: str) -> None:
        self._open.part(tenant)[ticket] = (session, digest)
        self._open.trim(tenant)

    async def _ahead(self, tenant: str, told: list[ToolCall]) -> dict[str, Any]:
        """{"ahead": [...]} of those that would be run now; nothing where there are none."""
        policy = self.policy
        if not told or policy is None:
            return {}
        calls = {call.digest: call for call in told}
        try:
            bounds = dataclasses.asdict(policy.ahead_bounds)
            wanted: list[str] = await self._call("wanted", tenant, list(calls), bounds)
        except RuntimeUnavailable:
            self.unreachable += 1
            return {}
        named = [calls[digest] for digest in wanted[:MAX_TOLD]]
        ahead = [{"tool": call.tool, "version": call.version, "arguments": call.arguments} for call in named]
        return {"ahead": ahead} if ahead else {}

    # --- the way there ------------------------------------------------------------------------------------

    def _deliver_soon(self) -> None:
        if self.policy is None:
            return
        self._collect()
        if self._owed and (self._delivering is None or self._delivering.done()):
            self._delivering = asyncio.get_running_loop().create_task(self._deliver_quietly())

    async def _deliver_quietly(self) -> None:
        try:
            await self._deliver()
        except RuntimeUnavailable as error:
            logger.info("Invalidations of tool results are owed: %s", error)

    async def _deliver(self) -> int:
        """Carry out what the policy asked for and what is owed. Raises RuntimeUnavailable."""
        self._collect()
        if self.policy is not self._listening:
            self._owed.setdefault(ALL, next(self._numbers))
        if not self._owed:
            return 0
        dropped = 0
        async with self._lock:
            if ALL in self._owed:
                dropped += await self._clear()
            for one, number in list(self._owed.items()):
                dropped += await self._paid({one: number}, "invalidate", *one)
        return dropped

    def _collect(self) -> None:
        for suggestion in self._desk.host.invalidations():
            self._owe(suggestion.tenant, suggestion.tool)

    async def _clear(self) -> int:
        """Drop everything of everybody. Raises RuntimeUnavailable."""
        policy = self.policy
        dropped = await self._paid(dict(self._owed), "clear")
        self._listening = policy
        return dropped

    async def _paid(self, debts: dict[tuple[str, str], int], method: str, *arguments: str) -> int:
        """Look-ups wait until it is done, and what came up meanwhile is still owed. Raises RuntimeUnavailable."""
        dropped = int(await self._call(method, *arguments))
        for debt, number in debts.items():
            if self._owed.get(debt) == number:
                del self._owed[debt]
        return dropped

    def _owe(self, tenant: str, tool: str) -> None:
        self._owed[tenant, tool] = next(self._numbers)

    async def _granted(self, method: str, tenant: str, *arguments: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """A look-up whose ticket is given back where its caller has left: else others would wait for a run that nobody
        makes, until its lease ends."""
        asked = self._apart(self._call(method, tenant, *arguments, timeout_s=timeout_s))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            asked.add_done_callback(functools.partial(self._unclaimed, tenant))
            raise

    def _unclaimed(self, tenant: str, asked: asyncio.Task[Any]) -> None:
        if not asked.cancelled() and asked.exception() is None:
            self._give_back(tenant, asked.result())

    def _give_back(self, tenant: str, answer: Mapping[str, Any]) -> None:
        ticket = answer.get("ticket")
        if ticket is not None:
            self._apart(self.release(tenant, ticket))

    def _apart(self, job: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """It goes on where its caller leaves."""
        task = asyncio.get_running_loop().create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        return task

    async def _call(self, method: str, *arguments: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        if time.monotonic() < self._retry_at_s:
            raise RuntimeUnavailable(f"{method}: the memo actor is away")
        try:
            async with asyncio.timeout(timeout_s):
                handle = await self._resolved()
                return await getattr(handle, method).remote(*arguments)
        except (TimeoutError, RayError, OSError, RuntimeError, ValueError) as error:
            self._handle = None
            self._retry_at_s = time.monotonic() + RETRY_S
            raise RuntimeUnavailable(f"{method}: {error!r}") from error

    async def _resolved(self) -> Any:
        policy = self.policy
        options = policy.options if policy is not None else None
        bounds = (options.max_bytes, options.max_bytes_per_tenant) if options is not None else self._bounds
        async with self._resolving:
            if self._handle is None:
                self._handle = await asyncio.to_thread(self._resolve, *bounds)
                self._bounds = (0, 0)
            if bounds != self._bounds:
                # One that exists keeps the bounds that it was made with.
                await self._handle.configure.remote(*bounds)
                self._bounds = bounds
            return self._handle


def _limits(key: MemoKey) -> dict[str, Any]:
    allowed = key.allowed
    limits = Limits(allowed.ttl_s, allowed.lease_s, allowed.sample, allowed.max_value_bytes)
    return dataclasses.asdict(limits)
