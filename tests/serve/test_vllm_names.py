"""What the engine hooks rely on in vLLM and that vLLM doesn't promise: each test names what changed."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

import pytest
from ray.llm._internal.serve.engines.vllm import vllm_engine
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.generate.api_router import init_generate_state
from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core import EngineCore, EngineCoreProc
from vllm.v1.engine.core_client import AsyncMPClient
from vllm.v1.engine.parallel_sampling import ParentRequest

from replicas.cache.block_pool import WRAPPED, PoolOwners
from replicas.engine.link import EXCHANGE, PROBE
from replicas.engine.ray_engine import CLIENT, MODELS, STATE, TOKENIZATION
from replicas.free_queue import OwnerFreeQueue
from replicas.scheduler import AgentSchedulerMixin, first_choice_of
from serve_app.routes.messages import STOP_REASONS


def callers(cls: type, called: str) -> set[str]:
    """Methods of `cls` that call `self.<called>`."""
    found = set()
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    for method in tree.body[0].body:  # type: ignore[attr-defined]
        for node in ast.walk(method):
            if isinstance(node, ast.Attribute) and ast.unparse(node) == f"self.{called}":
                found.add(method.name)
    return found


def test_hashes_come_and_go_through_the_wrapped_methods_alone() -> None:
    inner = {"_insert_block_hash", "_remove_cached_block_hashes", "_maybe_evict_cached_block"}
    outer = set().union(*(callers(BlockPool, name) for name in inner)) - inner
    assert outer <= set(WRAPPED), f"BlockPool's {outer - set(WRAPPED)} gives or takes hashes unseen"


def test_reset_prefix_cache_is_the_only_one_that_drops_all_hashes() -> None:
    source = ast.parse(textwrap.dedent(inspect.getsource(BlockPool)))
    resets = {
        method.name
        for method in source.body[0].body  # type: ignore[attr-defined]
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and node.attr == "reset_hash"
    }
    assert resets == {"reset_prefix_cache", "_remove_cached_block_hashes"}


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize("name", WRAPPED)
def test_a_wrapped_method_takes_what_vllms_takes(name: str) -> None:
    theirs, ours = parameters(getattr(BlockPool, name)), parameters(getattr(PoolOwners, name))
    if "args" in ours:
        ours = theirs[: ours.index("args")]
    assert theirs[: len(ours)] == ours and ("args" in parameters(getattr(PoolOwners, name)) or theirs == ours)


def test_the_free_queue_has_every_public_name_of_vllms() -> None:
    stock = FreeKVCacheBlockQueue([KVCacheBlock(i) for i in range(3)])
    names = {name for name in dir(stock) if not name.startswith("_")}
    linking = {"fake_free_list_head", "fake_free_list_tail"}
    ours = OwnerFreeQueue([KVCacheBlock(i) for i in range(3)], [None] * 3)
    assert names - linking <= set(dir(ours)), f"missing: {names - linking - set(dir(ours))}"


@pytest.mark.parametrize("base", [Scheduler, AsyncScheduler])
def test_the_scheduler_has_the_hooks(base: type) -> None:
    for name in ("add_request", "_update_after_schedule", "_preempt_request", "_free_request"):
        assert name in vars(AgentSchedulerMixin)
        assert callable(getattr(base, name, None)), f"{base.__name__}.{name} is gone"


def test_the_scheduler_calls_its_hooks() -> None:
    for name in ("_update_after_schedule", "_preempt_request", "_free_request"):
        assert callers(Scheduler, name), f"Scheduler no longer calls {name}"


def test_the_scheduler_has_what_giving_way_goes_by() -> None:
    """A request left out of `running` for a step is one that the scheduler doesn't count, plan or preempt in it."""
    assert "schedule" in vars(AgentSchedulerMixin) and callable(Scheduler.schedule)
    source = inspect.getsource(Scheduler)
    for name in ("self.running", "self.skipped_waiting", "self.max_num_running_reqs", ".is_prefill_chunk"):
        assert name in source, f"Scheduler no longer has {name}"
    assert "get_num_free_blocks" in vars(BlockPool)


def test_scheduler_output_says_what_started_and_resumed() -> None:
    new = set(NewRequestData.__dataclass_fields__)
    assert {"req_id", "block_ids", "num_computed_tokens"} <= new
    assert "resumed_req_ids" in CachedRequestData.__dataclass_fields__
    assert parameters(KVCacheCoordinator.find_longest_cache_hit)[:3] == [
        "self",
        "block_hashes",
        "max_cache_hit_length",
    ]


def test_the_utility_channel_reaches_engine_core() -> None:
    assert callable(getattr(EngineCore, EXCHANGE)) and callable(getattr(EngineCore, PROBE))
    assert "getattr(self, method_name)" in inspect.getsource(EngineCoreProc._handle_client_request)
    assert parameters(AsyncMPClient.call_utility_async)[:2] == ["self", "method"]
    assert isinstance(inspect.getattr_static(AsyncLLM, "errored"), property)
    assert "self.engine_core" in inspect.getsource(AsyncLLM.__init__)
    assert "request_block_hasher" in inspect.getsource(EngineCore.__init__)


def test_rays_engine_has_vllms_serving_objects() -> None:
    source = inspect.getsource(vllm_engine.VLLMEngine)
    assert all(f"self.{name} = " in source for name in (CLIENT, STATE, MODELS, TOKENIZATION)), "a name moved"
    assert "state.openai_serving_responses = " in inspect.getsource(init_generate_state)
    assert parameters(OpenAIServingResponses.create_responses) == ["self", "request", "raw_request"]


def test_choices_of_a_request_are_numbered_from_the_left() -> None:
    assert 'f"{index}_{self.request_id}"' in inspect.getsource(ParentRequest.get_child_info)
    assert [first_choice_of(f"{index}_cmpl-1_2") for index in (0, 1, 12)] == ["", "0_cmpl-1_2", "0_cmpl-1_2"]
    assert first_choice_of("cmpl-1_2") == first_choice_of("7") == ""


def test_messages_have_the_stop_reasons_that_vllm_gives_them() -> None:
    source = inspect.getsource(AnthropicServingMessages.__init__)
    assert all(f'"{reason}": "{theirs}"' in source for reason, theirs in STOP_REASONS.items())
