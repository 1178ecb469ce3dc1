"""Deploy cluster/h100.yaml with the simulated engine on pretended GPUs; print what was placed as JSON.

A program of its own, since a process holds one Ray: python tests/serve/h100_cluster.py STATE_FOLDER PORT
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil
import ray
import yaml
from ray.util.placement_group import placement_group_table

from cluster.local_ray import LocalRay
from cluster.processes import descendants
from serve_app.configuration.file import check_content

ROOT = Path(__file__).resolve().parents[2]
GPUS = 4
KEY = "key-of-the-test"
START_TIMEOUT_S = 600.0


def changed_config(state: Path, port: int) -> dict[str, Any]:
    """The file's own text but for what a machine without GPUs, hub and shared storage can't have."""
    content: dict[str, Any] = yaml.safe_load((ROOT / "cluster" / "h100.yaml").read_text())
    content["http_options"] |= {"host": "127.0.0.1", "port": port}
    arguments = content["applications"][0]["args"]
    arguments["engine"] = "simulated"
    arguments["runtime"] |= {"checkpoint_dir": str(state / "checkpoints")}
    arguments["gateway"] |= {"secret_file": str(state / "identity.key")}
    arguments["gateway"]["api_keys"][0]["sha256"] = hashlib.sha256(KEY.encode()).hexdigest()
    check_content(content)
    return content


def placed() -> list[dict[str, float]]:
    """The bundles of all placement groups that are in place."""
    return [
        bundle
        for group in placement_group_table().values()
        if group["state"] == "CREATED"
        for bundle in group["bundles"].values()
    ]


def outside_listeners() -> list[str]:
    """Processes of ours that listen on more than loopback."""
    found = []
    for process in descendants():
        try:
            sockets = process.net_connections(kind="inet")
            name = " ".join(process.cmdline())[:80]
        except psutil.Error:
            continue
        for one in sockets:
            address = one.laddr[0] if one.laddr else ""
            if one.status == psutil.CONN_LISTEN and address.removeprefix("::ffff:") not in ("127.0.0.1", "::1"):
                found.append(f"{address}:{one.laddr[1]} {name}")
    return found


def ask(port: int, count: int) -> list[tuple[int, str]]:
    """(status, replica) of `count` requests, each a session of its own."""
    answers = []
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60.0, trust_env=False) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        for number in range(count):
            body = {"model": model, "max_tokens": 2, "messages": [{"role": "user", "content": f"hello {number}"}]}
            response = client.post("/v1/chat/completions", json=body, headers={"x-session-id": f"s{number}"})
            answers.append((response.status_code, response.headers.get("x-agent-runtime-replica", "")))
    return answers


def main() -> None:
    state, port = Path(sys.argv[1]), int(sys.argv[2])
    # Ray would start a worker for each pretended core.
    os.environ["RAY_prestart_worker_first_driver"] = "0"  # noqa: SIM112 (Ray spells it so)
    cluster = LocalRay()
    try:
        cluster.start(num_cpus=8 * GPUS, num_gpus=GPUS, resources={"accelerator_type:H100": GPUS})
        cluster.deploy(changed_config(state, port))
        cluster.wait_until_running("agent-runtime", START_TIMEOUT_S, lambda done, total: None)
        free = ray.available_resources()
        report = {"bundles": placed(), "free_gpus": free.get("GPU", 0.0), "answers": ask(port, 8)}
        report["outside"] = outside_listeners()
    finally:
        cluster.stop()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
