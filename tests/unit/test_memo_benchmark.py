"""The benchmark of recorded tool calls, on a recording whose numbers can be counted by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.memo import main, measure

CUSTOMERS = ("anna", "bert", "carl", "dora")


def called(number: int, tool: str, result: Any, **told: Any) -> list[dict[str, Any]]:
    function = {"name": tool, "arguments": json.dumps(told)}
    call = {"role": "assistant", "tool_calls": [{"id": f"c{number}", "function": function}]}
    return [call, {"role": "tool", "tool_call_id": f"c{number}", "content": json.dumps(result)}]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Each session reads a customer and both reservations; a write at the end, and the customer again."""
    folder = tmp_path / "taubench_airline"
    folder.mkdir()
    lines = []
    for name in CUSTOMERS:
        reservations = [f"{name}1", f"{name}2"]
        messages = called(0, "get_user_details", {"reservations": reservations}, user_id=name)
        for number, reservation in enumerate(reservations, start=1):
            messages += called(number, "get_reservation_details", {"is": "booked"}, reservation_id=reservation)
        messages += called(3, "cancel_reservation", "done", reservation_id=reservations[0])
        messages += called(4, "get_user_details", {"reservations": reservations}, user_id=name)
        lines.append(json.dumps({"session": name, "messages": messages}))
    (folder / "messages.jsonl").write_text("\n".join(lines))
    return tmp_path


def test_figures(source: Path) -> None:
    shared, ahead = measure(source, 50, invalidates=True)
    assert (shared["calls"], shared["may be kept"], shared["answered"]) == (20, 16, 0)
    # From the second session on both reservations are known once the customer has been read. The last read of a
    # customer names reservations that the session has read already, which is no prediction.
    assert (ahead["answered"], ahead["run ahead"], ahead["used"], ahead["wasted"]) == (6, 6, 6, 0)


def test_writes_that_void_nothing(source: Path) -> None:
    shared, ahead = measure(source, 2, invalidates=False)
    assert (shared["calls"], shared["answered"], ahead["answered"]) == (10, 2, 4)


def test_the_command(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(source), "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["policy"] for row in rows] == ["shared results", "and run ahead"]
    with pytest.raises(SystemExit, match="no recorded tool calls"):
        main([str(source / "nowhere")])
