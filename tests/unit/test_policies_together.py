"""All policies at once, and none: they compose, and off means the server without them, request for request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime_actor.messages import RequestAccepted
from runtime_actor.policies import catalogue
from runtime_actor.policies.base import ENGINE
from serve_app.app import _engine_arguments
from serve_app.config import load
from tests.unit.gateway_bench import CHUNK, DONE, Answer, Bench

ALL: list[dict[str, Any]] = [
    {"name": "kv_cache"},
    {"name": "safety", "fail_closed": True, "options": {"rules": [{"patterns": [{"pattern": "secret"}]}]}},
    {"name": "fairness"},
    {"name": "deadline"},
    {"name": "memo", "options": {"tools": [{"tool": "read"}]}},
    {"name": "batch_shaping"},
    {"name": "speculation"},
    {"name": "routing"},
    {"name": "adapters"},
]
OFF = [{**policy, "enabled": False} for policy in ALL]
REQUESTS: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"messages": [{"role": "user", "content": "hi"}]}, {}),
    ({"messages": [{"role": "user", "content": "hi"}], "stream": True, "logprobs": True}, {"x-session-id": "s"}),
    ({"messages": [{"role": "user", "content": "secret"}], "priority": 4}, {"x-slo-ttft-ms": "50"}),
    ({"messages": [{"role": "user", "content": "hi"}], "temperature": 7}, {}),
    ({"messages": []}, {}),
]


def played(policies: list[dict[str, Any]]) -> list[Any]:
    """What the engine got and what the client got, request by request, without fresh ids."""
    seen: list[Any] = []
    for fields, headers in REQUESTS:
        bench = Bench(policies=policies)
        stream = fields.get("stream")
        bench.handle.items = [RequestAccepted("r1", 40, 32).to_wire(), *([CHUNK, DONE] if stream else [Answer()])]
        answer = bench.ask("POST", "/v1/chat/completions", json=fields, headers=headers)
        ours = {name: value for name, value in answer.headers.items() if name != "x-agent-runtime-session"}
        engine = [
            (request.model_dump(exclude={"request_id", "session_id", "vllm_xargs"}), raw.headers)
            for request, raw in bench.handle.requests
        ]
        seen.append(
            (answer.status_code, answer.text, ours, json.dumps(engine, sort_keys=True, default=str), bench.buffered)
        )
    return seen


def test_off_is_stock_request_for_request() -> None:
    assert played(OFF) == played([]) == played([{"name": "kv_cache", "enabled": False}])


def test_off_makes_nothing() -> None:
    bench = Bench(policies=OFF)
    desk = bench.gateway._policies
    assert not desk.is_active and desk.turnstile is None
    stock = load({"model": {"id": "m", "source": "x"}, "policies": [{"name": "kv_cache"}]})
    off = load({"model": {"id": "m", "source": "x"}, "policies": [{"name": "kv_cache"}, *OFF[1:]]})
    assert _engine_arguments(off, 100) == _engine_arguments(stock, 100)


def test_all_at_once() -> None:
    bench = Bench(policies=ALL)
    bench.handle.items = [RequestAccepted("r1", 40, 32).to_wire(), CHUNK, DONE]
    answer = bench.ask(
        "POST",
        "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "hi"}], "stream": True},
        headers={"x-slo-ttft-ms": "5000"},
    )
    assert answer.status_code == 200 and "x-slo-ttft-ms=accepted" in answer.headers["x-agent-runtime-hints"]
    refused = bench.chat(messages=[{"role": "user", "content": "my secret"}])
    assert refused.status_code == 403
    assert bench.ask("POST", "/runtime/memo/lookup", json={"tool": "read"}).json()["ticket"]
    state = bench.ask("GET", "/runtime/state", "ops").json()
    rows = {row["name"]: row for row in state["policies"]}
    assert set(rows) == {"safety", "fairness", "deadline", "memo", "speculation", "routing"}
    assert all(row["enabled"] and row["failures"] == 0 for row in rows.values())
    assert rows["safety"]["counters"] == {"refused": 1}
    assert rows["fairness"]["counters"] == {"sent": 1, "tenants": 1, "in_account": 0}
    assert rows["deadline"]["counters"] == {"met": 1, "waiting": 0}
    assert rows["memo"]["counters"] == {"asked": 1}
    assert state["gateway"]["queue"] == {
        "refused": 1, "places": 16, "inside": 0, "waiting": 0, "passed": 1, "waited": 0, "led": 0,
    }  # fmt: skip
    assert "counters" not in bench.ask("GET", "/runtime/state").json()["policies"][0], "a tenant sees no totals of all"


def test_engine_policies_reach_the_engine() -> None:
    config = load({"model": {"id": "m", "source": "x"}, "policies": ALL})
    (entry,) = _engine_arguments(config, 100)["additional_config"]["agent_runtime"]["policies"]
    assert entry["name"] == "batch_shaping"
    assert [p.name for p in config.runtime_settings().policies if catalogue.class_of(p).seat == ENGINE] == [
        "batch_shaping"
    ]


@pytest.mark.parametrize("name", [policy["name"] for policy in ALL[1:]])
def test_each_has_its_page(name: str, request: pytest.FixtureRequest) -> None:
    page = request.config.rootpath / "docs" / "policies" / f"{name}.md"
    text = page.read_text(encoding="utf-8")
    for heading in ("Observes", "Scores", "Predicts", "Does", "When it helps", "When it must not"):
        assert f"**{heading}" in text, heading
