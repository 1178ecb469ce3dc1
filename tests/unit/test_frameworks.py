"""What agent frameworks really send, through the gateway's identity: recorded by tests/record_frameworks.py."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from runtime_actor.transitions import TransitionModel
from serve_app.hints import read_hints
from serve_app.identity import Identity, IdentityResolver, fold_headers
from serve_app.recognition.answers import AnswerText
from tests.framework_kit import EXAMPLES, FIXTURES
from tests.unit.runtime_kit import Kit

RUNS = ("first", "second", "again")
IN_PIECES = {"autogen_teams": 2, "smolagents_manager": 2}
"""Sessions that one conversation may fall into: AutoGen's selector opens with the task alone, as others do, and both
recorded managers hand their agent one and the same task at the same time."""

WHOLE = sorted(EXAMPLES.keys() - IN_PIECES.keys())


@dataclass(frozen=True, slots=True)
class Sent:
    """A recorded request and its answer's text; `conversation` and `agent` are the truth."""

    run: str
    conversation: str
    agent: str
    headers: dict[str, str]
    body: dict[str, Any]
    answer: str


def recorded(name: str) -> list[Sent]:
    parts: dict[str, int] = defaultdict(int)
    sent = []
    for one in json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))["requests"]:
        run, agent = one["run"], one["agent"]
        if agent == EXAMPLES[name].second_team_opens:
            parts[run] = 1
        sent.append(Sent(run, f"{run}-{parts[run]}", agent, one["headers"], one["body"], text_of(one["answer"])))
    return sent


def text_of(answer: dict[str, Any]) -> str:
    text = AnswerText()
    text.add_response({"choices": [{"message": answer}]})
    return str(text)


def repeats(name: str, times: int) -> Iterator[Sent]:
    """All three runs, several times over; each time these are other conversations."""
    for number in range(times):
        for sent in recorded(name):
            yield replace(sent, conversation=f"{sent.conversation}-{number}")


def who(resolver: IdentityResolver, sent: Sent, **headers: str) -> Identity:
    raw = {**sent.headers, **headers}
    folded = fold_headers((key.encode(), value.encode()) for key, value in raw.items())
    resolved = resolver.resolve("t", folded, sent.body)
    resolver.accept(resolved)
    resolver.answered(resolved, sent.answer)
    return resolved.identity


@pytest.fixture(params=sorted(EXAMPLES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def resolver() -> IdentityResolver:
    return IdentityResolver(b"secret")


def test_the_recording_is_of_this_example(name: str) -> None:
    sent = recorded(name)
    assert {one.run for one in sent} == set(RUNS)
    assert {one.agent for one in sent} == set(EXAMPLES[name].agents)
    assert all(one.agent == EXAMPLES[name].agent_of(one.body) for one in sent)
    assert all(not read_hints(one.headers, one.body)[1].outcomes for one in sent), "it sends hints by itself"


def test_each_agent_is_one_agent_in_every_turn_and_session(name: str, resolver: IdentityResolver) -> None:
    ids: dict[str, set[str]] = defaultdict(set)
    for one in repeats(name, 3):
        ids[one.agent].add(who(resolver, one).agent)
    assert all(len(found) == 1 for found in ids.values())
    assert len(set.union(*ids.values())) == len(EXAMPLES[name].agents)


def test_sessions_at_once_and_repeated_ones_never_mix(name: str, resolver: IdentityResolver) -> None:
    conversations: dict[str, set[str]] = defaultdict(set)
    pieces: dict[str, set[str]] = defaultdict(set)
    for one in repeats(name, 3):
        session = who(resolver, one).session
        conversations[session].add(one.conversation)
        pieces[one.conversation].add(session)
    assert all(len(found) == 1 for found in conversations.values())
    assert max(len(found) for found in pieces.values()) <= IN_PIECES.get(name, 1)


def test_a_manager_and_its_agent_are_one_session_where_no_other_hands_over_the_same_task(
    resolver: IdentityResolver,
) -> None:
    """The recording, but each run's manager asks a question of its own, as managers of different tasks do."""
    asked = "eleven metres of draught at the north quay"
    sessions: dict[str, set[str]] = defaultdict(set)
    for one in repeats("smolagents_manager", 2):
        own = f"{asked} for {one.run}"
        body = json.loads(json.dumps(one.body).replace(asked, own))
        sessions[one.conversation].add(
            who(resolver, replace(one, body=body, answer=one.answer.replace(asked, own))).session
        )
    assert all(len(found) == 1 for found in sessions.values())
    assert len(set.union(*sessions.values())) == len(sessions)


def forecasts(model: TransitionModel, turns: list[Identity]) -> list[str]:
    """The likeliest next agent after each turn but the last."""
    named = []
    for number, turn in enumerate(turns):
        model.observe(turn.session, turn.agent, float(number))
        if number < len(turns) - 1:
            forecast = model.forecast(turn.session, 1)
            named.append(max(forecast, key=lambda agent: forecast[agent]))
    return named


@pytest.mark.parametrize("name", WHOLE)
def test_the_next_agent_is_forecast(name: str, resolver: IdentityResolver) -> None:
    model = TransitionModel()
    sent = recorded(name)
    for number, one in enumerate(one for _ in range(4) for one in sent if one.run != "again"):
        identity = who(resolver, one)
        model.observe(identity.session, identity.agent, float(number))
    for session in list(model.sessions):
        model.end(session, 1000.0)
    turns = [who(resolver, one) for one in sent if one.run == "again"]
    assert forecasts(model, turns) == [turn.agent for turn in turns[1:]]


def test_one_line_of_headers_makes_identity_exact(name: str, resolver: IdentityResolver) -> None:
    """The line that each example shows: also what nothing else tells becomes one session, and is forecast."""
    model = TransitionModel()
    turns: dict[str, list[Identity]] = defaultdict(list)
    for one in repeats(name, 4):
        declared = {"x-session-id": one.conversation, "x-claude-code-agent-id": one.agent}
        identity = who(resolver, one, **declared)
        assert identity.label == one.agent
        turns[one.conversation].append(identity)
    assert all(len({turn.session for turn in same}) == 1 for same in turns.values())
    *earlier, last = turns.values()
    for same in earlier:
        forecasts(model, same)
        model.end(same[0].session, 1000.0)
    assert forecasts(model, last) == [turn.agent for turn in last[1:]]


def live(kit: Kit, sessions: list[str]) -> list[str]:
    return [session for session in sessions if kit.runtime.predict("t", session, 1) is not None]


@pytest.mark.parametrize("name", WHOLE)
def test_an_end_is_noticed_by_silence_by_an_event_and_by_the_final_header(
    name: str, resolver: IdentityResolver
) -> None:
    """No framework says that its run is over, so silence ends a session; a client may say it in two ways."""
    kit = Kit(session_idle_s=60)
    runs: dict[str, list[Identity]] = defaultdict(list)
    for one in recorded(name):
        runs[one.run].append(who(resolver, one))
        assert not runs[one.run][-1].ends_session
    sessions = [turns[0].session for turns in runs.values()]
    kit.runtime.handle([kit.arrived(turn.session, turn.agent) for turns in runs.values() for turn in turns])
    assert live(kit, sessions) == sessions
    kit.runtime.handle([kit.ended(sessions[0])])
    assert live(kit, sessions) == sessions[1:]
    kit.clock.advance(61)
    kit.exchange()
    assert live(kit, sessions) == []
    last = recorded(name)[-1]
    assert who(resolver, last, **{"x-dynamo-session-final": "true"}).ends_session
