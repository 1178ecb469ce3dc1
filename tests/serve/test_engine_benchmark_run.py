"""The engine benchmark on the running server: two policies, and a second call that finds all done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.engine.__main__ import main
from tests.server_kit import KEYS, Server, model_dir

FIELDS = {
    "policy",
    "hit_rate",
    "ttft_mean_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "e2e_mean_s",
    "requests_per_s",
    "tokens_per_s",
    "prefetch",
}


def write_set(folder: Path) -> None:
    """Two sessions of a planner and a coder, in which each sees what was said before."""
    folder.mkdir()
    steps = [
        {
            "session": session,
            "agent": agent,
            "llm": True,
            "system_id": agent,
            "input_tokens": 120 + 60 * turn,
            "output_tokens": 5,
        }
        for session in ("one", "two")
        for turn, agent in enumerate(("planner", "coder", "planner"))
    ]
    systems = [{"system_id": a, "system": f"You are the {a}. " + "Be brief. " * 12} for a in ("planner", "coder")]
    (folder / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    (folder / "systems.jsonl").write_text("".join(json.dumps(system) + "\n" for system in systems))
    sessions = [{"session": session, "framework": "f", "benchmark": "b"} for session in ("one", "two")]
    (folder / "sessions.jsonl").write_text("".join(json.dumps(session) + "\n" for session in sessions))


def test_a_tiny_run_and_its_resumption(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_set(tmp_path / "mine")
    command = [
        str(tmp_path), "--workload", "mine", "--anchors", "recorded", "--loop", "closed", "--policy", "lru",
        "--policy", "reach", "--requests", "8", "--teach", "0", "--sessions", "2", "--max-tokens", "2",
        "--out", str(tmp_path / "results.jsonl"), "--url", server.url, "--key", KEYS["two"],
        "--operator-key", KEYS["ops"], "--model-dir", str(model_dir()), "--json",
    ]  # fmt: skip
    assert main(command) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["policy"] for line in lines] == ["lru", "reach", "min"]
    for line in lines[:2]:
        assert set(line) >= FIELDS
        assert (line["requests"], line["errors"]) == (6, 0)
        assert 0.0 < line["ttft_mean_s"] <= line["e2e_mean_s"]
    before = (tmp_path / "results.jsonl").read_text()
    for row in map(json.loads, before.splitlines()):
        # Each cell has prompts with a salt of its own, so a bound of its own; what is computed ahead may pass it.
        assert 0.0 < row["hit_rate"] < 1.0
        assert row["policy"] != "lru" or row["hit_rate"] <= row["min_hit_rate"] + 1e-9
    assert main(command) == 0
    assert (tmp_path / "results.jsonl").read_text() == before, "finished cells are not measured again"
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == lines
    with server.client("ops") as client:
        policies = {row["name"]: row for row in client.get("/runtime/state").json()["policies"]}
    assert policies["kv_cache"]["mode"] == "reach", "the server is left as it was found"


def test_stock_is_refused_where_it_is_not_served(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_set(tmp_path / "mine")
    command = [
        str(tmp_path), "--workload", "mine", "--anchors", "recorded", "--loop", "closed", "--policy", "stock",
        "--requests", "4", "--teach", "0", "--out", str(tmp_path / "results.jsonl"), "--url", server.url,
        "--operator-key", KEYS["ops"], "--model-dir", str(model_dir()),
    ]  # fmt: skip
    assert main(command) == 2
    assert "--url" in capsys.readouterr().err
