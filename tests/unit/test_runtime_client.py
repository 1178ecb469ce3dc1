"""RuntimeClient with a stand-in for Ray's handle: failures, back-off, re-creation, epochs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from runtime_actor.client import MAX_CREATION_BACKOFF_S, RuntimeClient
from runtime_actor.errors import ConfigurationError, MessageError, RuntimeUnavailable
from runtime_actor.messages import ExchangeRequest
from tests.unit.runtime_kit import Clock, Kit

REQUEST = ExchangeRequest("g1", "gateway", 0, 0, [])


class Method:
    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self.remote = call


class FakeHandle:
    """Answers like the actor, or with `error`, or not at all."""

    def __init__(self) -> None:
        self.kit = Kit()
        self.error: Exception | None = None
        self.refusal: Exception | None = None
        """What `configure` raises."""
        self.hangs = False
        self.configured: list[int] = []
        self.calls = 0

    def __getattr__(self, name: str) -> Method:
        return Method(lambda *arguments: self._call(name, *arguments))

    async def _call(self, name: str, *arguments: Any) -> Any:
        self.calls += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        if name == "configure":
            if self.refusal is not None:
                raise self.refusal
            self.configured.append(arguments[1])
            return True
        if name == "exchange":
            return self.kit.runtime.exchange(ExchangeRequest.from_wire(arguments[0])).to_wire()
        return getattr(self.kit.runtime, name)(*arguments)


class Cluster:
    """Hands out `handle`; counts look-ups."""

    def __init__(self, call_timeout_s: float = 30.0) -> None:
        self.handle = FakeHandle()
        self.lookups = 0
        self.looks = 0
        self.error: Exception | None = None
        self.clock = Clock()
        self.client = RuntimeClient({"call_timeout_s": call_timeout_s}, 7, self.resolve, self.clock, self.look)

    def resolve(self, settings: dict[str, Any], version: int) -> Any:
        self.lookups += 1
        if self.error is not None:
            raise self.error
        return self.handle

    def look(self) -> Any:
        self.looks += 1
        if self.handle.error is not None:
            raise ValueError("no actor of that name")
        return self.handle

    async def failing(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> str:
        with pytest.raises(RuntimeUnavailable) as error:
            await call()
        return str(error.value)


def run(test: Callable[[Cluster], Coroutine[Any, Any, None]], call_timeout_s: float = 30.0) -> None:
    """A short `call_timeout_s` is for what hangs: a busy machine needs longer than that for what doesn't."""
    asyncio.run(test(Cluster(call_timeout_s)))


def test_looks_up_once_and_configures() -> None:
    async def test(cluster: Cluster) -> None:
        replies = await asyncio.gather(*(cluster.client.exchange(REQUEST) for _ in range(5)))
        assert {reply.epoch for reply in replies} == {1}
        assert cluster.lookups == 1 and cluster.handle.configured == [7]
        assert (await cluster.client.state("t"))["agents"] == []
        assert await cluster.client.predict("t", "s", 3) is None
        assert (await cluster.client.set_policy("kv_cache", {"mode": "lru"}))["mode"] == "lru"

    run(test)


def test_a_hanging_actor_times_out_and_then_fails_at_once() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.client.state()
        cluster.handle.hangs = True
        assert "no answer within 1 s" in await cluster.failing(cluster.client.state)
        calls = cluster.handle.calls
        assert "is away" in await cluster.failing(cluster.client.state)
        assert cluster.handle.calls == calls, "nobody waits during the back-off"
        cluster.handle.hangs = False
        cluster.clock.advance(1)
        await cluster.client.state()
        assert cluster.lookups == 1

    run(test, call_timeout_s=1.0)


def test_an_unavailable_actor_keeps_its_handle_and_a_dead_one_is_looked_up_again() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.client.state()
        cluster.handle.error = ActorUnavailableError("restarting", None)
        await cluster.failing(cluster.client.state)
        cluster.handle.error = None
        cluster.clock.advance(1)
        await cluster.client.state()
        assert cluster.lookups == 1
        cluster.handle.error = ActorDiedError()
        await cluster.failing(cluster.client.state)
        cluster.handle = FakeHandle()
        cluster.clock.advance(1)
        await cluster.client.state()
        assert cluster.lookups == 2 and cluster.handle.configured == [7]

    run(test)


def test_the_back_off_grows_to_its_bound_and_ends_with_success() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.error = RuntimeError("no cluster")
        waits = []
        for _ in range(12):
            began_s = cluster.clock()
            while "no cluster" not in await cluster.failing(cluster.client.state):
                cluster.clock.advance(0.01)
            waits.append(cluster.clock() - began_s)
        assert waits[0] == 0.0 and waits[1] <= 0.11 and 0.99 <= waits[-1] <= 2.01
        cluster.error = None
        cluster.clock.advance(6)
        await cluster.client.state()
        cluster.handle.error = ActorUnavailableError("again", None)
        await cluster.failing(cluster.client.state)
        cluster.handle.error = None
        cluster.clock.advance(0.11)
        await cluster.client.state()

    run(test)


def test_an_actor_that_ends_as_soon_as_it_is_made_is_made_ever_more_rarely() -> None:
    async def test(cluster: Cluster) -> None:
        random.seed(1)
        cluster.handle.error = ActorDiedError()
        made = []
        for _ in range(5):
            before = cluster.lookups
            for _ in range(600):
                await cluster.failing(cluster.client.state)
                cluster.clock.advance(1)
            made.append(cluster.lookups - before)
        assert made[0] <= 20 and max(made[2:]) <= 600 / (MAX_CREATION_BACKOFF_S / 2) + 1, made
        assert cluster.looks > 5 * 250, "it is looked for all the same"
        cluster.handle.error = None
        cluster.clock.advance(2.1)
        before = cluster.lookups
        await cluster.client.state()
        assert cluster.lookups == before, "another one's is found without making one"
        # And from then on it is made at once again.
        cluster.handle.error = ActorDiedError()
        await cluster.failing(cluster.client.state)
        cluster.handle = FakeHandle()
        cluster.clock.advance(0.11)
        await cluster.client.state()
        assert cluster.lookups == before + 1

    run(test)


def test_an_actor_of_another_version_is_a_failure_like_others() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.handle.error = AttributeError("no attribute 'configure'")
        assert "configure" in await cluster.failing(cluster.client.state)

    run(test)


def test_an_actor_that_refuses_the_settings_goes_on_with_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """Of code of another version, from before a redeploy: a key that it doesn't know is no reason to do without it."""

    async def test(cluster: Cluster) -> None:
        refusal = RayTaskError("configure", "remote traceback", ConfigurationError("runtime.new_key: unknown key"))
        cluster.handle.refusal = refusal.as_instanceof_cause()
        assert (await cluster.client.exchange(REQUEST)).epoch == 1
        await cluster.client.state()
        assert cluster.lookups == 1 and cluster.client.failures == 0

    run(test)
    assert caplog.text.count("runtime.new_key") == 1 and "remote traceback" not in caplog.text


def test_an_older_incarnation_is_not_believed_at_first() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.handle.kit.runtime.epoch = 9
        await cluster.client.exchange(REQUEST)
        cluster.handle.kit.runtime.epoch = 8
        assert "older incarnation" in await cluster.failing(lambda: cluster.client.exchange(REQUEST))
        cluster.clock.advance(1)
        reply = await cluster.client.exchange(REQUEST)
        assert reply.epoch == 8 and cluster.lookups == 2, "looked up again, it is the cluster's actor"

    run(test)


def test_refusals_are_plain_errors_and_no_outage() -> None:
    async def test(cluster: Cluster) -> None:
        with pytest.raises(ConfigurationError, match="horizon: 0"):
            await cluster.client.predict("t", "s", 0)
        assert cluster.lookups == 0
        for cause, kind in ((ConfigurationError("key x"), ConfigurationError), (MessageError("field y"), MessageError)):
            cluster.handle.error = None
            await cluster.client.state()
            cluster.handle.error = RayTaskError("f", "long remote traceback", cause).as_instanceof_cause()
            with pytest.raises(kind) as error:
                await cluster.client.set_policy("kv_cache", {})
            assert type(error.value) is kind and str(error.value) == str(cause)
        cluster.handle.error = None
        await cluster.client.state()
        assert cluster.client.failures == 0

    run(test)


def test_an_actor_of_another_version_is_unavailable() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.handle._call = lambda *a: _answer({"kind": "exchange_reply", "protocol": 99})  # type: ignore[method-assign]
        assert "protocol 99" in await cluster.failing(lambda: cluster.client.exchange(REQUEST))

    async def _answer(value: Any) -> Any:
        return value

    run(test)


def test_bad_settings_are_refused_before_anything() -> None:
    with pytest.raises(ConfigurationError, match=r"runtime\.windwo"):
        RuntimeClient({"windwo": 1}, 1)
