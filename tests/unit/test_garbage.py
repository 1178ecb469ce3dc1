"""What a served process has at its start is out of the collector's way."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from replicas import server
from replicas.garbage import YOUNG_OBJECTS, freeze_what_stays
from replicas.server import AgentLLMServer
from serve_app import gateway
from serve_app.gateway import Gateway


@pytest.fixture
def collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_what_is_there_is_searched_no_more_and_what_comes_is(collector: None) -> None:
    kept: list[object] = [[]]
    freeze_what_stays()
    assert gc.get_freeze_count() > 1000
    assert not any(one is kept for one in gc.get_objects())
    assert gc.get_threshold()[0] == YOUNG_OBJECTS
    cycle: list[object] = []
    cycle.append(cycle)
    del cycle
    assert gc.collect() >= 1


class Steps(list[str]):
    """What was done, in its order, by what stands in the places of Ray and the engine."""

    def step(self, name: str, result: Any = None) -> Any:
        def done(*_: Any, **__: Any) -> Any:
            self.append(name)
            return result

        return done

    def later(self, name: str) -> Any:
        async def done(*_: Any, **__: Any) -> None:
            self.append(name)

        return done


CONTEXT = SimpleNamespace(replica_id=SimpleNamespace(unique_id="r1"))


def test_a_gateway_does_so_once_it_is_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps()
    monkeypatch.setattr(gateway, "bind_to_node_address", steps.step("address"))
    monkeypatch.setattr(gateway.OpenAiIngress, "__init__", steps.step("ingress"))
    monkeypatch.setattr(gateway.serve, "get_replica_context", lambda: CONTEXT)
    monkeypatch.setattr(gateway, "RuntimeClient", steps.step("client"))
    monkeypatch.setattr(gateway, "GatewayMetrics", steps.step("metrics"))
    monkeypatch.setattr(Gateway, "assemble", steps.step("assembled"))
    monkeypatch.setattr(gateway, "freeze_what_stays", steps.step("frozen"))
    settings: Any = SimpleNamespace(runtime={}, version=1)
    Gateway({}, {}, settings=settings)
    assert steps[-2:] == ["assembled", "frozen"] and steps.count("frozen") == 1


class Replica(AgentLLMServer):
    def __del__(self) -> None:  # type: ignore[override]
        """Serve awaits the base class's."""


def test_a_replica_does_so_once_its_engine_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps()
    monkeypatch.setattr(server.LLMServer, "start", steps.later("engine"))
    monkeypatch.setattr(AgentLLMServer, "_answer_once", steps.later("answer"))
    monkeypatch.setattr(server, "restore_tokenization", steps.step("tokenization"))
    monkeypatch.setattr(server.serve, "get_replica_context", lambda: CONTEXT)
    node = SimpleNamespace(get_node_id=lambda: "n1")
    monkeypatch.setattr(server.ray, "get_runtime_context", lambda: node)
    monkeypatch.setattr(server, "RuntimeClient", steps.step("client", SimpleNamespace(exchange=None)))
    monkeypatch.setattr(server, "Sidecar", lambda **_: SimpleNamespace(start=steps.step("sidecar")))
    monkeypatch.setattr(server, "freeze_what_stays", steps.step("frozen"))

    made = Replica.__new__(Replica)
    made.engine = None
    asyncio.run(made.start())
    assert steps.index("engine") < steps.index("answer") < steps.index("sidecar")
    assert steps[-1] == "frozen" and steps.count("frozen") == 1
