"""Recorded sets for tests, in the format that `benchmarks.trace_source` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_set(folder: Path, sessions: Mapping[str, Sequence[str]], tokens: int = 320, anchor_tokens: int = 128) -> None:
    """Session -> its agents, one after the other; each prompt has so many tokens, the agent's own first."""
    folder.mkdir(parents=True)
    steps, agents = [], sorted({agent for chain in sessions.values() for agent in chain})
    for session, chain in sessions.items():
        for agent in chain:
            step = {"session": session, "agent": agent, "system_id": f"sys-{agent}", "llm": True}
            steps.append({**step, "input_tokens": tokens, "output_tokens": 20})
    _write(folder / "steps.jsonl", steps)
    _write(folder / "sessions.jsonl", [{"session": s, "framework": "f", "benchmark": "b"} for s in sessions])
    _write(folder / "systems.jsonl", [{"system_id": f"sys-{agent}", "tokens": anchor_tokens} for agent in agents])


def _write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
