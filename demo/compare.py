"""The same problems under each policy, in alternating order."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from openai import AsyncOpenAI
from tqdm import tqdm

from demo.runtime_api import RuntimeApi
from demo.session import Problem, Session, SessionLimits, Turn
from demo.team import Team

REQUEST_TIMEOUT_S = 180.0
PREFETCH_OUTCOMES = ("issued", "useful", "wasted", "refused")


@dataclass(frozen=True, slots=True)
class Plan:
    """`rounds` times: the problems under each policy, the order of the policies reversed each time.

    The problems go to the teams in turn; `sessions` of them are worked on at once.
    """

    url: str
    problems: Sequence[Problem]
    policies: Sequence[str]
    rounds: int
    sessions: int
    teams: int
    limits: SessionLimits


@dataclass(slots=True)
class PolicyRun:
    """What one policy did over all rounds."""

    policy: str
    turns: list[Turn] = field(default_factory=list)
    seconds: float = 0.0
    prefetch: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PREFETCH_OUTCOMES, 0))

    @property
    def requests_per_s(self) -> float:
        return len(self.turns) / self.seconds if self.seconds else 0.0


def compare(plan: Plan, api: RuntimeApi) -> dict[str, PolicyRun]:
    runs = {policy: PolicyRun(policy) for policy in plan.policies}
    model = api.model()
    before_mode = _mode(api)
    try:
        for number in range(plan.rounds):
            order = list(plan.policies) if number % 2 == 0 else list(reversed(plan.policies))
            for policy in order:
                label = f"round {number + 1}/{plan.rounds}, {policy}"
                asyncio.run(_run_policy(plan, api, model, runs[policy], label))
    finally:
        api.set_policy(before_mode)
    return runs


def _mode(api: RuntimeApi) -> str:
    for policy in api.state().get("policies", []):
        if policy.get("name") == "kv_cache":
            return str(policy.get("mode", "reach"))
    return "reach"


async def _run_policy(plan: Plan, api: RuntimeApi, model: str, run: PolicyRun, label: str) -> None:
    api.set_policy(run.policy)
    nonce = secrets.token_hex(4)
    teams = [Team(number + 1, nonce) for number in range(plan.teams)]
    before = api.state().get("prefetch", {})
    started_s = time.perf_counter()
    queue = list(reversed(list(zip(plan.problems, itertools.cycle(teams), strict=False))))
    client = AsyncOpenAI(base_url=f"{plan.url}/v1", api_key="none", max_retries=0, timeout=REQUEST_TIMEOUT_S)
    with tqdm(total=len(plan.problems), desc=label, unit="problem") as bar:

        async def work() -> None:
            while queue:
                problem, team = queue.pop()
                session = Session(client, model, team, problem, plan.limits)
                run.turns.extend(await session.run())
                await asyncio.to_thread(api.end_session, session.session_id)
                bar.update()

        async with client:
            await asyncio.gather(*(work() for _ in range(plan.sessions)))
    run.seconds += time.perf_counter() - started_s
    after = api.state().get("prefetch", {})
    for outcome in PREFETCH_OUTCOMES:
        run.prefetch[outcome] += int(after.get(outcome, 0)) - int(before.get(outcome, 0))
