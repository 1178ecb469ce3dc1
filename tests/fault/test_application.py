"""A whole application with simulated engines: requests leave what hangs long before it ends; it may be shut down and
run again at once."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import ray
from ray import serve

from replicas.settings import WatchdogSettings
from serve_app.app import build_app
from serve_app.routing_state import STUCK_AFTER_S
from tests.fault import faults
from tests.gateway_kit import MODEL, agents, body, ours, state, wait_for
from tests.server_kit import Server, free_port, server_config

ROOT = Path(__file__).resolve().parents[2]
APPLICATION = "agent-runtime"
REQUESTS = 16
"""At once, so that none of two replicas is left out by chance (1 in 32,768)."""


@dataclass(frozen=True)
class Served(Server):
    """`arguments`: of the application."""

    arguments: dict[str, Any]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


def run(arguments: dict[str, Any], port: int) -> None:
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(build_app(arguments), name=APPLICATION, route_prefix="/")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    content = server_config(tmp_path_factory.mktemp("stuck"), "unused")
    arguments = content["applications"][0]["args"]
    cost = {"prefill_s_per_token": 0.0, "decode_s_per_token": 0.0}
    arguments |= {"engine": "simulated", "simulated": cost, "engine_kwargs": {}}
    port = free_port()
    environment = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    try:
        run(arguments, port)
        yield Served(f"http://127.0.0.1:{port}", MODEL, 0, arguments)
    finally:
        serve.shutdown()
        ray.shutdown()


@dataclass(frozen=True)
class Told:
    seconds: float
    replica: str


def ask(server: Server, number: int) -> Told:
    """Whole and streamed answers by turns."""
    fields = body(f"request {number}", session_id=f"s{number}", stream=number % 2 == 1)
    began_s = time.monotonic()
    with server.client() as client:
        answer = client.post("/v1/chat/completions", json=fields)
    assert answer.status_code == 200 and '"error"' not in answer.text, answer.text
    return Told(time.monotonic() - began_s, ours(answer, "replica"))


numbers = itertools.count()


def ask_all(server: Server) -> list[Told]:
    """Sessions that nobody has seen: a known one goes where it was."""
    with ThreadPoolExecutor(REQUESTS) as pool:
        return list(pool.map(partial(ask, server), itertools.islice(numbers, REQUESTS)))


def wait_for_both(server: Server) -> set[str]:
    """Until requests go to both replicas: what has just come, or come back, may have said nothing for a moment."""
    with server.client("ops") as operator:
        wait_for(lambda: len(silent(operator)) == 2, 120, "both replicas report")
        both = set(silent(operator))
    wait_for(lambda: {told.replica for told in ask_all(server)} == both, 60, "both have requests")
    return both


def silent(operator: httpx.Client) -> dict[str, float]:
    return {replica["replica"]: replica["silent_s"] for replica in state(operator)["replicas"]}


def processes_of_replicas() -> list[int]:
    """Children of this test's own Ray."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if "ServeReplica" in (title := " ".join(process.cmdline())) and "SimulatedLLMServer" in title:
                found.append(process.pid)
    return found


def test_requests_leave_a_replica_whose_process_hangs_and_come_back_to_it(served: Served) -> None:
    wait_for_both(served)
    with faults.paused(processes_of_replicas()[0]):
        waited = ask_all(served)
        (living,) = {told.replica for told in waited}
        assert max(told.seconds for told in waited) < WatchdogSettings().stuck_after_s / 2
        later = ask_all(served)
        assert {told.replica for told in later} == {living}
        assert max(told.seconds for told in later) < STUCK_AFTER_S, "nobody waits for it any more"
    assert living in wait_for_both(served)


def test_requests_leave_a_stuck_engine(served: Served) -> None:
    with served.client("ops") as operator:
        wait_for_both(served)
        # Without a request of its own to route by, it goes to any one.
        serve.get_deployment_handle(f"SimulatedLLMServer:{MODEL}", APPLICATION).simulate_fault.remote("freeze").result()
        waited = ask_all(served)
        (living,) = {told.replica for told in waited}
        (stuck,) = set(silent(operator)) - {living}
        assert STUCK_AFTER_S / 2 < max(told.seconds for told in waited) < WatchdogSettings().stuck_after_s / 2
        assert state(operator)["gateway"]["retries"] >= 1
        found = silent(operator)
        assert found[stuck] > STUCK_AFTER_S and found[living] < STUCK_AFTER_S, "it stays so with nobody waiting for it"
        later = ask_all(served)
        assert {told.replica for told in later} == {living}
        assert max(told.seconds for told in later) < STUCK_AFTER_S, "nobody waits for it any more"


@pytest.mark.long
def test_it_is_shut_down_and_run_again_at_once(served: Served) -> None:
    """No name is taken, and what was learnt is there."""
    with served.client("ops") as operator:
        before, known = set(silent(operator)), set(agents(operator))
        assert known
    serve.shutdown()
    run(served.arguments, served.port)
    with served.client("ops") as operator:
        wait_for(lambda: len(silent(operator)) == 2, 120, "both new replicas report")
        assert not before & set(silent(operator))
        assert known <= set(agents(operator))
    wait_for_both(served)
