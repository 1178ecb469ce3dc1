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
from serve_app.http.field_checks import CHAT, check_fields
from serve_app.http.route_fields import check_own
from serve_app.identity import Identity, IdentityResolver, fold_headers
from serve_app.recognition.answers import AnswerText
from tests.framework_kit import EXAMPLES, FIXTURES
from tests.unit.runtime_kit import Kit

RUNS = ("first", "second", "again")
IN_PIECES = {"autogen_teams": 2, "smolagents_manager": 2}
"""Sessions that one conversation may fall into: AutoGen's selector opens with the task alone, as others do, and both
recorded managers hand their agent one and the same task at the same time."""


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


def test_no_field_that_it_sends_is_refused(name: str) -> None:
    for one in recorded(name):
        fields = {field: value for field, value in one.body.items() if value is not None}
        check_fields(CHAT, fields)
        check_own(CHAT, fields)


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


@pytest.mark.parametrize("runs", [2, 3])
@pytest.mark.parametrize("step", [1, 2])
def test_runs_of_one_task_at_once_that_are_answered_alike_never_share_a_session(
    name: str, resolver: IdentityResolver, runs: int, step: int
) -> None:
    """As of a model without sampling: nothing tells whose request is whose, yet each session is one run's."""
    sent = [one for one in recorded(name) if one.run == "first"]
    found: dict[str, list[int]] = defaultdict(list)
    for start in range(0, len(sent), step):
        for _ in range(runs):
            for number, one in enumerate(sent[start : start + step], start):
                found[who(resolver, one).session].append(number)
    assert all(len(numbers) == len(set(numbers)) for numbers in found.values())
    assert len(found) >= runs


ASKED = "eleven metres of draught at the north quay"


def with_questions_of_their_own(sent: Sent) -> Sent:
    """The recording, but each run's manager asks a question of its own, as managers of different tasks do."""
    own = f"{ASKED} for {sent.run}"
    body = json.loads(json.dumps(sent.body).replace(ASKED, own))
    return replace(sent, body=body, answer=sent.answer.replace(ASKED, own))


def test_a_manager_and_its_agent_are_one_session_where_no_other_hands_over_the_same_task(
    resolver: IdentityResolver,
) -> None:
    sessions: dict[str, set[str]] = defaultdict(set)
    for one in repeats("smolagents_manager", 2):
        sessions[one.conversation].add(who(resolver, with_questions_of_their_own(one)).session)
    assert all(len(found) == 1 for found in sessions.values())
    assert len(set.union(*sessions.values())) == len(sessions)


def test_two_managers_that_hand_over_one_task_at_once_are_apart_from_where_their_requests_differ(
    resolver: IdentityResolver,
) -> None:
    """The pilots' first requests are the same byte for byte, so nothing tells whose manager waits for which."""
    sent = recorded("smolagents_manager")
    found = [(one, who(resolver, one)) for one in sent]
    first, second = (one for one in sent[:4] if one.agent == "pilot")
    assert (first.body, first.headers) == (second.body, second.headers) and first.run != second.run
    pieces: dict[str, dict[str, set[str]]] = {run: defaultdict(set) for run in RUNS}
    for one, its in found:
        pieces[one.run][its.session].add(one.agent)
    in_two = [{"harbour master", "closing"}, {"pilot", "closing"}]
    assert list(pieces["first"].values()) == list(pieces["second"].values()) == in_two
    assert pieces["first"].keys().isdisjoint(pieces["second"])
    assert len({its.agent for one, its in found if one.agent == "pilot"}) == 1, "one anchor in the cache for both"
    alone = list(pieces["again"].values())
    assert alone == [{"harbour master", "pilot", "closing"}], "a later run of the same task is whole"


def forecasts(model: TransitionModel, turns: list[Identity]) -> list[str]:
    """The likeliest next agent after each turn but the last."""
    named = []
    for number, turn in enumerate(turns):
        model.observe(turn.session, turn.agent, float(number))
        if number < len(turns) - 1:
            forecast = model.forecast(turn.session, 1)
            named.append(max(forecast, key=lambda agent: forecast[agent]))
    return named


TEAMS = [(name, 0) for name in sorted(EXAMPLES)] + [("autogen_teams", 1)]
"""AutoGen's round robin, then its selector: the same agents, so each is learnt without the other."""


@pytest.mark.parametrize(("name", "team"), TEAMS)
def test_the_next_agent_is_forecast(name: str, team: int, resolver: IdentityResolver) -> None:
    """In each session that was found: of the selector's team that is all but the selector's first request."""
    model = TransitionModel()
    sent = [with_questions_of_their_own(one) for one in recorded(name) if one.conversation.endswith(f"-{team}")]
    for number, one in enumerate(one for _ in range(4) for one in sent if one.run != "again"):
        identity = who(resolver, one)
        model.observe(identity.session, identity.agent, float(number))
    for session in list(model.sessions):
        model.end(session, 1000.0)
    sessions: dict[str, list[Identity]] = defaultdict(list)
    for one in sent:
        if one.run == "again":
            identity = who(resolver, one)
            sessions[identity.session].append(identity)
    for turns in sessions.values():
        assert forecasts(model, turns) == [turn.agent for turn in turns[1:]]
    pieces = sorted(len(turns) for turns in sessions.values())
    assert pieces == ([1, len(turns)] if team == 1 else [len(turns)])


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


def test_an_end_is_noticed_by_silence_by_an_event_and_by_the_final_header(
    name: str, resolver: IdentityResolver
) -> None:
    """No framework says that its run is over, so silence ends a session; a client may say it in two ways."""
    kit = Kit(session_idle_s=60)
    runs: dict[str, list[Identity]] = defaultdict(list)
    for one in recorded(name):
        runs[one.run].append(who(resolver, one))
        assert not runs[one.run][-1].ends_session
    kit.runtime.handle([kit.arrived(turn.session, turn.agent) for turns in runs.values() for turn in turns])
    sessions = list(dict.fromkeys(turn.session for turns in runs.values() for turn in turns))
    assert live(kit, sessions) == sessions
    first = list(dict.fromkeys(turn.session for turn in runs["first"]))
    kit.runtime.handle([kit.ended(session) for session in first])
    assert live(kit, sessions) == [session for session in sessions if session not in first]
    kit.clock.advance(61)
    kit.exchange()
    assert live(kit, sessions) == []
    last = recorded(name)[-1]
    assert who(resolver, last, **{"x-dynamo-session-final": "true"}).ends_session
