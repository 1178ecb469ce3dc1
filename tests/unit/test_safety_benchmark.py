"""The benchmark of strange steps, on recordings whose numbers can be counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.safety import judge, main
from benchmarks.trace_source import load_set
from tests.unit.recorded_kit import write_set


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A chain, and sessions of two agents each that no other session has."""
    write_set(tmp_path / "chain", {f"s{n}": "abc" for n in range(8)})
    write_set(tmp_path / "new", {f"s{n}": ["boss", f"x{n}"] for n in range(40)})
    return tmp_path


def test_a_chain_has_no_false_alarm_and_no_swap_passes(source: Path) -> None:
    counts = judge(load_set(source, "chain"), 1, min_seen=4)
    assert (counts["steps"], counts["alarms"]) == (8, 0)
    assert counts["seen"] == counts["strange"] == counts["strange_seen"] == 8


def test_little_seen_judges_nothing(source: Path) -> None:
    counts = judge(load_set(source, "chain"), 1, min_seen=9)
    assert (counts["steps"], counts["seen"], counts["strange"]) == (8, 0, 8)


def test_where_every_step_is_new_nothing_is_refused(source: Path) -> None:
    counts = judge(load_set(source, "new"), 1, min_seen=10)
    assert (counts["steps"], counts["alarms"], counts["seen"]) == (20, 0, 0)


def test_the_command(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(source), "--seeds", "1,2", "--min-seen", "4", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["set"], row["steps"], row["strange refused"]) for row in rows] == [
        ("chain", 16, 1.0),
        ("new", 40, 0.0),
    ]
    main([str(source), "--set", "chain", "--seeds", "1", "--min-seen", "4"])
    assert "| chain | 3 | 4 | 8 | 0.000 | 1.000 | 1.000 | 1.000 |" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no such folder"):
        main([str(source / "nowhere")])
