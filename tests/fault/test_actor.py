"""The actor on a real local Ray: killed, killed for good, hung; its state comes back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util.metrics import Counter

from runtime_actor.actor import ACTOR_NAME, NAMESPACE, RuntimeMetrics, get_or_create
from runtime_actor.client import RuntimeClient
from runtime_actor.errors import ConfigurationError, RuntimeUnavailable
from runtime_actor.messages import ExchangeReply, ExchangeRequest, ReplicaReport, RequestArrived
from runtime_actor.runtime import AgentRuntime
from runtime_actor.settings import RuntimeSettings
from tests.fault import faults

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )
    yield
    ray.shutdown()


@pytest.fixture
def settings(cluster: None, tmp_path: Path) -> Iterator[dict[str, Any]]:
    yield {"checkpoint_dir": str(tmp_path), "checkpoint_interval_s": 0.1, "call_timeout_s": 5.0}
    with contextlib.suppress(ValueError):
        ray.kill(ray.get_actor(ACTOR_NAME, namespace=NAMESPACE))


@contextlib.asynccontextmanager
async def connected(settings: dict[str, Any], version: int = 1) -> AsyncIterator[RuntimeClient]:
    client = RuntimeClient(settings, version)
    await until(client.state)
    yield client


async def until(call: Callable[[], Awaitable[Any]], accept: Callable[[Any], bool] = lambda answer: True) -> Any:
    """Call until there is an acceptable answer; the client's own back-off paces the attempts."""
    deadline_s = time.monotonic() + WAIT_S
    answer: Any = None
    while time.monotonic() < deadline_s:
        with contextlib.suppress(RuntimeUnavailable):
            answer = await call()
            if accept(answer):
                return answer
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {WAIT_S} s; last answer: {answer}")


def arrivals(first: int, count: int) -> list[dict[str, Any]]:
    return [
        RequestArrived(
            f"e{i}", time.time() - 100 + i * 0.1, "t", "t", f"s{i // 4}", "abcd"[i % 4], "label", "r1"
        ).to_wire()
        for i in range(first, first + count)
    ]


async def exchange(client: RuntimeClient, events: list[dict[str, Any]], epoch: int = 0) -> ExchangeReply:
    report = ReplicaReport("r1", "n", time.time(), "reach", 32, 9, 9, 0, 0, {}, {}, [], 0, 0, 0, 0).to_wire()
    return await client.exchange(ExchangeRequest("r1", "replica", epoch, 0, events, report))


async def pid_of_actor() -> int:
    handle = ray.get_actor(ACTOR_NAME, namespace=NAMESPACE)
    return int((await handle.ping.remote())["pid"])


async def save() -> None:
    assert await ray.get_actor(ACTOR_NAME, namespace=NAMESPACE).save.remote()


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_a_killed_process_comes_back_with_its_counts(settings: dict[str, Any]) -> None:
    async def test() -> None:
        async with connected(settings) as client:
            first = await exchange(client, arrivals(0, 40))
            await client.set_policy("kv_cache", {"mode": "lru"})
            before = await client.state()
            await save()
            faults.kill(await pid_of_actor())
            after = await until(client.state, lambda state: state["epoch"] > first.epoch)
            assert after["agents"] == before["agents"]
            assert after["transitions"] == before["transitions"] and after["transitions"]
            reply = await until(lambda: exchange(client, arrivals(0, 44), first.epoch))
            assert reply.need_sessions and reply.epoch > first.epoch
            assert reply.policy["mode"] == "lru", "a switch survives the restart"
            state = await client.state()
            assert sum(agent["requests"] for agent in state["agents"]) == 44, "told again, counted once"

    run(test())


def test_killed_for_good_it_is_created_again(settings: dict[str, Any]) -> None:
    async def test() -> None:
        async with connected(settings) as client:
            first = await exchange(client, arrivals(0, 8))
            await save()
            ray.kill(ray.get_actor(ACTOR_NAME, namespace=NAMESPACE))
            state = await until(client.state, lambda state: state["epoch"] > first.epoch)
            assert sum(agent["requests"] for agent in state["agents"]) == 8

    run(test())


def test_two_clients_meet_the_same_actor_and_the_newer_configuration_wins(settings: dict[str, Any]) -> None:
    async def test() -> None:
        async with connected(settings) as first:
            changed = {**settings, "policies": [{"name": "kv_cache", "mode": "lru"}]}
            async with connected(changed, version=2) as second:
                assert (await second.state())["epoch"] == (await first.state())["epoch"]
                assert (await exchange(first, [])).policy["mode"] == "lru"
                assert not await first.configure(settings, 1)
                with pytest.raises(ConfigurationError, match="'magic'"):
                    await first.set_policy("kv_cache", {"mode": "magic"})

    run(test())


def test_a_hung_process_costs_the_time_limit_and_no_more(settings: dict[str, Any]) -> None:
    async def test() -> None:
        async with connected({**settings, "call_timeout_s": 0.5}) as client:
            with faults.paused(await pid_of_actor()):
                began_s = time.monotonic()
                with pytest.raises(RuntimeUnavailable, match="no answer within"):
                    await client.state()
                assert time.monotonic() - began_s < 2.0
                began_s = time.monotonic()
                with pytest.raises(RuntimeUnavailable, match="away"):
                    await client.state()
                assert time.monotonic() - began_s < 0.25
            await until(client.state)

    run(test())


def test_many_calls_at_once_are_answered(settings: dict[str, Any]) -> None:
    async def test() -> None:
        async with connected(settings) as client:
            began_s = time.monotonic()
            replies = await asyncio.gather(*(exchange(client, arrivals(4 * i, 4)) for i in range(300)))
            assert len(replies) == 300 and time.monotonic() - began_s < 30.0
            state = await client.state()
            assert sum(agent["requests"] for agent in state["agents"]) == 1200
            await ray.get_actor(ACTOR_NAME, namespace=NAMESPACE).check_invariants.remote()

    run(test())


def test_a_full_disk_does_not_stop_it(settings: dict[str, Any]) -> None:
    async def test() -> None:
        blocked = {**settings, "checkpoint_dir": "/proc/no/such/place"}
        async with connected(blocked) as client:
            await exchange(client, arrivals(0, 8))
            state = await until(client.state, lambda state: state["checkpoint"]["failed"] > 1)
            assert state["checkpoint"]["saved"] == 0 and len(state["agents"]) == 4

    run(test())


def test_settings_are_checked_before_an_actor_is_made(cluster: None) -> None:
    with pytest.raises(ConfigurationError, match=r"runtime\.windwo"):
        get_or_create({"windwo": 3}, 1)


def test_metrics_grow_with_the_stats(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[tuple[float, Any]] = []
    monkeypatch.setattr(Counter, "inc", lambda self, value, tags=None: counted.append((value, tags)))
    runtime = AgentRuntime(RuntimeSettings(), time.time)
    published = RuntimeMetrics()
    runtime.handle(arrivals(0, 8))
    published.publish(runtime.stats())
    assert (8, {"outcome": "applied"}) in counted
    counted.clear()
    published.publish(runtime.stats())
    assert counted == []
