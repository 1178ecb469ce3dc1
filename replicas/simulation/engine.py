"""An engine with a cost model instead of a model, for tests of scale and of faults.

Time passes as on a device that computes one step after the other: a step has up to `step_tokens` prompt
tokens of one request, or one token for each request that decodes. It has the real eviction order and
ownership, so hit rates mean something; its texts mean nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import heapq
import itertools
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from replicas.cache.settings import ValueSettings
from replicas.simulation.adapters import SimulatedAdapters
from replicas.simulation.cache import Allocation, Prompt, SimulatedCache
from runtime_actor.errors import EngineGone
from runtime_actor.messages import OwnerTag
from runtime_actor.settings import number


@dataclass(frozen=True, slots=True)
class CostModel:
    """`prefill_s_per_token` and `decode_s_per_token` are seconds of the device; 0 computes at once."""

    prefill_s_per_token: float = number(0.0001, 0.0, 10.0)
    decode_s_per_token: float = number(0.01, 0.0, 10.0)
    max_num_seqs: int = number(16, 1, 65536)
    step_tokens: int = number(512, 1, 1 << 20)
    num_blocks: int = number(1024, 2, 1 << 24)
    block_size: int = number(32, 1, 1024)
    max_model_len: int = number(8192, 2, 1 << 22)
    adapter_slots: int = number(2, 1, 1024)
    adapter_load_s: float = number(0.01, 0.0, 60.0)


@dataclass(slots=True)
class SimulatedRequest:
    """One sequence for the engine. `on_prefill` is told the cached tokens when its prompt is computed."""

    request_id: str
    prompt: Prompt
    max_tokens: int
    tag: OwnerTag | None = None
    priority: int = 0
    on_prefill: Callable[[int], None] = lambda cached_tokens: None


@dataclass(order=True, slots=True)
class _Waiter:
    priority: int
    number: int
    admitted: asyncio.Event = field(compare=False, default_factory=asyncio.Event)


class SimulatedCore:
    """Admits by priority, then first come; computes by turns. `die` makes everything raise EngineGone,
    `freeze` makes everything wait until `thaw`."""

    def __init__(
        self, cost: CostModel, values: ValueSettings | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.cost = cost
        self.values = values or ValueSettings()
        self.cache = SimulatedCache(
            num_blocks=cost.num_blocks, block_size=cost.block_size, values=self.values, clock=clock
        )
        self.adapters = SimulatedAdapters(cost.adapter_slots, cost.adapter_load_s)
        self.running = 0
        self._prefilling = 0
        self.is_dead = False
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._waiters: list[_Waiter] = []
        self._aside: list[tuple[int, asyncio.Event]] = []
        """Prompts that gave way: priority, and what tells them to go on; the last one first."""
        self._numbers = itertools.count()
        self._device = asyncio.Lock()

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    def fits(self, prompt_tokens: int, max_tokens: int) -> bool:
        """Whether a request could ever run here."""
        total = prompt_tokens + max_tokens
        blocks = -(-total // self.cost.block_size)
        return prompt_tokens > 0 and total <= self.cost.max_model_len and blocks <= self.cost.num_blocks

    def set_policy(self, policy: str, weight: float) -> None:
        """Raises ValueError for a policy that engines don't have."""
        self.values = dataclasses.replace(self.values, policy=policy, weight=min(weight, 1.0))
        self.cache.directory.configure(self.values)

    def die(self) -> None:
        self.is_dead = True
        self._thawed.set()
        while self._aside:
            self._prefilling += 1
            self._aside.pop()[1].set()
        for waiter in self._waiters:
            waiter.admitted.set()

    def freeze(self) -> None:
        self._thawed.clear()

    def thaw(self) -> None:
        self._thawed.set()

    async def between_steps(self) -> None:
        """Returns when the core would look at its inbox; raises EngineGone if it is dead."""
        await self._thawed.wait()
        if self.is_dead:
            raise EngineGone("the simulated engine was told to die")

    async def generate(self, request: SimulatedRequest) -> AsyncGenerator[int, None]:
        """Numbers of the tokens generated, from 1; closing it ends the request. The caller has checked
        `fits`."""
        await self.between_steps()
        if request.prompt.lora_name is not None:
            await self.adapters.use(request.prompt.lora_name)
        allocation = await self._admit(request)
        try:
            try:
                await self._prefill(request, allocation)
            finally:
                self._prefilling -= 1
                self._go_on()
            for token in range(1, request.max_tokens + 1):
                await self._spend(self.cost.decode_s_per_token, shared=True)
                yield token
        finally:
            self._leave(request, allocation)

    async def _admit(self, request: SimulatedRequest) -> Allocation:
        """Wait for a place and for blocks, in order."""
        claim, hashes = self.cache.arrive(request.request_id, request.tag, request.prompt, request.priority)
        prompt_tokens = len(request.prompt.token_ids)
        waiter = _Waiter(request.priority, next(self._numbers))
        heapq.heappush(self._waiters, waiter)
        try:
            while True:
                allocation = None
                # As in vLLM, where a prompt that is being computed takes the whole step and leaves the others waiting.
                if self._waiters[0] is waiter and not self._prefilling and self.running < self.cost.max_num_seqs:
                    allocation = self.cache.allocate(claim, hashes, prompt_tokens, prompt_tokens + request.max_tokens)
                if allocation is not None:
                    self.running += 1
                    self._prefilling += 1
                    return allocation
                waiter.admitted.clear()
                self._go_on(waiter)
                await waiter.admitted.wait()
                await self.between_steps()
        except BaseException:
            self.cache.directory.finished(request.request_id, 0)
            raise
        finally:
            self._waiters.remove(waiter)
            heapq.heapify(self._waiters)
            self._wake_next()

    async def _prefill(self, request: SimulatedRequest, allocation: Allocation) -> None:
        total = len(request.prompt.token_ids)
        done = allocation.cached_tokens
        while done < total:
            await self._give_way(request)
            step = min(self.cost.step_tokens, total - done)
            await self._spend(step * self.cost.prefill_s_per_token, shared=False)
            done += step
            self.cache.fill(allocation, done)
        request.on_prefill(allocation.cached_tokens)

    async def _give_way(self, request: SimulatedRequest) -> None:
        """Between two steps, to a waiting request that is to lead; on again once its prompt is computed."""
        first = self._waiters[0].priority if self._waiters else 0
        if first >= 0 or first >= request.priority or self.running >= self.cost.max_num_seqs:
            return
        turn = asyncio.Event()
        self._aside.append((request.priority, turn))
        self._prefilling -= 1
        self._wake_next()
        try:
            await turn.wait()
        finally:
            if not turn.is_set():
                self._aside.remove((request.priority, turn))
                self._prefilling += 1
        await self.between_steps()

    def _go_on(self, unable: _Waiter | None = None) -> None:
        """The device is free: for who leads, else for who gave way, else for who is next. `unable` can't begin now."""
        first = self._waiters[0] if self._waiters else None
        leads = first is not None and first is not unable and first.priority < 0
        if self._aside and not self._prefilling and not leads:
            self._prefilling += 1
            self._aside.pop()[1].set()
        elif unable is None:
            self._wake_next()

    async def _spend(self, seconds: float, *, shared: bool) -> None:
        """Device time; a decoding step is shared by all that decode, a prompt's isn't."""
        await self.between_steps()
        if seconds <= 0.0:
            await asyncio.sleep(0)
        elif shared:
            await asyncio.sleep(seconds)
        else:
            async with self._device:
                await asyncio.sleep(seconds)
        await self.between_steps()

    def _leave(self, request: SimulatedRequest, allocation: Allocation) -> None:
        self.running -= 1
        self.cache.free(allocation)
        self.cache.directory.finished(request.request_id)
        self._wake_next()

    def _wake_next(self) -> None:
        if self._waiters:
            self._waiters[0].admitted.set()
