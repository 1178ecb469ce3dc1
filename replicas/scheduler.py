"""vLLM's scheduler with the runtime's cache order.

`scheduler_cls: "replicas.scheduler.agent_scheduler"` makes vLLM's own choice of Scheduler or
AsyncScheduler the base. Settings come in `additional_config["agent_runtime"]` (EngineSettings), the owner
of a request in `sampling_params.extra_args`. Importing this module gives EngineCore the two methods that
`replicas.engine.link` calls through the utility channel.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue, SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.request import Request, RequestStatus

from replicas.cache.cache_keeper import Arrival, CacheKeeper, CacheShape
from replicas.engine.messages import (
    ADDITIONAL_CONFIG_KEY,
    ANSWER,
    FAULT,
    EngineSettings,
    EngineTables,
    ProbeRequest,
    decode,
    encode,
)
from replicas.engine.shaping import QueueSeat
from runtime_actor.settings import RuntimeSettings

logger = logging.getLogger(__name__)


class AgentSchedulerMixin:
    """Tells a CacheKeeper what becomes of each request. Scheduling itself changes only where a policy orders
    the waiting queue, and where a request waits that is to lead: prompts under way then give way between two steps."""

    keeper: CacheKeeper
    seat: QueueSeat
    waiting: RequestQueue
    running: list[Request]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = (self.vllm_config.additional_config or {}).get(ADDITIONAL_CONFIG_KEY, {})
        groups = self.kv_cache_config.kv_cache_groups
        sizes = tuple(group.kv_cache_spec.block_size for group in groups)
        shape = CacheShape(self.hash_block_size, sizes or (self.block_size,))
        pool = self.kv_cache_manager.block_pool
        settings = EngineSettings.from_config(config)
        self.keeper = CacheKeeper(pool, settings, shape)
        self.seat = seat = QueueSeat(self.policy, self.keeper, pool)
        self._unable = ""
        """The last request that was to lead and could not begin."""
        self.keeper.policy_rows = seat.policy_rows
        self.keeper.passed_over = lambda: seat.passed_over
        self.waiting, left_out = seat.configure(settings.policies, self.waiting)
        for reason in left_out:
            logger.error("policy left out: %s", reason)

    def take_queue_policies(self, text: str) -> list[str]:
        """EngineTables.queue_policies, between two steps; what of it was refused, and why."""
        try:
            settings = RuntimeSettings.from_dict({"policies": json.loads(text)}).policies
        except (ValueError, RecursionError) as error:
            return [f"queue_policies: {error}"]
        self.waiting, rejected = self.seat.configure(settings, self.waiting)
        return rejected

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        aside = self._giving_way()
        if not aside:
            return super().schedule(*args, **kwargs)
        first = self.waiting.peek_request()
        self.running = [request for request in self.running if request not in aside]
        self.max_num_running_reqs -= len(aside)
        try:
            return super().schedule(*args, **kwargs)
        finally:
            self.max_num_running_reqs += len(aside)
            self.running.extend(aside)
            if first.status != RequestStatus.RUNNING:
                # Something else than blocks and places: it waits like any other, or prompts would give way for ever.
                self._unable = first.request_id

    def _giving_way(self) -> list[Request]:
        """Prompts that are being computed, while a request waits that is to lead (no client's priority is below 0) and
        that could begin now. It gets their part of this step; they keep their blocks and go on in the next one."""
        if self.policy != SchedulingPolicy.PRIORITY or not self.waiting or self.skipped_waiting:
            return []
        first = self.waiting.peek_request()
        if first.priority >= 0 or first.request_id == self._unable or len(self.running) >= self.max_num_running_reqs:
            return []
        needed = -(-first.num_tokens // self.block_size) + 1
        if needed > self.kv_cache_manager.block_pool.get_num_free_blocks():
            return []
        return [one for one in self.running if one.is_prefill_chunk and one.priority > first.priority]

    def add_request(self, request: Request) -> None:
        known = request.request_id in self.requests
        super().add_request(request)
        if known:
            return
        params = request.sampling_params
        self.keeper.arrived(
            Arrival(
                request.request_id,
                params.extra_args if params is not None else None,
                request.block_hashes,
                request.prompt_token_ids,
                request.cache_salt,
                request.lora_request.lora_name if request.lora_request else None,
                request.priority,
            )
        )

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        for new in scheduler_output.scheduled_new_reqs:
            request = self.requests[new.req_id]
            self.keeper.started(
                new.req_id,
                request.num_prompt_tokens,
                new.num_computed_tokens,
                new.block_ids,
                reads_cache=not request.skip_reading_prefix_cache,
            )
        for request_id in scheduler_output.scheduled_cached_reqs.resumed_req_ids:
            self.keeper.resumed(request_id)
        super()._update_after_schedule(scheduler_output)
        if self.seat.shaped is not None:
            self.seat.shaped.refresh()

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super()._preempt_request(request, *args, **kwargs)
        self.keeper.preempted(request.request_id)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        result = super()._free_request(request, *args, **kwargs)
        self.keeper.finished(request.request_id, request.num_computed_tokens)
        return result

    def resident_tokens(self, block_hashes: list[Any], num_tokens: int) -> int:
        """Leading tokens of a prompt that the cache holds now; changes nothing."""
        coordinator = self.kv_cache_manager.coordinator
        return coordinator.find_longest_cache_hit(block_hashes, num_tokens)[1]


class AgentScheduler(AgentSchedulerMixin, Scheduler):
    pass


class AgentAsyncScheduler(AgentSchedulerMixin, AsyncScheduler):
    pass


def agent_scheduler(vllm_config: Any, *args: Any, **kwargs: Any) -> Scheduler:
    """What `scheduler_cls` names: the base is the one that vLLM itself would take."""
    use_async = vllm_config.scheduler_config.async_scheduling
    chosen = AgentAsyncScheduler if use_async else AgentScheduler
    return chosen(vllm_config, *args, **kwargs)


# --- the utility channel ----------------------------------------------------------------------------


def _answered(method: Any) -> Any:
    """An answer or a fault, as bytes: an exception here would be logged as the engine's own error."""

    @functools.wraps(method)
    def answered(self: EngineCore, payload: bytes) -> bytes:
        try:
            return ANSWER + encode(method(self, payload))
        except Exception as error:  # noqa: BLE001 - the other side gets it as a fault
            logger.warning("Runtime call refused: %s: %s", type(error).__name__, error)
            return FAULT + f"{type(error).__name__}: {error}".encode()

    return answered


@_answered
def agent_runtime_exchange(self: EngineCore, payload: bytes) -> Any:
    """EngineTables down, EngineReport up."""
    scheduler = self.scheduler
    down = decode(payload, EngineTables)
    refused = [] if down.queue_policies is None else scheduler.take_queue_policies(down.queue_policies)
    waiting = len(scheduler.waiting) + len(scheduler.skipped_waiting)
    report = scheduler.keeper.exchange(down, len(scheduler.running), waiting)
    return dataclasses.replace(report, rejected=[*refused, *report.rejected])


@_answered
def agent_runtime_probe(self: EngineCore, payload: bytes) -> Any:
    """ProbeRequest down, ProbeAnswer up. Hashes as the engine does for a real request."""
    asked = decode(payload, ProbeRequest)
    token_ids = np.frombuffer(asked.token_ids, dtype="<i4").tolist()
    request = Request(
        request_id="probe",
        prompt_token_ids=token_ids,
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        lora_request=SimpleNamespace(lora_name=asked.lora_name) if asked.lora_name else None,
        cache_salt=asked.cache_salt,
        block_hasher=self.request_block_hasher,
    )
    resident = self.scheduler.resident_tokens(request.block_hashes, len(token_ids))
    return self.scheduler.keeper.probe(asked, len(token_ids), resident)


EngineCore.agent_runtime_exchange = agent_runtime_exchange
EngineCore.agent_runtime_probe = agent_runtime_probe
