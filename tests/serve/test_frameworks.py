"""Each framework's example, unchanged, against the running server with the framework's own client."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.framework_kit import EXAMPLES, Example
from tests.gateway_kit import agents
from tests.server_kit import KEYS, Server

TASKS = ("Begin with the north side.", "Begin with what is cheapest.")
RUN_TIMEOUT_S = 240.0


def example_with_environment(name: str) -> Example:
    example = EXAMPLES[name]
    if not example.python.exists():
        reason = f"{name} needs {example.environment}, which scripts/frameworks --all makes"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return example


@pytest.mark.parametrize(
    ("name", "api"), [(name, api) for name in sorted(EXAMPLES) for api in EXAMPLES[name].apis], ids=str
)
def test_its_agents_are_found(server: Server, name: str, api: str) -> None:
    """Two runs at once; each agent of the framework is one agent here, and took part in both."""
    example = example_with_environment(name)
    with server.client("frameworks") as client:
        before = {agent: row["requests"] for agent, row in agents(client).items()}
        run_all(example, server, api)
        rows = {agent: row for agent, row in agents(client).items() if row["requests"] > before.get(agent, 0)}
    labels = Counter(row["label"] for row in rows.values())
    assert len(rows) == len(example.agents), labels
    grown = {row["label"]: row["requests"] - before.get(agent, 0) for agent, row in rows.items()}
    assert all(count >= len(TASKS) for count in grown.values()), grown


def run_all(example: Example, server: Server, api: str) -> None:
    running = [example.start(example.python, f"{server.url}/v1", task, KEYS["frameworks"], api) for task in TASKS]
    try:
        for process in running:
            output, _ = process.communicate(timeout=RUN_TIMEOUT_S)
            assert process.returncode == 0, output[-4000:]
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.communicate()
