"""A server of the run's own: the launcher's process, its children by title, and what it says of itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

ROOT = Path(__file__).resolve().parents[3]
START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 120.0
SIMULATED = {"prefill_s_per_token": 0.0002, "decode_s_per_token": 0.004, "num_blocks": 400, "max_num_seqs": 8}


class ChaosServer:
    """Without keys, so that whoever calls from this machine may see all of the state."""

    def __init__(self, engine: str, folder: Path, **gateway: Any) -> None:
        self.engine = engine
        self.checkpoints = folder / "checkpoints"
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        config = folder / "serve_config.yaml"
        config.write_text(yaml.safe_dump(self._config(folder, gateway)))
        self.log = folder / "server.log"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cluster.local", "--config", str(config), "--port", str(self.port)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._wait_until_ready()

    def _config(self, folder: Path, gateway: dict[str, Any]) -> dict[str, Any]:
        content: dict[str, Any] = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
        application = content["applications"][0]
        application["runtime_env"]["env_vars"]["PYTHONPATH"] = str(ROOT)
        arguments = application["args"]
        arguments["runtime"] |= {"checkpoint_dir": str(self.checkpoints), "checkpoint_interval_s": 0.5}
        arguments["gateway"] |= {"secret_file": str(folder / "identity.key"), **gateway}
        if self.engine == "simulated":
            arguments |= {"engine": "simulated", "simulated": SIMULATED, "engine_kwargs": {}}
            arguments["model"]["source"] = "simulated"
        return content

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while "READY" not in self.log.read_text():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.stop()
                raise RuntimeError("the server did not start:\n" + self.log.read_text()[-4000:])
            time.sleep(0.5)

    def stop(self) -> None:
        """As Ctrl-C does; what doesn't end by itself is ended."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    # --- its processes ----------------------------------------------------------------------------------

    def pids(self, *words: str, without: str = "\0") -> list[int]:
        """Of the server's own processes whose title has all of `words`."""
        found = []
        for process in self.processes():
            title = _title(process)
            if title and all(word in title for word in words) and without not in title:
                found.append(process.pid)
        return found

    def processes(self) -> list[psutil.Process]:
        return list(psutil.Process(self._process.pid).children(recursive=True))

    @property
    def actor(self) -> int:
        (pid,) = self.pids("RuntimeActor")
        return pid

    @property
    def head(self) -> int:
        (pid,) = self.pids("gcs/gcs_server")
        return pid

    @property
    def gateways(self) -> list[int]:
        return self.pids("ServeReplica", "Gateway")

    @property
    def serving_gateway(self) -> int:
        """The one of them that answers."""
        state = self.state()
        if state is None:
            raise RuntimeError("no gateway answers")
        return int(state["gateway"]["pid"])

    @property
    def replicas(self) -> list[int]:
        return self.pids("ServeReplica", without="Gateway")

    def memory_bytes(self) -> dict[str, int]:
        """Resident memory of each process that serves, by kind and process id."""
        kinds = {
            "RuntimeActor": "actor",
            "ProxyActor": "proxy",
            "ServeController": "controller",
            "EngineCore": "engine",
            "VLLM::Worker": "worker",
            "gcs/gcs_server": "gcs",
            "raylet/raylet": "raylet",
        }
        found: dict[str, int] = {}
        for process in self.processes():
            title = _title(process)
            kind = next((name for word, name in kinds.items() if word in title), None)
            if kind is None and "ServeReplica" in title:
                kind = "gateway" if "Gateway" in title else "replica"
            if kind is not None:
                found[f"{kind} {process.pid}"] = _resident_bytes(process)
        return found

    # --- what it says -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any] | None:
        """None while it can't be had."""
        try:
            answer = httpx.get(f"{self.url}/runtime/state", timeout=20.0, trust_env=False)
        except httpx.HTTPError:
            return None
        return answer.json() if answer.status_code == 200 else None

    def is_whole(self, replicas: int = 2, other_than: Collection[str] = ()) -> bool:
        """The actor answers, and all replicas have reported to it lately; they aren't just those of `other_than`."""
        found = self.state()
        if found is None:
            return False
        names = {replica["replica"] for replica in found["replicas"] if replica["age_s"] < 5.0}
        return len(names) == replicas and (not other_than or bool(names.difference(other_than)))

    def wait_until(self, holds: Any, limit_s: float) -> float | None:
        """Seconds it took; None if it didn't happen."""
        began_s = time.monotonic()
        while time.monotonic() - began_s < limit_s:
            if holds():
                return time.monotonic() - began_s
            threading.Event().wait(0.2)
        return None


def counted(state: dict[str, Any]) -> int:
    """Requests of all agents that the runtime has counted."""
    return sum(int(agent["requests"]) for agent in state["agents"])


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) + " " + process.name()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
