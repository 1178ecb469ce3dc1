"""A whole application on simulated engines, one of which hangs; print what became of requests as JSON.

A program of its own, since a process holds one Ray: python tests/fault/stuck_engine.py STATE_FOLDER PORT
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from ray import serve

from cluster.local_ray import LocalRay
from tests.gateway_kit import MODEL, body, ours, state, wait_for
from tests.server_kit import KEYS, server_config

APPLICATION = "agent-runtime"
START_TIMEOUT_S = 600.0
REQUESTS = 8


def configured(folder: Path, port: int) -> dict[str, Any]:
    content = server_config(folder, "unused")
    content["http_options"]["port"] = port
    cost = {"prefill_s_per_token": 0.0, "decode_s_per_token": 0.0}
    content["applications"][0]["args"] |= {"engine": "simulated", "simulated": cost}
    return content


def ask(url: str, number: int) -> dict[str, Any]:
    """A session of its own; whole and streamed answers by turns."""
    fields = body(f"request {number}", session_id=f"s{number}", stream=number % 2 == 1)
    headers = {"authorization": f"Bearer {KEYS['one']}"}
    began_s = time.monotonic()
    answer = httpx.post(f"{url}/v1/chat/completions", json=fields, headers=headers, timeout=300.0, trust_env=False)
    seconds = time.monotonic() - began_s
    return {"status": answer.status_code, "seconds": seconds, "replica": ours(answer, "replica"), "text": answer.text}


def ask_all(url: str, first: int) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(REQUESTS) as pool:
        return list(pool.map(lambda number: ask(url, first + number), range(REQUESTS)))


def play(url: str) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {KEYS['ops']}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60.0, trust_env=False) as operator:
        wait_for(lambda: len(state(operator)["replicas"]) == 2, 120, "both replicas report")
        calm = ask_all(url, 0)
        # Without a request of its own to route by, it goes to any one.
        serve.get_deployment_handle(f"SimulatedLLMServer:{MODEL}", APPLICATION).simulate_fault.remote("freeze").result()
        waited = ask_all(url, 100)
        silent = {replica["replica"]: replica["silent_s"] for replica in state(operator)["replicas"]}
        later = ask_all(url, 200)
        retries = state(operator)["gateway"]["retries"]
    return {"calm": calm, "waited": waited, "later": later, "silent": silent, "retries": retries}


def main() -> None:
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    cluster = LocalRay()
    try:
        cluster.start()
        cluster.deploy(configured(folder, port))
        cluster.wait_until_running(APPLICATION, START_TIMEOUT_S, lambda done, total: None)
        report = play(f"http://127.0.0.1:{port}")
    finally:
        cluster.stop()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
