"""What scripts/serve checks before it starts anything, and that it ends what it started."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from cluster.errors import LaunchError
from cluster.launch_config import check_port, load
from cluster.local import ready_text
from cluster.readiness import wait_until_ready
from serve_app.config import AppConfig, GatewayConfig

ROOT = Path(__file__).resolve().parents[2]

ORPHAN_MAKER = """
import subprocess, sys
from cluster import processes
assert processes.adopt_orphans()
child = subprocess.Popen(
    [sys.executable, "-c", "import subprocess, sys; p = subprocess.Popen(['sleep', '300']); print(p.pid)"],
    stdout=subprocess.PIPE, text=True,
)
orphan = int(child.stdout.readline())
child.wait()
print(orphan, processes.end_descendants(patience_s=5.0), flush=True)
"""


def test_config_in_the_tree_loads() -> None:
    config = load(ROOT / "serve_config.yaml", port=8123)
    assert config.uses_embedded_model
    assert config.url == "http://127.0.0.1:8123"
    assert config.serve["http_options"]["port"] == 8123
    assert config.first_replicas == 2
    assert config.application == "agent-runtime"


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("num_replicas: 2", "num_replicsa: 2", "num_replicsa"),
        ("num_replicas: 2", "num_replicas: -1", "-1"),
        ("num_replicas: 2", "num_replicas: two", "two"),
        ("proxy_location: HeadOnly", "proxy_loc: HeadOnly", "proxy_loc"),
        ("window: 4096", "window: 0", "window"),
        ("block_size: 32", "block_sizes: 32", "block_sizes"),
        ("applications:", "applications: [", "line"),
    ],
)
def test_bad_config_is_one_line(tmp_path: Path, before: str, after: str, named: str) -> None:
    text = (ROOT / "serve_config.yaml").read_text()
    assert before in text
    path = tmp_path / "config.yaml"
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(LaunchError) as caught:
        load(path)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_config(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"absent\.yaml"):
        load(tmp_path / "absent.yaml")


def test_port_in_use_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=f"port {port} on 127.0.0.1 is in use"):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", port)


def test_orphans_are_ended_and_nothing_else() -> None:
    """A grandchild whose parent has ended is found and ended; a stranger isn't touched."""
    stranger = subprocess.Popen(["sleep", "300"])
    try:
        done = subprocess.run(
            [sys.executable, "-c", ORPHAN_MAKER], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60
        )
        orphan, ended = map(int, done.stdout.split())
        assert ended == 1
        assert not psutil.pid_exists(orphan)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


class _Gateway(BaseHTTPRequestHandler):
    """Answers /readyz with what is left in `answers`, the last one for ever."""

    answers: ClassVar[list[tuple[int, str]]] = []

    def do_GET(self) -> None:
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.send_response(status if self.path == "/readyz" else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture
def gateway() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Gateway)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_ready_when_all_replicas_report(gateway: str) -> None:
    _Gateway.answers = [(503, "{}"), (200, "no json"), (200, '{"replicas": 1}'), (200, '{"replicas": 2}')]
    seen: list[int] = []
    wait_until_ready(gateway, 2, 30.0, lambda ready, _: seen.append(ready))
    assert seen == [0, 0, 1, 2]


def test_never_ready_names_the_last_answer(gateway: str) -> None:
    _Gateway.answers = [(503, "none yet")]
    with pytest.raises(LaunchError, match=r"fewer than 2 replicas .* 503 none yet"):
        wait_until_ready(gateway, 2, 0.3, lambda *_: None)


@pytest.mark.parametrize("keys", ["api_keys", "keys_file", ""])
def test_the_ready_text_names_a_key_where_one_is_needed(tmp_path: Path, keys: str) -> None:
    listed = tmp_path / "keys.yaml"
    listed.write_text("[]")
    gateway = {"api_keys": [{"tenant": "a", "sha256": "0" * 64}], "keys_file": str(listed)}
    config = load(ROOT / "serve_config.yaml")
    app = replace_gateway(config.app, {keys: gateway[keys]} if keys else {})
    text = ready_text(replace(config, app=app), 1.0, "http://127.0.0.1:8265", "token")
    assert ("-H 'authorization: Bearer YOUR_KEY'" in text) == ('api_key="YOUR_KEY"' in text) == bool(keys)
    assert ('api_key="none"' in text) == (not keys)


def replace_gateway(app: AppConfig, options: dict[str, Any]) -> AppConfig:
    return app.model_copy(update={"gateway": GatewayConfig.model_validate(options)})
