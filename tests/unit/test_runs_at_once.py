"""Several runs of one task at once, without a hint, in any order of sending, acceptance and answering."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from serve_app.identity import IdentityResolver, Resolved
from serve_app.recognition.turns import turn_of

RUNS, STEPS = 4, 6


@dataclass
class Run:
    """`sessions`: of its requests so far; `pending` is on its way or being answered."""

    number: int
    messages: list[dict[str, Any]] = field(
        default_factory=lambda: [{"role": "user", "content": "Count on from here, please, one step at a time."}]
    )
    sessions: list[str] = field(default_factory=list)
    pending: Resolved | None = None


def advance(resolver: IdentityResolver, run: Run, is_alike: bool, agents: int) -> None:
    """One of three: it sends, the engine takes it, its answer is complete."""
    step = len(run.sessions)
    if run.pending is None:
        system = {"role": "system", "content": f"You are agent {'abc'[step % agents]} of the counters."}
        run.pending = resolver.resolve("t", {}, {"messages": [system, *run.messages]})
    elif not run.pending.accepted:
        resolver.accept(run.pending)
    else:
        answer = f"step {step}" if is_alike else f"step {step} of {run.number}"
        resolver.answered(run.pending, answer)
        run.sessions.append(run.pending.identity.session)
        run.messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "go"}]
        run.pending = None


@pytest.mark.parametrize("agents", [1, 3])
@pytest.mark.parametrize("is_alike", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_no_session_holds_two_runs(seed: int, is_alike: bool, agents: int) -> None:
    """Where answers differ, if only in a digit, each run is one session; where they don't, none has two of a step."""
    rng = random.Random(seed)
    resolver = IdentityResolver(b"secret")
    runs = [Run(number) for number in range(RUNS)]
    while live := [run for run in runs if len(run.sessions) < STEPS]:
        advance(resolver, rng.choice(live), is_alike, agents)
    steps = Counter((session, step) for run in runs for step, session in enumerate(run.sessions))
    assert max(steps.values()) == 1
    assert len({session for run in runs for session in run.sessions}) == RUNS
    if not is_alike:
        assert all(len(set(run.sessions)) == 1 for run in runs)


def test_turns_that_are_calls_alone_are_not_one_turn() -> None:
    """As the Responses route has them: without any content, not even an empty one."""
    resolver = IdentityResolver(b"secret")
    task = {"role": "user", "content": "Find the herons of this region, please."}

    def sent(*history: dict[str, Any], answer: str) -> str:
        resolved = resolver.resolve("t", {}, {"messages": [task, *history]})
        resolver.accept(resolved)
        resolver.answered(resolved, "", turn_of(("search", answer)))
        return resolved.identity.session

    def went_on(query: str) -> str:
        call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": query}}
        result = {"role": "tool", "tool_call_id": "c1", "content": "none"}
        return sent({"role": "assistant", "tool_calls": [call]}, result, answer="again")

    runs = [sent(answer=query) for query in "ab"]
    assert [went_on("b"), went_on("a")] == runs[::-1]


def test_whoever_goes_on_from_each_of_several_choices_stays_in_the_session() -> None:
    resolver = IdentityResolver(b"secret")
    task = {"role": "user", "content": "Find the herons of this region, please."}
    ideas = ["Look at the weir.", "Ask the warden.", "Give up for today."]
    resolved = resolver.resolve("t", {}, {"messages": [task], "n": 3})
    resolver.accept(resolved)
    resolver.answered(resolved, ideas[0], other_turns=[turn_of((idea,)) for idea in ideas[1:]])
    for idea in (ideas[1], ideas[0], ideas[2]):
        history = [task, {"role": "assistant", "content": idea}, {"role": "user", "content": "Judge that."}]
        branch = resolver.resolve("t", {}, {"messages": history})
        resolver.accept(branch)
        resolver.answered(branch, f"8 of 10 for {idea}")
        assert branch.identity.session == resolved.identity.session
