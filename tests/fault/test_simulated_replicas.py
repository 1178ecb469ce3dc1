"""Replicas with simulated engines on a local cluster: faults of engine and actor cost no more than they must."""

from __future__ import annotations

import contextlib
import threading
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
from ray.serve.llm.openai_api_models import ChatCompletionRequest

from runtime_actor.messages import OWNER_XARG, OwnerTag, RequestAccepted
from tests.fault.fault_server import FaultServer

ROOT = Path(__file__).resolve().parents[2]
MODEL = "simulated-model"
REPLICAS = 2


@pytest.fixture(scope="module")
def handle() -> Iterator[DeploymentHandle]:
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )
    try:
        serve.start(proxy_location="Disabled")
        config = LLMConfig(
            model_loading_config={"model_id": MODEL, "model_source": MODEL},
            accelerator_config={"kind": "cpu"},
            placement_group_config={"bundles": [{"CPU": 0.1}]},
            deployment_config={"num_replicas": REPLICAS, "ray_actor_options": {"num_cpus": 0.1}},
            experimental_configs={"stream_batching_interval_ms": 0},
        )
        arguments = {
            "simulated": {"prefill_s_per_token": 0.0, "decode_s_per_token": 0.0},
            "runtime": {"idle_call_s": 0.1},
            "replica": {"exchange": {"away_retry_s": 0.1}},
        }
        app = build_llm_deployment(config, deployment_cls=FaultServer, bind_kwargs=arguments)
        yield serve.run(app, name="fault-test", route_prefix=None)
    finally:
        serve.shutdown()
        ray.shutdown()


def ask(handle: DeploymentHandle, session: str = "s-1") -> str:
    """The replica that answered."""
    tag = OwnerTag("w", "a-1", session)
    request = ChatCompletionRequest(
        model=MODEL,
        messages=[{"role": "user", "content": "word " * 100}],
        max_tokens=2,
        vllm_xargs={OWNER_XARG: tag.encode()},
    )
    accepted, response = list(handle.options(stream=True).chat.remote(request, None))
    assert response.system_fingerprint == "simulated-engine"
    return RequestAccepted.from_wire(accepted).replica


def views(handle: DeploymentHandle) -> dict[str, dict[str, Any]]:
    """By replica, of all that answer."""
    answers = handle.broadcast("view", None).results(timeout_s=30, return_exceptions=True)
    return {seen["replica"]: seen for seen in answers if isinstance(seen, dict)}


def until_all(handle: DeploymentHandle, condition: Any, seconds: float = 60.0) -> dict[str, dict[str, Any]]:
    deadline_s = time.monotonic() + seconds
    while True:
        seen = views(handle)
        if len(seen) == REPLICAS and all(condition(view) for view in seen.values()):
            return seen
        assert time.monotonic() < deadline_s, seen


def test_all_replicas_register_with_the_actor(handle: DeploymentHandle) -> None:
    seen = until_all(handle, lambda view: view["epoch"])
    assert len({view["epoch"] for view in seen.values()}) == 1
    assert ask(handle) in seen


def test_a_killed_actor_costs_no_request_and_hears_of_all_later(handle: DeploymentHandle) -> None:
    before = until_all(handle, lambda view: view["epoch"])
    epoch = next(iter(before.values()))["epoch"]
    actor = ray.get_actor("agent_runtime", namespace="serve")
    ray.kill(actor, no_restart=False)
    for number in range(20):
        assert ask(handle, f"s-{number}") in before
    until_all(handle, lambda view: view["epoch"] > epoch and not view["waiting_events"])


@contextlib.contextmanager
def killed_again_and_again(made: list[str]) -> Iterator[None]:
    """Whoever is the runtime actor ends at once, for good; `made` gets the id of each."""
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.02):
            with contextlib.suppress(ValueError):
                actor = ray.get_actor("agent_runtime", namespace="serve")
                made.append(actor._actor_id.hex())
                ray.kill(actor)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        over.set()
        killer.join()


def test_an_actor_that_never_stays_costs_no_request_and_few_attempts(handle: DeploymentHandle) -> None:
    before = until_all(handle, lambda view: view["epoch"])
    epoch = max(view["epoch"] for view in before.values())
    made: list[str] = []
    with killed_again_and_again(made):
        began_s = time.monotonic()
        while time.monotonic() - began_s < 12.0:
            assert ask(handle, "s-1") in before
        failed = until_all(handle, lambda view: view["failures"])
    # Of each replica at 0.1 s, 0.2 s and so on, doubled each time; the first is who was there.
    assert len(set(made)) <= 1 + REPLICAS * 9, len(set(made))
    assert failed.keys() == before.keys(), "no replica went with it"
    until_all(handle, lambda view: view["epoch"] > epoch and not view["waiting_events"])


def test_a_dead_engine_ends_its_replica_and_serve_replaces_it(handle: DeploymentHandle) -> None:
    before = until_all(handle, lambda view: view["epoch"])
    victim = ask(handle)
    process = psutil.Process(before[victim]["pid"])
    died_s = time.monotonic()
    handle.broadcast("die_if", victim).results(timeout_s=30, return_exceptions=True)
    process.wait(timeout=10.0)
    assert time.monotonic() - died_s < 3.0
    after = until_all(handle, lambda view: view["epoch"])
    assert victim not in after
    assert ask(handle) in after
