"""The H100 configuration on a cluster with pretended GPUs: one GPU a replica, and it answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.conftest import free_port

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(400)
def test_one_gpu_a_replica_and_answers(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "serve" / "h100_cluster.py"), str(tmp_path), str(free_port())],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["bundles"] == [{"GPU": 1.0, "CPU": 8.0}] * 2, "min_replicas of the file, one GPU each"
    assert report["free_gpus"] == 2.0
    statuses, replicas = zip(*report["answers"], strict=True)
    assert set(statuses) == {200}
    assert len(set(replicas)) == 2, "both replicas serve"
