"""The demo's workflow against a scripted model, its sums and its table."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from openai import APIConnectionError

from demo.__main__ import PROBLEMS, choose_problems, main
from demo.compare import PolicyRun
from demo.report import as_json, as_text, learnt_transitions, notes
from demo.session import Problem, Session, SessionLimits, Turn, compiles
from demo.stats import Row, percentile
from demo.team import Team, load_members, role

PROBLEM = Problem("Test/0", 'def double(x):\n    """Twice x.\n    >>> double(2)\n    4\n    """\n')
GOOD = "```python\ndef double(x):\n    y = x * 2\n    return y\n```"


class ScriptedClient:
    """Answers by member; keeps what it was asked."""

    def __init__(self, answers: dict[str, list[str]], fail_on: str = "") -> None:
        self.answers = {name: list(texts) for name, texts in answers.items()}
        self.fail_on = fail_on
        self.asked: list[dict[str, Any]] = []
        self.chat = SimpleNamespace(completions=self)

    async def create(self, **request: Any) -> AsyncIterator[Any]:
        self.asked.append(request)
        name = role(request["extra_headers"]["x-claude-code-agent-id"])
        if name == self.fail_on:
            raise APIConnectionError(request=None)  # type: ignore[arg-type]
        texts = self.answers.get(name) or ["fine"]
        return self._stream(texts.pop(0) if len(texts) > 1 else texts[0])

    async def _stream(self, text: str) -> AsyncIterator[Any]:
        yield SimpleNamespace(choices=[SimpleNamespace(delta=SimpleNamespace(content=text))], usage=None)
        usage = SimpleNamespace(
            prompt_tokens=100, completion_tokens=5, prompt_tokens_details=SimpleNamespace(cached_tokens=60)
        )
        yield SimpleNamespace(choices=[], usage=usage)


def speakers(client: ScriptedClient) -> tuple[list[str], list[Turn]]:
    session = Session(client, "m", Team(1, "n0"), PROBLEM, SessionLimits(max_tokens=8))  # type: ignore[arg-type]
    turns = asyncio.run(session.run())
    return [turn.member for turn in turns], turns


def test_straight_way() -> None:
    names, turns = speakers(ScriptedClient({"coder": [GOOD], "reviewer": ["APPROVED"]}))
    assert names == ["planner", "coder", "tester", "reviewer"]
    assert all(turn.cached_tokens == 60 and turn.ttft_s > 0 for turn in turns)


def test_repairs_and_reviews_are_bounded() -> None:
    names, _ = speakers(ScriptedClient({"coder": ["no code"], "reviewer": ["CHANGES\n1. all of it"]}))
    once = ["coder", "debugger", "coder", "debugger", "coder", "tester", "reviewer"]
    assert names == ["planner", *once, "planner", *once]


def test_failed_request_ends_the_session() -> None:
    names, turns = speakers(ScriptedClient({"coder": [GOOD]}, fail_on="tester"))
    assert names == ["planner", "coder", "tester"]
    assert turns[-1].error


def test_history_only_grows() -> None:
    """The prefix cache depends on it: each member's next prompt begins with its former one."""
    client = ScriptedClient({"coder": ["no code", "still none", GOOD]})
    speakers(client)
    prompts = [r["messages"] for r in client.asked if r["extra_headers"]["x-claude-code-agent-id"] == "coder@1"]
    assert len(prompts) == 3
    for before, after in itertools.pairwise(prompts):
        assert after[: len(before)] == before
        assert len(after) > len(before)


def test_prompts_are_long_and_hold_the_tools() -> None:
    team = load_members()
    assert len(team) >= 4
    for member in team.values():
        prompt = member.system_prompt("n0")
        assert prompt.startswith("[n0] ")
        assert len(prompt.split()) > 250
        assert all(tool["function"]["name"] in prompt for tool in member.tools)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (GOOD, True),
        ("    return x * 2", True),
        ("I can't", False),
        ("```python\ndef double(x:\n```", False),
        ("", False),
    ],
)
def test_compiles(answer: str, expected: bool) -> None:
    assert compiles(PROBLEM, answer) is expected


def test_percentile_is_nearest_rank() -> None:
    assert percentile([], 50) == 0.0
    assert percentile([1.0], 99) == 1.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.0
    assert percentile(list(map(float, range(1, 101))), 99) == 99.0


def turn(member: str, cached: int = 50, error: str = "") -> Turn:
    return Turn(member, "", 0 if error else 100, 0 if error else cached, 5, 0.25, 0.5, error)


def test_rows_leave_failures_out_of_the_shares() -> None:
    row = Row.of("coder", [turn("coder", 80), turn("coder", 40), turn("coder", error="gone")])
    assert (row.requests, row.errors, row.cached_share, row.ttft_mean_s) == (3, 1, 0.6, 0.25)


def test_report() -> None:
    runs = {name: PolicyRun(name, [turn("planner"), turn("coder")], 2.0) for name in ("reach", "lru")}
    state = {
        "agents": [
            {"agent": "a-1", "label": "planner@1"},
            {"agent": "a-2", "label": "coder@1"},
            {"agent": "a-3", "label": "coder@2"},
        ],
        "transitions": [
            {"from": "a-1", "to": "a-2", "count": 7, "probability": 0.5},
            {"from": "a-1", "to": "a-3", "count": 2, "probability": 0.5},
            {"from": "a-9", "to": "a-8", "count": 99, "probability": 1.0},
        ],
    }
    members = list(load_members())
    text = as_text(runs, members, state)
    assert "planner -> coder" in text
    assert text.count("team ") >= 2
    assert [row["count"] for row in learnt_transitions(state, members)] == [9]
    assert as_json(runs, members, state)["policies"]["lru"]["requests_per_s"] == 1.0


def test_small_runs_are_called_noise() -> None:
    many, few = PolicyRun("reach", [turn("coder")] * 150), PolicyRun("lru", [turn("coder")] * 149)
    assert "noise" not in "\n".join(notes({"reach": many}))
    text = "\n".join(notes({"reach": many, "lru": few}))
    assert "149 a policy" in text and "several" in text and "--problems 24 or --rounds 2" in text


def test_problems_are_the_same_for_the_same_seed() -> None:
    assert choose_problems(5, 1) == choose_problems(5, 1)
    assert choose_problems(5, 1) != choose_problems(5, 2)
    assert len({problem.task_id for problem in choose_problems(PROBLEMS, 1)}) == PROBLEMS


@pytest.mark.parametrize("count", ["0", "165", "99999", "-1", "2.5", "many"])
def test_problems_beyond_the_set_are_refused(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([f"--problems={count}"])
    assert caught.value.code == 2
    assert "allowed: 1 to 164" in capsys.readouterr().err
