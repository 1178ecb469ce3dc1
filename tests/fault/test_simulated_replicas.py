"""Replicas with simulated engines on a local cluster: faults of engine and actor cost no more than they must."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray import serve
from ray.serve.handle import DeploymentHandle
from ray.serve.llm import LLMConfig, build_llm_deployment
from ray.serve.llm.openai_api_models import ChatCompletionRequest

from runtime_actor.messages import OWNER_XARG, ExchangeRequest, OwnerTag, RequestAccepted, RequestArrived
from tests.fault.fault_server import FaultServer

ROOT = Path(__file__).resolve().parents[2]
MODEL = "simulated-model"
REPLICAS = 2
ADAPTERS = {"planner": "poet", "coder": "judge", "reviewer": "clerk"}
"""Of each agent; an engine holds two at once."""


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
            "runtime": {"idle_call_s": 0.1, "policies": [{"name": "kv_cache"}, {"name": "adapters"}]},
            "adapters": dict.fromkeys(ADAPTERS.values(), "/nowhere"),
            "replica": {"exchange": {"away_retry_s": 0.1}},
        }
        app = build_llm_deployment(config, deployment_cls=FaultServer, bind_kwargs=arguments)
        yield serve.run(app, name="fault-test", route_prefix=None)
    finally:
        serve.shutdown()
        ray.shutdown()


def ask(handle: DeploymentHandle, session: str = "s-1", model: str = MODEL) -> str:
    """The replica that answered."""
    tag = OwnerTag("w", "a-1", session)
    request = ChatCompletionRequest(
        model=model,
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


def tell(session: str, agents: Iterable[str], replica: str) -> None:
    """As a gateway does: each agent's request names its adapter."""
    number = itertools.count()
    events = [
        RequestArrived(
            f"{session}-{replica}-{next(number)}", time.time(), "w", "w", session, agent, agent, replica,
            adapter=ADAPTERS[agent],
        ).to_wire()
        for agent in agents
    ]  # fmt: skip
    actor = ray.get_actor("agent_runtime", namespace="serve")
    ray.get(actor.exchange.remote(ExchangeRequest("gateway-1", "gateway", 0, 0, events).to_wire()))


def until_loaded(handle: DeploymentHandle, replica: str, adapters: set[str]) -> dict[str, int]:
    """The replica's counters once it holds just these."""
    deadline_s = time.monotonic() + 60.0
    while True:
        row = views(handle).get(replica, {}).get("adapters", {})
        if set(row.get("loaded", ())) == adapters:
            counters: dict[str, int] = row["counters"]
            return counters
        assert time.monotonic() < deadline_s, row


def test_a_replica_in_a_dead_ones_place_has_the_adapters_that_are_forecast_and_serves_any(
    handle: DeploymentHandle,
) -> None:
    before = until_all(handle, lambda view: view["epoch"])
    for number in range(20):
        tell(f"taught-{number}", ADAPTERS, next(iter(before)))
    victim = ask(handle, "s-team", "poet")
    tell("s-team", ["planner"], victim)
    until_loaded(handle, victim, {"judge", "clerk"})
    handle.broadcast("die_if", victim).results(timeout_s=30, return_exceptions=True)
    after = until_all(handle, lambda view: view["epoch"] and view["replica"] != victim)
    (successor,) = set(after) - set(before)
    assert after[successor]["adapters"]["loaded"] == []
    tell("s-team", ["planner"], successor)
    counters = until_loaded(handle, successor, {"judge", "clerk"})
    assert counters["loaded_ahead"] == 2 and "on_demand" not in counters
    deadline_s = time.monotonic() + 60.0
    for adapter in ("judge", "poet"):
        while ask(handle, f"s-{adapter}", adapter) != successor:
            assert time.monotonic() < deadline_s, f"{adapter} was never asked for there"
    counters = views(handle)[successor]["adapters"]["counters"]
    assert counters["hidden"] >= 1 and counters["on_demand"] >= 1, "one was there ahead, one came with its request"
