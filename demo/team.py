"""The members of the team: name, instructions, tools."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from demo import tools


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    instructions: str
    tools: tuple[dict[str, Any], ...]

    def system_prompt(self, nonce: str) -> str:
        """Instructions and tools, different from the first token on for each `nonce`.

        Runs that are compared must not find each other's blocks in the prefix cache.
        """
        listed = "\n".join(json.dumps(tool["function"]) for tool in self.tools)
        return f"[{nonce}] {self.instructions}\n\nTools, one JSON definition a line:\n{listed}"


def _member(name: str, *own_tools: dict[str, Any]) -> Member:
    text = resources.files("demo").joinpath("prompts", f"{name}.md").read_text(encoding="utf-8")
    return Member(name, text.strip(), own_tools)


def load_team() -> dict[str, Member]:
    members = (
        _member("planner", tools.SEARCH_LIBRARY, tools.NOTE),
        _member("coder", tools.SEARCH_LIBRARY, tools.COMPILE, tools.FORMAT),
        _member("debugger", tools.COMPILE, tools.SHOW_LINES),
        _member("tester", tools.RUN_CHECKS, tools.COVERAGE),
        _member("reviewer", tools.SHOW_LINES, tools.DIFF, tools.DECIDE),
    )
    return {member.name: member for member in members}
