"""The H100 configuration on a cluster with pretended GPUs: one GPU a replica, it answers, all on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server_kit import free_port

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_one_gpu_a_replica_and_answers(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "serve" / "h100_cluster.py"), str(tmp_path), str(free_port())],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=880,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    shares = [(bundle["GPU"], bundle["CPU"]) for bundle in report["bundles"]]
    assert shares == [(1.0, 8.0)] * 2, "min_replicas of the file, one GPU each"
    assert all("accelerator_type:H100" in bundle for bundle in report["bundles"])
    assert report["free_gpus"] == 2.0
    assert report["outside"] == [], "everything listens on loopback only"
    statuses, replicas = zip(*report["answers"], strict=True)
    assert set(statuses) == {200}
    assert len(set(replicas)) == 2, "both replicas serve"
