"""MetaGPT: three roles, each of which takes up what the one before published."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

# MetaGPT reads its settings while it is imported; usually this file is ~/.metagpt/config2.yaml.
home = Path(tempfile.mkdtemp(prefix="metagpt-"))
(home / "config").mkdir()
LLM = {
    "api_type": "openai",
    "model": "smollm2-135m-instruct",
    "base_url": os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    "api_key": os.environ.get("OPENAI_API_KEY", "none"),
    "max_token": 48,
}
(home / "config" / "config2.yaml").write_text(json.dumps({"llm": LLM}))
os.environ["METAGPT_PROJECT_ROOT"] = str(home)

from metagpt.actions import Action, UserRequirement
from metagpt.roles import Role
from metagpt.team import Team


class Sketch(Action):
    async def run(self, history: list[Any]) -> str:
        return str(await self._aask(f"Sketch what is wanted.\n\n{history[-1].content}"))


class Build(Action):
    async def run(self, history: list[Any]) -> str:
        return str(await self._aask(f"Say how to build this sketch.\n\n{history[-1].content}"))


class Review(Action):
    async def run(self, history: list[Any]) -> str:
        return str(await self._aask(f"Name one weakness of this plan.\n\n{history[-1].content}"))


def role(name: str, profile: str, action: type[Action], after: type[Action]) -> Role:
    member = Role(name=name, profile=profile, goal="a mill that runs by Sunday")
    # Identity in one line, a role (MetaGPT has no setting for it, its client has):
    # member.llm.aclient = member.llm.aclient.with_options(default_headers={"x-session-id": task_id})
    member.set_actions([action])
    member._watch([after])
    return member


async def main(task: str) -> None:
    team = Team()
    team.hire(
        [
            role("Ada", "draughtswoman", Sketch, UserRequirement),
            role("Ben", "millwright", Build, Sketch),
            role("Cleo", "miller", Review, Build),
        ]
    )
    team.invest(1.0)
    team.run_project(task)
    await team.run(n_round=4, auto_archive=False)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "Mend the water mill."))
