"""A Ray cluster of this program's own, on loopback, and the Serve applications on it."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray._private import ray_constants
from ray.dashboard.modules.serve.sdk import ServeSubmissionClient
from ray.serve.schema import ApplicationStatus

from cluster import processes, shared_memory
from cluster.errors import LaunchError
from cluster.head import HeadFiles, HeadWatch
from runtime_actor.actor import ACTOR_NAME, NAMESPACE
from runtime_actor.memo_actor import MEMO_ACTOR_NAME
from serve_app.http import proxy_guard

ROOT = Path(__file__).resolve().parent.parent

OBJECT_STORE_BYTES = 200 * 1024 * 1024
"""Requests and tables are small; Ray's own default is 30 % of the machine's memory."""

logger = logging.getLogger(__name__)

ACTOR_STOP_TIMEOUT_S = 10.0
STATUS_PERIOD_S = 0.5


START_ATTEMPTS = 3
"""A busy machine can miss the time that Ray gives its own processes to come up: 30 s, a minute here."""

_CONNECTIONS = {"grpc_client_keepalive_time_ms": 2000, "grpc_client_keepalive_timeout_ms": 6000}
"""A connection that answers no ping for 6 s is given up and made anew, and so is one that acknowledges nothing for as
long; by Ray's defaults that takes seven minutes, and two. Pings are sent during calls only. Every process of the
cluster must have the same values: Ray's servers refuse pings that come more often than by their own."""

_ENVIRONMENT = {
    "RAY_raylet_start_wait_time_s": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "0.5",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "20",
}
"""A proxy is replaced after three failed checks in a row: of a dead one each fails at once, of a silent one after 10 s.
A new one has 20 s to come up, not Ray's 5, before that counts as a failure."""

_INIT_OPTIONS: dict[str, Any] = {
    # "local": never join a cluster that happens to run on this machine.
    "address": "local",
    "namespace": "serve",
    "include_dashboard": True,
    "dashboard_host": "127.0.0.1",
    "object_store_memory": OBJECT_STORE_BYTES,
    "log_to_driver": False,
    "logging_level": logging.ERROR,
}


class LocalRay:
    """Owns the cluster: `start`, `deploy`, then `stop`, which ends every process that came of it."""

    def __init__(self) -> None:
        self._dashboard_url = ""
        self._head_files: HeadFiles | None = None
        self._head: HeadWatch | None = None
        self.token_path = os.path.expanduser("~/.ray/auth_token")

    @property
    def dashboard_url(self) -> str:
        return self._dashboard_url

    def start(self, **options: Any) -> None:
        """Start Ray with token authentication; `options` go to `ray.init` (pretended resources in tests).

        Raises:
            LaunchError: Ray did not start.
        """
        processes.adopt_orphans()
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        _keep_to_loopback()
        _guard_the_proxy()
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        # A cluster that the user points RAY_ADDRESS at is another one.
        os.environ.pop("RAY_ADDRESS", None)
        for attempt in range(1, START_ATTEMPTS + 1):
            self._head_files = HeadFiles()
            settings = {**_CONNECTIONS, **self._head_files.system_config}
            try:
                context = ray.init(**_INIT_OPTIONS, **options, _system_config=settings)
                break
            except Exception as error:  # Ray raises nothing more precise when its 30 s are over
                ray.shutdown()
                processes.end_descendants()
                self._head_files.remove()
                if attempt == START_ATTEMPTS:
                    raise LaunchError(f"Ray did not start: {_one_line(error)}") from error
                print(f"serve: Ray did not start, once more: {_one_line(error)}", file=sys.stderr, flush=True)
        if not context.dashboard_url:
            raise LaunchError("Ray started without its dashboard, which deploys applications")
        self._dashboard_url = f"http://{context.dashboard_url}"
        self._head = HeadWatch.of(ray._private.worker._global_node)
        self._head.start()

    @property
    def log_folder(self) -> str:
        return os.path.join(ray._private.worker.global_worker.node.get_session_dir_path(), "logs")

    def deploy(self, config: dict[str, Any]) -> None:
        """Hand the whole Serve config over, as `serve deploy` does.

        Raises:
            LaunchError: Ray refused the config.
        """
        try:
            ServeSubmissionClient(self._dashboard_url).deploy_applications(config)
        except (RuntimeError, ConnectionError) as error:
            raise LaunchError(f"Ray Serve refused the config: {_one_line(error)}") from error

    def wait_until_running(self, application: str, timeout_s: float, progress: Callable[[int, int], None]) -> None:
        """Wait until Serve says RUNNING; `progress(replicas ready, replicas wanted)` twice a second.

        Raises:
            LaunchError: the application failed (its message), or `timeout_s` is over.
        """
        deadline_s = time.monotonic() + timeout_s
        told = ""
        while time.monotonic() < deadline_s:
            overview = serve.status().applications.get(application)
            if overview is not None:
                trouble = _failed_start(overview)
                if trouble and trouble != told:
                    told = trouble
                    print(f"serve: a replica did not start, Serve tries again: {trouble}", file=sys.stderr, flush=True)
                if overview.status == ApplicationStatus.RUNNING:
                    return
                if overview.status in (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY):
                    raise LaunchError(f"the application failed: {_reason(overview)} (logs: {self.log_folder})")
                progress(*_replica_counts(overview))
            time.sleep(STATUS_PERIOD_S)
        raise LaunchError(f"not ready after {timeout_s:.0f} s (logs: {self.log_folder})")

    def stop(self) -> int:
        """Save and end the runtime actor, then Serve, Ray and whatever is left; returns how many were left."""
        held = shared_memory.held_below(os.getpid())
        if ray.is_initialized():
            serve.shutdown()
            # The actor is detached, so that it outlives a redeploy: Serve doesn't end it.
            _end_runtime_actor()
            _end_memo_actor()
            if self._head is not None:
                self._head.stop()
            ray.shutdown()
        left = processes.end_descendants()
        if self._head_files is not None:
            self._head_files.remove()
        shared_memory.unlink_unmapped(held)
        return left


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _keep_to_loopback() -> None:
    """Ray gives every process the machine's outer address on Linux, and listens there; on other systems it
    uses loopback for a cluster of one node. This is the switch between the two: the variable for the
    processes that Ray starts, the constant for this one, which has read the variable already."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False


def _guard_the_proxy() -> None:
    """Ray's proxy imports the guard by name, in a process whose path isn't the application's."""
    os.environ["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"] = proxy_guard.IMPORT_PATH
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))


def _end_runtime_actor() -> None:
    try:
        actor = ray.get_actor(ACTOR_NAME, namespace=NAMESPACE)
    except ValueError:
        return
    try:
        ray.get(actor.save.remote(), timeout=ACTOR_STOP_TIMEOUT_S)
    except ray.exceptions.RayError as error:
        logger.warning("the runtime actor's last checkpoint was not written: %s", error)
    ray.kill(actor)


def _end_memo_actor() -> None:
    try:
        ray.kill(ray.get_actor(MEMO_ACTOR_NAME, namespace=NAMESPACE))
    except ValueError:
        return


def _replica_counts(overview: Any) -> tuple[int, int]:
    ready = sum(d.replica_states.get("RUNNING", 0) for d in overview.deployments.values())
    wanted = sum(sum(d.replica_states.values()) for d in overview.deployments.values())
    return ready, wanted


def _failed_start(overview: Any) -> str:
    """Why a replica's last start failed; empty as long as none did."""
    for deployment in overview.deployments.values():
        if "failed to start" in deployment.message or "Traceback" in deployment.message:
            return _last_line([deployment.message])
    return ""


def _reason(overview: Any) -> str:
    """Of the application's message, else of a deployment's."""
    return _last_line([d.message for d in overview.deployments.values()] + [overview.message])


def _last_line(texts: list[str]) -> str:
    """The last line that says something, of the last text that has one; an error's name ends a traceback."""
    lines = [line.strip() for text in texts if text for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (errors or lines or ["no reason given"])[-1][:300]
