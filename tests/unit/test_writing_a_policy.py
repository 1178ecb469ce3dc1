"""The tenth policy: the code of docs/writing-a-policy.md, run as the document says."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from runtime_actor.messages import RequestAccepted
from tests.unit.gateway_bench import Answer, Bench

DOCUMENT = Path(__file__).parents[2] / "docs" / "writing-a-policy.md"
MAX_LINES = 60


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The policy's file where it can be imported."""
    (tmp_path / "loop_guard.py").write_text(blocks("python")[0], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path
    sys.modules.pop("loop_guard", None)


def test_it_is_short() -> None:
    assert len(blocks("python")[0].splitlines()) < MAX_LINES


def test_the_trial_prints_what_the_document_says(pasted: Path) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(blocks("python")[1], "trial", "exec"), {})
    first, second, third, state = printed.getvalue().splitlines()
    assert (first, second) == ("None", "None")
    assert third.startswith("Refusal(status=429, code='agent_loop'")
    assert "'refused': 1" in state and "'switched_off': False" in state


def test_the_gateway_runs_it_as_configured(pasted: Path) -> None:
    bench = Bench(policies=yaml.safe_load(blocks("yaml")[0])["policies"])
    bench.handle.items = [RequestAccepted("r1", 40, 32).to_wire(), Answer()]
    answers = [bench.chat(session_id="task-17") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].json()["error"]["code"] == "agent_loop" and answers[2].headers["retry-after"] == "60"
    (row,) = [r for r in bench.ask("GET", "/runtime/state", "ops").json()["policies"] if r["name"] == "loop_guard"]
    assert row["counters"] == {"refused": 1, "served": 2} and row["enabled"]
    assert bench.gateway._admission.in_flight == 0 and bench.gateway._policies.turnstile.inside == 0


def test_switching_it_off_restores_stock(pasted: Path) -> None:
    bench = Bench(policies=yaml.safe_load(blocks("yaml")[0])["policies"])
    bench.handle.items = [RequestAccepted("r1", 40, 32).to_wire(), Answer()]
    off = {"name": "loop_guard", "path": "loop_guard:LoopGuard", "enabled": False, "options": {"max_requests": 2}}
    bench.gateway._policies.follow([off], 1)
    assert [bench.chat(session_id="task-17").status_code for _ in range(4)] == [200] * 4
    assert not bench.gateway._policies.is_active
