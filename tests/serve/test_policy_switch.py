"""A policy of the engines, switched over HTTP while real ones serve."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.gateway_kit import assert_error, chat, state, wait_for
from tests.server_kit import Filler, Server

NAME = "batch_shaping"
REPLICAS = 2


def row(operator: httpx.Client) -> dict[str, Any]:
    (found,) = [policy for policy in state(operator)["policies"] if policy["name"] == NAME]
    return found


def wait_for_engines(operator: httpx.Client, enabled: bool, weight: float) -> None:
    """Until every engine says so of it."""

    def all_have_it() -> bool:
        policies = [policy for replica in state(operator)["replicas"] for policy in replica["policies"]]
        said = [(policy["enabled"], policy["weight"]) for policy in policies if policy["name"] == NAME]
        return said == [(enabled, weight)] * REPLICAS

    wait_for(all_have_it, 30, f"{NAME} is {'on' if enabled else 'off'} in every engine, with weight {weight}")


def switch(operator: httpx.Client, enabled: bool, weight: float = 1.0, **changes: Any) -> None:
    change = {"name": NAME, "enabled": enabled, "weight": weight, **changes}
    answer = operator.post("/runtime/policy", json=change)
    assert answer.status_code == 200, answer.text
    assert answer.json()["enabled"] is enabled
    wait_for_engines(operator, enabled, weight)
    assert row(operator)["enabled"] is enabled


def burst(server: Server, filler: Filler, system: str, count: int = 24) -> None:
    """More at once than both engines run, so that some wait; each gets its answer, once."""
    texts = [filler(24) for _ in range(count)]
    with server.client("two") as client, ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(lambda text: chat(client, text, system, max_tokens=8, ignore_eos=True), texts))
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 8


def test_it_is_switched_while_requests_wait(server: Server, filler: Filler) -> None:
    system = filler(300)
    with server.client("ops") as operator:
        assert row(operator)["enabled"] is False, "as serve_config.yaml says"
        wait_for_engines(operator, False, 1.0)
        with ThreadPoolExecutor(1) as pool:
            under_way = pool.submit(burst, server, filler, system)
            switch(operator, True, options={"window": 16, "max_passed_over": 4})
            under_way.result(timeout=240)
            burst(server, filler, system)
            wait_for(lambda: row(operator)["counters"].get("ordered", 0) > 0, 20, "it has ordered a queue")
            ordered = row(operator)["counters"]["ordered"]
            under_way = pool.submit(burst, server, filler, system)
            switch(operator, False)
            under_way.result(timeout=240)
        assert row(operator)["counters"]["ordered"] >= ordered
        before = row(operator)["counters"]
        burst(server, filler, system, 12)
        switch(operator, False, weight=0.5)
        assert row(operator)["counters"] == before, "off, nothing of it runs; its counters stay"
        assert row(operator)["failures"] == 0
        switch(operator, False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"options": {"window": 1}}, "policies.batch_shaping.options.window: 1 is not allowed"),
        ({"options": {"windows": 9}}, "policies.batch_shaping.options.windows: unknown key"),
        ({"mode": "reach"}, "policies.batch_shaping.mode: unknown key"),
        ({"enabled": "yes"}, "policies.batch_shaping.enabled: 'yes'"),
    ],
)
def test_bad_values_are_named_and_change_nothing(server: Server, changes: dict[str, Any], said: str) -> None:
    with server.client("ops") as operator:
        before = row(operator)
        error = assert_error(operator.post("/runtime/policy", json={"name": NAME, **changes}), 400, "invalid_value")
        assert said in error["message"]
        assert row(operator)["enabled"] == before["enabled"] and row(operator)["weight"] == before["weight"]
