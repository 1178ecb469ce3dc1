"""serve_config.yaml as the launcher sees it: read, checked, and the numbers it needs."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.errors import LaunchError
from runtime_actor.errors import ConfigurationError
from serve_app.config import EMBEDDED, AppConfig
from serve_app.configuration.file import IMPORT_PATH, check_file


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """`serve` is what Ray Serve gets; the rest is read out of it. `app` is the first one of ours."""

    serve: dict[str, Any]
    app: AppConfig
    application: str
    host: str
    port: int

    @property
    def model_id(self) -> str:
        return self.app.model.id

    @property
    def uses_embedded_model(self) -> bool:
        return self.app.model.source == EMBEDDED

    @property
    def first_replicas(self) -> int:
        """How many replicas there are at the start."""
        deployment = self.app.deployment
        if deployment.autoscaling is not None:
            return max(1, deployment.autoscaling.min_replicas)
        return deployment.num_replicas

    @property
    def url(self) -> str:
        host = "127.0.0.1" if self.host in ("0.0.0.0", "localhost") else self.host
        return f"http://{host}:{self.port}"


def load(path: Path, port: int | None = None) -> LaunchConfig:
    """Read and check the file; `port` overrides the file's.

    Raises:
        LaunchError: no such file, not YAML, or a key, type or value that is not allowed (it is named).
    """
    try:
        app = check_file(str(path))[0]
    except ConfigurationError as error:
        raise LaunchError(str(error)) from error
    serve = yaml.safe_load(path.read_text(encoding="utf-8"))
    http = serve["http_options"] = serve.get("http_options") or {}
    # Ray's own default is every interface of the machine.
    http.setdefault("host", "127.0.0.1")
    if port is not None:
        http["port"] = port
    ours = next(entry for entry in serve["applications"] if entry["import_path"] == IMPORT_PATH)
    return LaunchConfig(
        serve=serve,
        app=app,
        application=str(ours.get("name", "default")),
        host=str(http["host"]),
        port=int(http.get("port", 8000)),
    )


def check_port(host: str, port: int) -> None:
    """Raises LaunchError when the address can't be bound."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise LaunchError(
                    f"port {port} on {host} is in use; end the program that listens there or choose "
                    f"another one: scripts/serve --port {port + 1}"
                ) from error
            raise LaunchError(f"can't listen on {host}:{port}: {error.strerror}") from error
