"""Real replicas under load while a process of the system is killed: what it costs, and what comes back."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from tests.gateway_kit import agents, chat, ours, state, wait_for
from tests.server_kit import Filler, Server

CALLERS = 4
SHORT_ONE_S = 60.0
"""What a short prompt should wait at most behind thirty long ones."""
RECOVERY_S = 180.0
"""A new engine loads its model, on a machine that is busy with the other one."""


class Load:
    """CALLERS threads, each a session of two agents in turns, until stopped. Every call's end is kept."""

    def __init__(self, server: Server, filler: Filler) -> None:
        self._server = server
        self._systems = [f"agent {n} under load. {filler(120)}" for n in range(2)]
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.ends: Counter[str] = Counter()
        self.agents: set[str] = set()
        self._threads = [threading.Thread(target=self._call, args=(n,)) for n in range(CALLERS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(150)
        assert not any(thread.is_alive() for thread in self._threads), "a request got no answer"

    @property
    def answered(self) -> int:
        with self._lock:
            return self.ends["200"]

    def _call(self, number: int) -> None:
        turn = 0
        with self._server.client() as client:
            while not self._stop.is_set():
                turn += 1
                end = self._one(client, number, turn)
                with self._lock:
                    self.ends[end] += 1

    def _one(self, client: httpx.Client, number: int, turn: int) -> str:
        headers = {"x-session-id": f"load-{number}"}
        try:
            answer = chat(client, f"turn {turn}", self._systems[turn % 2], headers, max_tokens=4)
        except httpx.HTTPError as error:
            return type(error).__name__
        if answer.status_code == 200:
            with self._lock:
                self.agents.add(ours(answer, "agent"))
            return "200"
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        return str(answer.status_code)


def processes(server: Server, title: str) -> list[psutil.Process]:
    """The server's own processes whose title or command has `title`."""
    found = []
    for process in psutil.Process(server.pid).children(recursive=True):
        try:
            if title in " ".join(process.cmdline()) or title in process.name():
                found.append(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


@pytest.fixture
def load(server: Server, filler: Filler) -> Load:
    return Load(server, filler)


def test_a_killed_actor_costs_no_request_and_its_state_comes_back(
    server: Server, load: Load, client: httpx.Client
) -> None:
    with server.client("ops") as operator, load:
        wait_for(lambda: load.answered >= 12, 120, "answers before the kill")
        known = {name: agent["requests"] for name, agent in agents(client).items()}
        epoch = state(operator)["epoch"]
        (actor,) = processes(server, "RuntimeActor")
        os.kill(actor.pid, signal.SIGKILL)
        served = load.answered
        wait_for(lambda: load.answered >= served + 8, 120, "answers without the actor")

        def is_back() -> bool:
            answer = operator.get("/runtime/state")
            return answer.status_code == 200 and answer.json()["epoch"] > epoch and len(answer.json()["replicas"]) == 2

        wait_for(is_back, 60, "the actor is back and both replicas have registered")
    assert set(load.ends) == {"200"}, load.ends
    found = agents(client)
    # What came after the last checkpoint, a second at most, may be counted by nobody.
    lost = {name: requests - found[name]["requests"] for name, requests in known.items()}
    assert all(loss <= 0 for loss in lost.values()), lost


def test_a_killed_engine_costs_only_what_was_in_flight_on_it(server: Server, load: Load, client: httpx.Client) -> None:
    with server.client("ops") as operator, load:
        wait_for(lambda: load.answered >= 12, 120, "answers before the kill")
        before = {replica["replica"] for replica in state(operator)["replicas"]}
        engines = processes(server, "EngineCore")
        assert len(engines) == len(before) == 2
        os.kill(engines[0].pid, signal.SIGKILL)
        served = load.answered
        wait_for(lambda: load.answered >= served + 8, 120, "answers from the other replica")

        def is_whole() -> bool:
            names = {replica["replica"] for replica in state(operator)["replicas"]}
            return len(names) == 2 and names != before

        wait_for(is_whole, RECOVERY_S, "a new replica in the dead one's place")
    failed = sum(load.ends.values()) - load.ends["200"]
    assert failed <= CALLERS, load.ends


def switch(operator: httpx.Client, is_fair: bool) -> None:
    """Fairness, until the gateway has heard of it."""
    assert operator.post("/runtime/policy", json={"name": "fairness", "enabled": is_fair}).status_code == 200

    def is_heard() -> bool:
        rows = [row for row in state(operator)["policies"] if row["name"] == "fairness"]
        return bool(rows) and rows[0]["enabled"] == is_fair

    wait_for(is_heard, 30.0, "the gateway hears of it")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_fair", [False, True], ids=["first_come", "fairness"])
def test_load_alone_makes_no_replica_unhealthy(server: Server, filler: Filler, is_fair: bool) -> None:
    """Four minutes of thirty prompts of 3,000 tokens at once: nothing is restarted, and short ones are answered too."""
    ends: list[int] = []
    until_s = time.monotonic() + 240.0

    def flood(_: int) -> None:
        with server.client() as client:
            while time.monotonic() < until_s:
                ends.append(chat(client, filler(3000)).status_code)

    with server.client("ops") as operator, server.client("two") as other, ThreadPoolExecutor(30) as pool:
        before = {replica["replica"] for replica in state(operator)["replicas"]}
        switch(operator, is_fair)
        floods = [pool.submit(flood, number) for number in range(30)]
        slowest_s = 0.0
        while time.monotonic() < until_s:
            assert operator.get("/-/healthz", timeout=5.0).status_code == 200
            began_s = time.monotonic()
            assert chat(other, "hi").status_code == 200
            slowest_s = max(slowest_s, time.monotonic() - began_s)
        for one in floods:
            one.result()
        switch(operator, False)
        assert {replica["replica"] for replica in state(operator)["replicas"]} == before
    assert set(ends) <= {200, 429} and ends.count(200) >= 30, Counter(ends)
    assert slowest_s < SHORT_ONE_S or not is_fair, slowest_s
    if slowest_s >= SHORT_ONE_S:
        pytest.xfail(f"a short prompt waited {slowest_s:.0f} s for its turn; the aim is {SHORT_ONE_S:.0f}")
