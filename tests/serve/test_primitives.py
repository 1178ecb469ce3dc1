"""observe, score, predict and act, each by what a real neighbour does with it; a cut one fails its test.

A team of two agents works in sessions: the planner speaks, then the coder. The cache of a replica holds
160 blocks of 32 tokens, so requests of strangers soon push out what nothing protects.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.gateway_kit import agents, cached, chat, ours, state, wait_for
from tests.server_kit import BLOCK_TOKENS, CACHE_BLOCKS, Filler, Server

ANCHOR_TOKENS = 320
NOISE_TOKENS = 1500
WARM_BLOCKS = ANCHOR_TOKENS // BLOCK_TOKENS - 2


class Team:
    """A planner and a coder with anchors of their own, and sessions in which they take turns."""

    def __init__(self, client: httpx.Client, filler: Filler, name: str) -> None:
        self.client = client
        self.name = name
        self.filler = filler
        self.systems = {role: f"{role} {name}. {filler(ANCHOR_TOKENS)}" for role in ("planner", "coder")}
        self.sessions = 0
        self.answers: list[httpx.Response] = []

    def say(self, role: str, session: str, *, final: bool = False) -> httpx.Response:
        headers = {"x-session-id": f"{self.name}-{session}", "x-dynamo-session-final": str(final).lower()}
        answer = chat(self.client, self.filler(20), self.systems[role], headers)
        assert answer.status_code == 200, answer.text
        self.answers.append(answer)
        return answer

    def work(self, sessions: int, pause_s: float = 0.0) -> None:
        """`pause_s` is what a tool takes between the two: what a warm-up has time for."""
        for _ in range(sessions):
            self.sessions += 1
            self.say("planner", f"past-{self.sessions}")
            time.sleep(pause_s)
            self.say("coder", f"past-{self.sessions}", final=True)

    def agent(self, role: str) -> str:
        return ours(self.answers[0 if role == "planner" else 1], "agent")


def strangers(client: httpx.Client, filler: Filler) -> None:
    """More unique prompts than both caches hold."""
    for _ in range(3 * CACHE_BLOCKS * BLOCK_TOKENS // NOISE_TOKENS):
        assert chat(client, filler(NOISE_TOKENS)).status_code == 200


def switch(operator: httpx.Client, mode: str, prefetch: bool) -> None:
    answer = operator.post("/runtime/policy", json={"name": "kv_cache", "mode": mode, "prefetch": prefetch})
    assert answer.status_code == 200, answer.text
    wait_for(lambda: {r["policy"] for r in state(operator)["replicas"]} == {mode}, 20, f"{mode} everywhere")


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    """A tenant of its own: the agents of all other tests would not leave these a slot in its tables."""
    with server.client("team") as opened:
        yield opened


@pytest.fixture
def operator(server: Server) -> Iterator[httpx.Client]:
    with server.client("ops") as opened:
        yield opened
        switch(opened, "reach", prefetch=True)


def test_observe(client: httpx.Client, filler: Filler) -> None:
    """The gateway tells who came, the replicas what it cost."""
    team = Team(client, filler, "observed")
    team.work(3)
    usages: list[dict[str, Any]] = [answer.json()["usage"] for answer in team.answers]
    wait_for(lambda: all(agents(client)[team.agent(r)]["finished"] == 3 for r in team.systems), 5, "finishes")
    found = [agents(client)[team.agent(role)] for role in team.systems]
    assert [agent["requests"] for agent in found] == [3, 3]
    assert sum(agent["prompt_tokens"] for agent in found) == sum(usage["prompt_tokens"] for usage in usages)
    assert sum(agent["cached_tokens"] for agent in found) == sum(cached(answer) for answer in team.answers)
    rows = {(row["from"], row["to"]): row["count"] for row in state(client)["transitions"]}
    assert rows[team.agent("planner"), team.agent("coder")] == 3
    assert rows[team.agent("coder"), "end"] == 3


def test_score(client: httpx.Client, operator: httpx.Client, filler: Filler) -> None:
    """The engines keep the coder's anchor through a flood because a live session is about to need it."""
    switch(operator, "reach", prefetch=False)
    team = Team(client, filler, "scored")
    # With pauses between its steps: who is silent for a hundred times as long as ever counts as gone.
    team.work(4, pause_s=2.0)
    team.say("coder", "live")
    team.say("planner", "live")
    evicted = sum(replica["evicted_blocks"] for replica in state(operator)["replicas"])
    strangers(client, filler)
    wait_for(
        lambda: sum(r["evicted_blocks"] for r in state(operator)["replicas"]) > evicted + CACHE_BLOCKS,
        10,
        "evictions by the flood",
    )
    kept = {r["replica"]: r["resident"].get(team.agent("coder"), 0) for r in state(client)["replicas"]}
    answer = team.say("coder", "live")
    assert cached(answer) >= ANCHOR_TOKENS - BLOCK_TOKENS, (
        f"served by {ours(answer, 'replica')}, kept were {kept}, before {[ours(a, 'replica') for a in team.answers]}"
    )


def test_predict(client: httpx.Client, operator: httpx.Client, filler: Filler) -> None:
    """The forecast is checked against what comes, and the router ranks by the same tables."""
    team = Team(client, filler, "predicted")
    team.work(4)
    before = state(operator)
    team.work(3)
    after = state(operator)
    assert after["forecasts"]["right"] >= before["forecasts"]["right"] + 3
    assert after["gateway"]["routing"]["ranked"] > before["gateway"]["routing"]["ranked"]
    team.say("planner", "next")
    answer = client.get("/runtime/predict", params={"session_id": f"{team.name}-next", "horizon": 1}).json()
    assert answer["forecast"][0]["agent"] == team.agent("coder")


def test_act(client: httpx.Client, operator: httpx.Client, filler: Filler) -> None:
    """Once its anchor is gone, the coder's is computed again while the planner's answer is still read."""
    team = Team(client, filler, "acted")
    team.work(6, pause_s=2.0)
    switch(operator, "lru", prefetch=False)
    strangers(client, filler)
    resident = [replica["resident"].get(team.agent("coder"), 0) for replica in state(client)["replicas"]]
    assert resident == [0] * len(resident)
    switch(operator, "reach", prefetch=True)
    useful = state(client)["prefetch"]["useful"]
    team.say("planner", "live")
    wait_for(
        lambda: any(r["resident"].get(team.agent("coder"), 0) >= WARM_BLOCKS for r in state(client)["replicas"]),
        20,
        "the coder's anchor is warm",
    )
    warm = {r["replica"]: r["resident"].get(team.agent("coder"), 0) for r in state(client)["replicas"]}
    answer = team.say("coder", "live")
    assert cached(answer) >= WARM_BLOCKS * BLOCK_TOKENS, f"served by {ours(answer, 'replica')}, warm were {warm}"
    wait_for(lambda: state(client)["prefetch"]["useful"] > useful, 10, "the warm-up was useful")
    found = agents(client)[team.agent("coder")]
    assert found["requests"] == 7
