"""What scripts/serve checks before it starts anything, and that it ends what it started."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from cluster.errors import LaunchError
from cluster.launch_config import check_port, load

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


def test_launcher_has_a_key_of_its_own_where_keys_are_needed(tmp_path: Path) -> None:
    content = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    assert load(ROOT / "serve_config.yaml").probe_key is None
    keys = [{"tenant": "one", "sha256": "0" * 64}]
    content["applications"][0]["args"]["gateway"]["api_keys"] = keys
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    config = load(path)
    assert config.probe_key
    _, own = config.serve["applications"][0]["args"]["gateway"]["api_keys"]
    assert own == {"tenant": "launcher", "sha256": hashlib.sha256(config.probe_key.encode()).hexdigest()}
    assert load(path).probe_key != config.probe_key


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
