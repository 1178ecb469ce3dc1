"""All policies on at once in a running server: simulated engines, everything else as deployed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from agent_client.memo import Memo
from tests.gateway_kit import assert_error, chat, wait_for
from tests.server_kit import KEYS, MODEL, Server, running_server, server_config

POLICIES: list[dict[str, Any]] = [
    {"name": "kv_cache"},
    {
        "name": "safety",
        "fail_closed": True,
        "options": {"rules": [{"models": [MODEL], "patterns": [{"pattern": "forbidden [a-z]+"}]}]},
    },
    {"name": "fairness"},
    {"name": "deadline"},
    {
        "name": "memo",
        "options": {
            "tools": [
                {"tool": "search", "invalidated_by": ["write"]},
                {"tool": "user", "read_only": True, "run_ahead": True},
                {"tool": "order", "read_only": True, "run_ahead": True, "invalidated_by": ["cancel"]},
            ]
        },
    },
    {"name": "batch_shaping"},
    {"name": "speculation"},
    {"name": "routing"},
    {"name": "adapters"},
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("policies")
    content = server_config(folder, "unused")
    arguments = content["applications"][0]["args"]
    arguments |= {"engine": "simulated", "policies": POLICIES, "simulated": {"num_blocks": 200}}
    config = folder / "serve_config.yaml"
    config.write_text(yaml.safe_dump(content))
    with running_server(config) as started:
        yield started


def rows(server: Server) -> dict[str, dict[str, Any]]:
    with server.client("ops") as operator:
        state = operator.get("/runtime/state").json()
    return {row["name"]: row for row in state["policies"]}


def test_requests_pass_and_each_policy_sees_them(served: Server) -> None:
    with served.client() as client:
        for number in range(4):
            headers = {"x-session-id": f"s{number}", "x-slo-ttft-ms": "60000"}
            answer = chat(client, f"Hello {number}", "You plan things.", headers)
            assert answer.status_code == 200, answer.text
            assert "x-slo-ttft-ms=accepted" in answer.headers["x-agent-runtime-hints"]
        assert_error(chat(client, "something forbidden here"), 403, "content_not_allowed")
    found = rows(served)
    assert set(found) == {policy["name"] for policy in POLICIES}
    assert all(row["enabled"] and not row["failures"] for row in found.values()), found
    assert found["fairness"]["counters"]["sent"] == 4 and found["fairness"]["counters"]["in_account"] == 0
    assert found["safety"]["counters"] == {"refused": 1}


def test_a_tool_is_run_once_through_the_actor_of_its_own(served: Server) -> None:
    runs: list[str] = []
    memos = [Memo(served.url, KEYS["one"]) for _ in range(2)]
    for memo in memos:
        assert memo.call("search", {"query": "a"}, lambda: runs.append("a") or ["found"]) == ["found"]
    assert runs == ["a"]
    with served.client() as client:
        event = {"type": "tool_returned", "session_id": "s0", "tool": "write"}
        assert client.post("/runtime/events", json=event).status_code == 202
    assert memos[0].call("search", {"query": "a"}, lambda: ["anew"]) == ["anew"]
    stranger = Memo(served.url, KEYS["two"])
    assert stranger.call("search", {"query": "a"}, lambda: ["theirs"]) == ["theirs"]
    with served.client("ops") as operator:
        kept = operator.get("/runtime/state").json()["gateway"]["memo"]
    assert (kept["hits"], kept["stored"], kept["invalidated"]) == (1, 3, 1)
    for memo in (*memos, stranger):
        memo.close()


class Shop:
    """A program with two tools, and what they ran."""

    def __init__(self, server: Server, tenant: str) -> None:
        self.runs: list[str] = []
        self.memo = Memo(server.url, KEYS[tenant])
        self.user = self.memo.tool("user", ahead=True)(self._user)
        self.order = self.memo.tool("order", ahead=True)(self._order)

    def _user(self, user_id: str) -> dict[str, Any]:
        self.runs.append(user_id)
        return {"orders": [f"{user_id}-{n}" for n in range(3)]}

    def _order(self, order_id: str) -> str:
        self.runs.append(order_id)
        return order_id.upper()

    def reads(self, user_id: str, orders: int) -> list[str]:
        """A session that reads a user and so many of its orders; what was run when its orders were known."""
        self.runs.clear()
        with self.memo.session(user_id):
            found = self.user(user_id)["orders"]
            wait_for(lambda: self.memo.plain_ahead.is_idle, 20.0, "what was expected has been run")
            ran = sorted(self.runs)
            assert [self.order(one) for one in found[:orders]] == [one.upper() for one in found[:orders]]
        return ran


def kept(server: Server) -> Counter[str]:
    with server.client("ops") as operator:
        return Counter(operator.get("/runtime/state").json()["gateway"]["memo"])


def test_calls_that_a_result_names_are_run_before_they_are_made(served: Server) -> None:
    shop, stranger = Shop(served, "one"), Shop(served, "two")
    for user in ("anna", "bert"):
        shop.reads(user, 3)
    before = kept(served)
    assert shop.reads("carl", 2) == ["carl", "carl-0", "carl-1", "carl-2"]
    assert len(shop.runs) == 4, "nothing was run twice"
    with served.client() as client:
        event = {"type": "tool_returned", "session_id": "carl", "tool": "cancel"}
        assert client.post("/runtime/events", json=event).status_code == 202
    wait_for(lambda: kept(served)["ahead_wasted"] > before["ahead_wasted"], 20.0, "nobody asked for the third")
    after = kept(served)
    assert [after[name] - before[name] for name in ("ahead_issued", "ahead_used", "ahead_wasted")] == [3, 2, 1]
    assert stranger.reads("dora", 3) == ["dora"], "another tenant has taught nothing"
    assert rows(served)["memo"]["failures"] == 0
    for one in (shop, stranger):
        one.memo.close()


def test_memo_off_every_tool_is_run_and_on_again_nothing_from_before_is_used(served: Server) -> None:
    shop = Shop(served, "one")
    with served.client("ops") as operator:
        for enabled in (False, True):
            answer = operator.post("/runtime/policy", json={"name": "memo", "enabled": enabled})
            assert answer.status_code == 200, answer.text
            wait_for(lambda on=enabled: rows(served)["memo"]["enabled"] is on, 30.0, "the gateway hears of it")  # type: ignore[misc]
            assert shop.reads("anna", 3) == ["anna"] and shop.runs == ["anna", "anna-0", "anna-1", "anna-2"]
    shop.reads("anna", 3)
    assert shop.runs == []
    shop.memo.close()


def test_the_next_request_of_a_pipeline_is_there_before_it_is_asked_for(served: Server) -> None:
    with served.client() as client:
        for number in range(14):
            session = {"x-session-id": f"pipeline-{number}"}
            text = f"Task: count to number {number} in words."
            for agent in ("planner", "coder"):
                answer = chat(client, text, f"You are the {agent} of a team.", session, max_tokens=8)
                assert answer.status_code == 200, answer.text
                said = answer.json()["choices"][0]["message"]["content"]
                text = f"Task: count to number {number} in words.\n{said}\nGo on from there."
            event = {"type": "session_ended", "session_id": f"pipeline-{number}"}
            assert client.post("/runtime/events", json=event).status_code == 202
    counters = rows(served)["speculation"]["counters"]
    assert counters["joined"] >= 3, counters
    assert counters.get("wasted_tokens", 0) <= 0.1 * counters["served_tokens"]
    assert rows(served)["routing"]["counters"]["ranked"] > 0


def test_one_switch_reaches_the_gateway(served: Server) -> None:
    with served.client("ops") as operator:
        answer = operator.post("/runtime/policy", json={"name": "fairness", "enabled": False})
        assert answer.status_code == 200, answer.text
        wait_for(lambda: not rows(served)["fairness"]["enabled"], 30.0, "the gateway hears of it")
        assert chat(operator, "still served").status_code == 200
        answer = operator.post("/runtime/policy", json={"name": "batch_shaping", "enabled": False})
        assert answer.status_code == 200, answer.text
        shaping = rows(served)["batch_shaping"]
        assert (shaping["enabled"], shaping["engines"], shaping["counters"]) == (False, 0, {}), "no engine here has it"
