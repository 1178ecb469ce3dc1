"""One problem solved by the team: who speaks when, and what each request costs."""

from __future__ import annotations

import ast
import asyncio
import random
import re
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
from openai import APIError, AsyncOpenAI

from demo.team import Member, Team

_CODE_BLOCK = re.compile(r"```(?:python)?\n(.*?)(?:```|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Problem:
    """A HumanEval task: its id, and the signature with docstring that is to be completed."""

    task_id: str
    prompt: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. `error` is empty unless it failed; then the numbers are 0."""

    member: str
    text: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    ttft_s: float
    e2e_s: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """`pause_s` is the mean of the time between two turns, in which an agent's tools would run."""

    max_tokens: int
    repairs: int = 2
    reviews: int = 2
    pause_s: float = 0.0


@dataclass(slots=True)
class Session:
    """The team's conversation on one problem; every member sees all of it, its own part as `assistant`."""

    client: AsyncOpenAI
    model: str
    team: Team
    problem: Problem
    limits: SessionLimits
    turns: list[Turn] = field(default_factory=list)
    _pauses: random.Random = field(init=False)

    def __post_init__(self) -> None:
        # The same pauses for the same problem, whatever the policy.
        self._pauses = random.Random(self.problem.task_id)

    @property
    def session_id(self) -> str:
        return f"{self.team.nonce}-{self.problem.task_id.replace('/', '-')}"

    async def run(self) -> list[Turn]:
        """Planner, coder, debugger while the code doesn't compile, tester, reviewer; again on CHANGES.

        Nothing that a model wrote is executed: "compiles" is a parse. Ends early on a failed request.
        """
        await self._speak("planner")
        for review in range(self.limits.reviews):
            await self._speak("coder")
            for _ in range(self.limits.repairs):
                if compiles(self.problem, self._last_text()):
                    break
                await self._speak("debugger")
                await self._speak("coder")
            await self._speak("tester")
            await self._speak("reviewer")
            if self._failed() or not self._last_text().lstrip().startswith("CHANGES"):
                break
            if review + 1 < self.limits.reviews:
                await self._speak("planner")
        return self.turns

    def _last_text(self) -> str:
        return self.turns[-1].text if self.turns else ""

    def _failed(self) -> bool:
        return bool(self.turns and self.turns[-1].error)

    async def _speak(self, name: str) -> None:
        if self._failed():
            return
        if self.turns and self.limits.pause_s:
            await asyncio.sleep(self._pauses.uniform(0.5, 1.5) * self.limits.pause_s)
        self.turns.append(await self._request(self.team.members[name]))

    def _messages(self, member: Member) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": member.system_prompt(self.team.heading)},
            {"role": "user", "content": f"The task:\n```python\n{self.problem.prompt.strip()}\n```"},
        ]
        for turn in self.turns:
            if turn.member == member.name:
                messages.append({"role": "assistant", "content": turn.text})
            else:
                messages.append({"role": "user", "content": f"{turn.member}: {turn.text}"})
        return messages

    def _body(self, member: Member) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": self._messages(member),
            "tools": list(member.tools),
            # Answers are text in any case: the embedded model is too small to call a tool sensibly.
            "tool_choice": "none",
            "max_tokens": self.limits.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "extra_headers": {"x-session-id": self.session_id, "x-claude-code-agent-id": self.team.agent(member.name)},
        }

    async def _request(self, member: Member) -> Turn:
        started_s = time.perf_counter()
        first_s = 0.0
        parts: list[str] = []
        usage: Any = None
        try:
            stream = await self.client.chat.completions.create(**self._body(member))
            async for chunk in stream:
                if chunk.choices and not first_s and chunk.choices[0].delta.content:
                    first_s = time.perf_counter()
                parts.extend(choice.delta.content or "" for choice in chunk.choices)
                usage = chunk.usage or usage
        except (APIError, httpx.HTTPError) as error:
            return Turn(member.name, "", 0, 0, 0, 0.0, 0.0, error=str(error)[:200] or type(error).__name__)
        ended_s = time.perf_counter()
        details = usage.prompt_tokens_details if usage else None
        return Turn(
            member=member.name,
            text="".join(parts),
            prompt_tokens=usage.prompt_tokens if usage else 0,
            cached_tokens=(details.cached_tokens or 0) if details else 0,
            completion_tokens=usage.completion_tokens if usage else 0,
            ttft_s=(first_s or ended_s) - started_s,
            e2e_s=ended_s - started_s,
        )


def compiles(problem: Problem, answer: str) -> bool:
    """Whether the answer, by itself or as the continuation of the task, is valid Python."""
    block = _CODE_BLOCK.search(answer)
    code = block.group(1) if block else answer
    for source in (code, problem.prompt + code):
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if any(isinstance(node, ast.FunctionDef) and len(node.body) > 1 for node in tree.body):
            return True
    return False
