"""The gap table's arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.gap import Case, main, table


def case(lru: float, reach: float, best: float, variant: str = "history") -> Case:
    return Case("team", variant, 8, 6, 1, 100, {"lru": lru, "min": best, "reach": reach})


def test_share_and_points() -> None:
    assert case(0.2, 0.3, 0.4).share("reach") == pytest.approx(0.5)
    assert case(0.2, 0.1, 0.4).share("reach") == pytest.approx(-0.5)
    assert case(0.2, 0.2, 0.202).share("reach") is None
    assert case(0.2, 0.25, 0.4).points("reach") == pytest.approx(5.0)


def test_table_counts_only_cases_with_a_gap_and_shows_the_worst() -> None:
    cases = [case(0.2, 0.3, 0.4), case(0.2, 0.39, 0.4), case(0.5, 0.499, 0.5)]
    last = table(cases, "reach")[-1].split()
    assert last == ["all", "3", "2", "0.725", "0.725", "0.500", "-0.10"]


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "team"
    folder.mkdir()
    steps = [
        {"session": f"s{i}", "agent": a, "llm": True, "input_tokens": 300, "output_tokens": 20}
        for i in range(12)
        for a in "abcab"
    ]
    (folder / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    sessions = [{"session": f"s{i}", "framework": "f", "benchmark": "b"} for i in range(12)]
    (folder / "sessions.jsonl").write_text("".join(json.dumps(s) + "\n" for s in sessions))
    fixed = [str(tmp_path), "--concurrency", "4", "--caches", "3", "--requests", "60"]
    assert main([*fixed, "--variant", "history", "--json"]) == 0
    rates = json.loads(capsys.readouterr().out)["hit_rates"]
    assert rates["lru"] <= rates["min"] and rates["reach"] <= rates["min"]
    assert main([*fixed, "--set", "nothing"]) == 2
    assert "known: team" in capsys.readouterr().err
