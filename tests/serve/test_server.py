"""One replica with a real engine: acceptance, counts, warm-ups that yield, the end of a dead engine."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray import serve
from ray.serve.handle import DeploymentHandle
from ray.serve.llm import LLMConfig, build_llm_deployment
from ray.serve.llm.openai_api_models import ChatCompletionRequest, CompletionRequest

from cluster.embedded_model import ensure_embedded_model
from runtime_actor.messages import OWNER_XARG, OwnerTag, PrefetchAction, RequestAccepted
from tests.port_contract import CHECKS, action_of, anchor_of, token_ids
from tests.serve.replica_server import DoorServer

ROOT = Path(__file__).resolve().parents[2]
MODEL = "smollm2-135m-instruct"
BLOCK = 32
TAG = OwnerTag("w", "a-1", "s-1")


def model_source() -> str:
    return os.environ.get("AGENT_RUNTIME_MODEL_DIR") or str(ensure_embedded_model())


def llm_config() -> LLMConfig:
    return LLMConfig(
        model_loading_config={"model_id": MODEL, "model_source": model_source()},
        accelerator_config={"kind": "cpu"},
        placement_group_config={"bundles": [{"CPU": 0.4}]},
        deployment_config={
            "num_replicas": 1,
            "ray_actor_options": {"num_cpus": 0.1},
            "health_check_period_s": 2.0,
        },
        experimental_configs={"stream_batching_interval_ms": 0},
        log_engine_metrics=False,
        engine_kwargs={
            "max_model_len": 4096,
            "block_size": BLOCK,
            "num_gpu_blocks_override": 256,
            "enforce_eager": True,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 512,
            "scheduling_policy": "priority",
            "scheduler_cls": "replicas.scheduler.agent_scheduler",
            "additional_config": {"agent_runtime": {"policy": "reach", "weight": 1.0}},
            "enable_prompt_tokens_details": True,
        },
    )


@pytest.fixture(scope="module")
def handle() -> Iterator[DeploymentHandle]:
    environment = {
        "PYTHONPATH": str(ROOT),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",
        "RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING": "0",
    }
    ray.init(address="local", num_cpus=2, include_dashboard=False, runtime_env={"env_vars": environment})
    try:
        serve.start(proxy_location="Disabled")
        app = build_llm_deployment(
            llm_config(), deployment_cls=DoorServer, bind_kwargs={"runtime": {"idle_call_s": 0.1}}
        )
        running = serve.run(app, name="replica-test", route_prefix=None)
        # An actor that is met for the first time is told everything again: let that be over.
        eventually(running, lambda seen: seen["epoch"] and seen["exchanges"] >= 3, seconds=60.0)
        yield running
    finally:
        serve.shutdown()
        ray.shutdown()


def call(handle: DeploymentHandle, method: str, *arguments: Any) -> Any:
    return getattr(handle, method).remote(*arguments).result(timeout_s=120)


def items_of(handle: DeploymentHandle, method: str, request: Any) -> list[Any]:
    return list(getattr(handle.options(stream=True), method).remote(request, None))


def view(handle: DeploymentHandle) -> dict[str, Any]:
    return call(handle, "view")


def eventually(handle: DeploymentHandle, condition: Any, seconds: float = 30.0) -> dict[str, Any]:
    """The replica's view once the condition on it holds."""
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        seen = call(handle, "view_soon")
        if condition(seen):
            return seen
    raise AssertionError(seen)


def chat(text: str, **changes: Any) -> ChatCompletionRequest:
    values = {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 4,
        "temperature": 0.0,
        "vllm_xargs": {OWNER_XARG: TAG.encode()},
    }
    return ChatCompletionRequest(**{**values, **changes})


@pytest.mark.parametrize("check", CHECKS)
def test_port_contract(handle: DeploymentHandle, check: str) -> None:
    assert call(handle, "run_check", check) is None


def test_the_first_item_of_a_whole_response(handle: DeploymentHandle) -> None:
    text = "one two three " * 60
    for expected in (0, BLOCK):
        accepted, response = items_of(handle, "chat", chat(text))
        first = RequestAccepted.from_wire(accepted)
        assert first.prompt_tokens == response.usage.prompt_tokens
        assert first.cached_tokens == response.usage.prompt_tokens_details.cached_tokens
        assert first.cached_tokens >= expected
        assert response.choices[0].message.content
        assert response.usage.completion_tokens == 4
    assert first.replica


def test_a_joined_response_is_the_streamed_one(handle: DeploymentHandle) -> None:
    request = {"max_tokens": 12, "logprobs": True, "stop": ["zzz"]}
    _, whole = items_of(handle, "chat", chat("Count to five.", **request))
    parts = items_of(handle, "chat", chat("Count to five.", stream=True, **request))[1:]
    chunks = [json.loads(text[6:]) for text in flat(parts) if text != "data: [DONE]\n\n"]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(c["delta"].get("content") or "" for c in choices) == whole.choices[0].message.content
    assert choices[-1]["finish_reason"] == whole.choices[0].finish_reason
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens


def flat(items: list[Any]) -> list[str]:
    return [text for item in items for text in (item if isinstance(item, list) else [item])]


@pytest.mark.parametrize("include_usage", [None, False, True])
def test_a_streams_usage_is_the_clients_choice(handle: DeploymentHandle, include_usage: bool | None) -> None:
    options = None if include_usage is None else {"include_usage": include_usage}
    items = items_of(handle, "chat", chat("Hello", stream=True, stream_options=options))
    RequestAccepted.from_wire(items[0])
    chunks = [json.loads(text[6:]) for text in flat(items[1:])[:-1]]
    usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    assert len(usages) == bool(include_usage)


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices_are_one_request(handle: DeploymentHandle, stream: bool) -> None:
    before = view(handle)["requests"]
    items = items_of(handle, "chat", chat("Hello", n=2, stream=stream, temperature=1.0))
    assert sum(isinstance(item, dict) for item in items) == 1
    RequestAccepted.from_wire(items[0])
    assert view(handle)["requests"] == before + 1


def test_a_refusal_has_no_accepted_item(handle: DeploymentHandle) -> None:
    request = CompletionRequest(model=MODEL, prompt=[5] * 5000, max_tokens=1)
    (error,) = items_of(handle, "completions", request)
    assert error.error.code == 400


def test_a_client_that_leaves_frees_its_place(handle: DeploymentHandle) -> None:
    request = chat("Tell me a long story.", stream=True, max_tokens=3000, ignore_eos=True)
    stream = handle.options(stream=True).chat.remote(request, None)
    iterator = iter(stream)
    RequestAccepted.from_wire(next(iterator))
    assert view(handle)["in_flight"] == 1
    stream.cancel()
    eventually(handle, lambda seen: seen["in_flight"] == 0)


def offer(handle: DeploymentHandle, seed: int, blocks: int, agent: str) -> PrefetchAction:
    action = action_of(anchor_of(token_ids(seed, blocks, BLOCK), agent))
    call(handle, "offer", action.to_wire())
    return action


def outcome(seen: dict[str, Any], action: PrefetchAction) -> list[tuple]:
    return [ended[1:] for ended in seen["outcomes"] if ended[0] == action.action_id]


def test_a_warm_up_is_used_by_the_next_request(handle: DeploymentHandle) -> None:
    before = view(handle)["requests"]
    action = offer(handle, 100, 20, "a-next")
    assert call(handle, "until_warmed", 20 * BLOCK) == 20 * BLOCK
    seen = view(handle)
    assert (seen["in_flight"], seen["requests"]) == (0, before)
    prompt = [*token_ids(100, 20, BLOCK), *token_ids(101, 1, BLOCK)]
    request = CompletionRequest(
        model=MODEL,
        prompt=prompt,
        max_tokens=1,
        vllm_xargs={OWNER_XARG: OwnerTag("w", "a-next", "s-9").encode()},
    )
    accepted, _ = items_of(handle, "completions", request)
    assert RequestAccepted.from_wire(accepted).cached_tokens == 20 * BLOCK
    seen = eventually(handle, lambda seen: outcome(seen, action))
    assert outcome(seen, action) == [("useful", "hit", 20 * BLOCK)]


def test_demand_goes_before_a_warm_up(handle: DeploymentHandle) -> None:
    action = offer(handle, 200, 100, "a-long")
    call(handle, "until_slice_runs")
    started_s = time.monotonic()
    items_of(handle, "chat", chat("Quick!", max_tokens=1))
    demand_s = time.monotonic() - started_s
    assert call(handle, "until_warmed", 100 * BLOCK - BLOCK) >= 100 * BLOCK - BLOCK
    warm_s = time.monotonic() - started_s
    assert demand_s < warm_s / 2
    assert outcome(view(handle), action) == []


def test_the_replica_talks_with_the_actor(handle: DeploymentHandle) -> None:
    seen = eventually(handle, lambda seen: seen["epoch"] and not seen["waiting_events"])
    assert seen["policy"] == "reach" and seen["loop_failures"] == 0
    stats = seen["routing_stats"]["agent_runtime"]
    assert stats["total_blocks"] == 256 and 0.0 < stats["hit_rate"] < 1.0
    actor = ray.get_actor("agent_runtime", namespace="serve")
    state = ray.get(actor.state.remote(None))
    (known,) = state["replicas"]
    assert known["replica"] == seen["replica"]


def test_a_dead_engine_ends_its_replica(handle: DeploymentHandle) -> None:
    seen = view(handle)
    killed_s = time.monotonic()
    for pid in seen["engine_pids"]:
        os.kill(pid, signal.SIGKILL)
    psutil.Process(seen["pid"]).wait(timeout=10.0)
    assert time.monotonic() - killed_s < 3.0
