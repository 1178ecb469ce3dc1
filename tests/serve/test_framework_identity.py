"""The line by which a framework says who asks, as docs/frameworks.md has it: put into the example and run for real.

No engine: a scripted server keeps what it was sent.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from serve_app.hints import read_hints
from serve_app.identity import Identity, IdentityResolver, fold_headers
from tests.framework_kit import EXAMPLES, Example
from tests.record_frameworks import RUNS, Script
from tests.scripted_openai import Exchange, scripted_server
from tests.serve.test_frameworks import example_with_environment

SHOWN = 'default_headers={"x-session-id": task_id, "x-claude-code-agent-id": "%s"}'
SESSION = '{"x-session-id": "task-17"}'
BOTH = '{"x-session-id": "task-17", "x-claude-code-agent-id": "planner"}'
LINES = {
    "openai_sdk": [
        ("MODEL = ", f"HEADERS = {BOTH}\nMODEL = "),
        ("api_key=API_KEY", "api_key=API_KEY, default_headers=HEADERS"),
    ],
    "langgraph_supervisor": [("# " + SHOWN % "supervisor", f"default_headers={BOTH}")],
    "autogen_teams": [("# " + SHOWN % "planner", f"default_headers={BOTH}")],
    "openai_agents_handoffs": [
        ("    ModelSettings,\n", "    ModelSettings,\n    RunConfig,\n"),
        ("max_turns=", f"run_config=RunConfig(model_settings=ModelSettings(extra_headers={SESSION})), max_turns="),
    ],
    "smolagents_manager": [
        (
            '# client_kwargs={"default_headers": {"x-session-id": task_id, "x-claude-code-agent-id": "pilot"}}',
            f'client_kwargs={{"default_headers": {BOTH}}}',
        )
    ],
    "pydantic_ai_team": [("temperature=0.0)", f"temperature=0.0, extra_headers={SESSION})")],
    "crewai_crew": [("# " + SHOWN % "gardener", f"default_headers={BOTH}")],
    "metagpt_company": [
        ("# member.llm.aclient = ", "member.llm.aclient = "),
        ('default_headers={"x-session-id": task_id}', f"default_headers={SESSION}"),
    ],
}
"""What stands in the example, and what a user makes of it; one client for all agents is enough here."""


@dataclasses.dataclass(frozen=True, slots=True)
class Changed(Example):
    """An example whose program is elsewhere."""

    path: Path = Path()

    @property
    def script(self) -> Path:
        return self.path


def with_identity(name: str, folder: Path) -> Changed:
    text = EXAMPLES[name].script.read_text(encoding="utf-8")
    for old, new in LINES[name]:
        assert old in text, f"{name} no longer has {old!r}"
        text = text.replace(old, new)
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    fields = {field.name: getattr(EXAMPLES[name], field.name) for field in dataclasses.fields(Example)}
    return Changed(**fields, path=path)


def identity_of(exchange: Exchange) -> Identity:
    headers = fold_headers((key.encode(), value.encode()) for key, value in exchange.headers.items())
    assert read_hints(headers, exchange.body)[1].outcomes["x-session-id"] == "accepted"
    return IdentityResolver(b"secret").resolve("t", headers, exchange.body).identity


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_line_of_the_documents_names_session_and_agent_in_every_request(name: str, tmp_path: Path) -> None:
    python = example_with_environment(name).python
    changed = with_identity(name, tmp_path)
    with scripted_server(Script(changed)) as server:
        process = changed.start(python, server.base_url("first"), RUNS["first"])
        output, _ = process.communicate(timeout=180)
        assert process.returncode == 0, output[-4000:]
    found = [identity_of(exchange) for exchange in server.exchanges]
    assert len(found) >= len(changed.agents) - 1, "hardly anything was sent"
    assert {one.session_source for one in found} == {"x-session-id"} and len({one.session for one in found}) == 1
    if BOTH in changed.script.read_text(encoding="utf-8"):
        assert {one.label for one in found} == {"planner"}
