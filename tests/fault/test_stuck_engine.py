"""An engine that hangs under a whole application: what waits for it is answered elsewhere, long before it is ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from replicas.settings import WatchdogSettings
from serve_app.routing_state import STUCK_AFTER_S
from tests.server_kit import free_port

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(1200)
def test_requests_leave_a_stuck_engine(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "fault" / "stuck_engine.py"), str(tmp_path), str(free_port())],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1180,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    answers = [answer for part in ("calm", "waited", "later") for answer in report[part]]
    assert {answer["status"] for answer in answers} == {200}
    assert not any('"error"' in answer["text"] for answer in answers)
    assert len({answer["replica"] for answer in report["calm"]}) == 2
    (living,) = {answer["replica"] for answer in report["waited"]}
    assert report["retries"] >= 1 and max(answer["seconds"] for answer in report["waited"]) > STUCK_AFTER_S / 2
    assert max(answer["seconds"] for answer in report["waited"]) < WatchdogSettings().stuck_after_s / 2
    stuck = {name for name, silent_s in report["silent"].items() if silent_s > 0}
    assert stuck and living not in stuck
    assert {answer["replica"] for answer in report["later"]} == {living}
    assert max(answer["seconds"] for answer in report["later"]) < STUCK_AFTER_S, "nobody waits for it any more"
