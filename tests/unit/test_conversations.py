"""Sessions without a hint: the conversation's own prefix, and what must not be joined."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.recognition.conversations import ConversationIndex
from serve_app.recognition.turns import turn_of
from tests.unit.conversation_kit import TASK, Client, Messages, Runs, reply, user


def test_turns_of_one_conversation() -> None:
    client = Client(ConversationIndex())
    messages = [user("hi")]
    first = client.send(messages)
    for turn in range(5):
        messages = [*messages, reply(f"r{turn}"), user(f"u{turn}")]
        assert client.send(messages) == first


def test_a_changed_reply_still_matches_up_to_it() -> None:
    client = Client(ConversationIndex())
    first = client.send([user("hi")])
    assert client.send([user("hi"), reply("shortened"), user("go on")]) == first


def test_equal_first_messages_are_two_sessions() -> None:
    client = Client(ConversationIndex())
    one = client.send([user("hi")])
    other = client.send([user("hi")])
    assert one != other
    next_one = client.send([user("hi"), reply("r"), user("x")])
    next_other = client.send([user("hi"), reply("r"), user("y")])
    assert {next_one, next_other} == {one, other}


def test_first_message_never_joins_a_session_that_went_on() -> None:
    client = Client(ConversationIndex())
    one = client.send([user("hi")])
    client.send([user("hi"), reply("r"), user("x")])
    assert client.send([user("hi")]) != one
    assert client.send([user("hi")], agent="b") != one


def test_agents_with_own_system_prompts_share_a_conversation() -> None:
    client = Client(ConversationIndex())
    task = [user("solve it")]
    first = client.send([{"role": "system", "content": "You plan."}, *task], agent="planner")
    task = [*task, reply("plan")]
    assert client.send([{"role": "system", "content": "You code."}, *task], agent="coder") == first
    task = [*task, reply("code")]
    assert client.send([{"role": "system", "content": "You test."}, *task], agent="tester") == first
    assert client.send([{"role": "system", "content": "You judge."}, *task], agent="judge") == first


def test_shared_few_shot_prefix_joins_nobody() -> None:
    client = Client(ConversationIndex())
    shots = [user("2+2"), reply("4"), user("3+3"), reply("6")]
    sessions = {client.send([*shots, user(f"{n}+1")]) for n in range(5)}
    assert len(sessions) == 5


def test_agents_that_call_others_turns_the_users_share_a_session() -> None:
    """As in a group chat: each agent's own turns are the assistant's, all others' the user's."""
    client = Client(ConversationIndex())
    said: list[str] = []
    sessions = set()
    for turn, agent in enumerate(["planner", "coder", "tester"] * 3):
        history = [reply(text) if n % 3 == turn % 3 else user(text) for n, text in enumerate(said)]
        sessions.add(client.send([user(TASK), *history], agent=agent))
        # A second team on the same task goes on at the same time.
        client.send([user(TASK), *([reply("other")] * turn)], agent="other")
        said.append(f"{agent} {turn}")
    assert len(sessions) == 1


def test_a_worker_that_is_handed_the_task_as_it_came_joins() -> None:
    client = Client(ConversationIndex())
    both = [client.send([user(TASK)], agent="supervisor") for _ in range(2)]
    assert both[0] != both[1]
    assert [client.send([user(TASK)], agent="worker") for _ in range(2)] == both
    assert client.send([user(TASK), reply("three")], agent="supervisor") == both[0]
    assert client.send([user(TASK)], agent="late") == both[1], "one that went on isn't joined any more"


def test_a_greeting_makes_no_team() -> None:
    client = Client(ConversationIndex())
    assert len({client.send([user("good morning")], agent=agent) for agent in "abc"}) == 3


def test_the_same_conversation_once_more_is_another_session() -> None:
    """The same answers too, as from a model without sampling; each turn finds the session that is under way."""
    client = Client(ConversationIndex())
    turns = [[user(TASK)], [user(TASK), reply("a")], [user(TASK), reply("a"), user("b"), reply("c")]]
    runs = [{client.send(messages, agent=agent) for messages in turns for agent in "pq"} for _ in range(3)]
    assert [len(run) for run in runs] == [1, 1, 1]
    assert len(set.union(*runs)) == 3


def test_fan_out_stays_in_its_session() -> None:
    client = Client(ConversationIndex())
    first = client.send([user("task")])
    branches = {client.send([user("task"), reply("plan"), user(f"part {n}")], agent=f"w{n}") for n in range(4)}
    assert branches == {first}


def test_retry_of_a_long_conversation_is_the_same_session() -> None:
    client = Client(ConversationIndex())
    first = client.send([user("hi")])
    messages = [user("hi"), reply("r"), user("more")]
    assert client.send(messages) == client.send(messages) == first


def test_concurrent_openings_claim_different_sessions() -> None:
    index = ConversationIndex()
    client = Client(index)
    both = {client.send([user("hi")]), client.send([user("hi")])}
    claims = [index.match("t", "a", [user("hi"), reply("r"), user(f"x{n}")]) for n in range(2)]
    assert {claim.session for claim in claims} == both


def test_refused_request_leaves_nothing() -> None:
    index = ConversationIndex()
    claim = index.match("t", "a", [user("hi")])
    index.release(claim)
    assert len(index) == 0
    index.record(claim, "s", "a")
    assert len(index) == 0


def test_tenants_never_meet() -> None:
    client = Client(ConversationIndex())
    one = client.send([user("hi")], tenant="k1")
    assert client.send([user("hi"), reply("r"), user("x")], tenant="k2") != one


def test_system_messages_inside_count_as_history() -> None:
    client = Client(ConversationIndex())
    top = {"role": "system", "content": "top"}
    messages = [top, user("a"), {"role": "system", "content": "4999 left"}]
    first = client.send(messages)
    messages = [*messages, reply("r"), user("b"), {"role": "system", "content": "4998 left"}]
    assert client.send(messages) == first


def test_bounded() -> None:
    client = Client(ConversationIndex(max_ends=8))
    for n in range(100):
        client.send([user(f"m{n}")])
    assert len(client.index) == 8


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.randoms())
def test_interleaved_conversations_never_mix(order: list[int], random: Any) -> None:
    """Distinct openings: each conversation keeps its one session however they interleave."""
    client = Client(ConversationIndex())
    histories: dict[int, Messages] = {n: [user(f"open {n}")] for n in range(6)}
    sessions: dict[int, str] = {}
    for n in order:
        session = client.send(histories[n], agent=random.choice("abc"))
        assert sessions.setdefault(n, session) == session
        histories[n] = [*histories[n], reply("same"), user("same")]
    assert len(set(sessions.values())) == len(sessions)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("What does\r\nthe harbour cost?", "What does\nthe harbour cost?"),
        ("What does the harbour cost?\n", "What does the harbour cost?"),
        ("What does the caf\u00e9 cost?", "What does the cafe\u0301 cost?"),
    ],
)
def test_a_history_that_was_tidied_up_goes_on(sent: str, kept: str) -> None:
    index = ConversationIndex()
    first = index.match("t", "a", [{"role": "user", "content": sent}])
    index.record(first, "s-1", "a")
    later = [
        {"role": "user", "content": kept},
        {"role": "assistant", "content": "Much."},
        {"role": "user", "content": "Why?"},
    ]
    assert index.match("t", "a", later).session == "s-1"


def test_runs_at_once_with_short_answers_go_on_with_their_own() -> None:
    """In whatever order; what a client tidied up is still its answer."""
    runs = Runs()
    opened = {answer: runs.send([user("yes or no?")], answer) for answer in ("yes", "no", "perhaps\r\n")}
    for answer in ("no", "perhaps", "yes", "no"):
        said = next(text for text in opened if text.strip() == answer)
        assert runs.send([user("yes or no?"), reply(answer), user(f"why {answer}?")], "so") == opened[said]


def test_runs_at_once_that_are_answered_alike_never_share_a_session() -> None:
    runs = Runs()
    messages = [user("Count on.")]
    found: list[list[str]] = [[], [], []]
    for turn in range(4):
        for run in found:
            run.append(runs.send(messages, f"{turn}"))
        messages = [*messages, reply(f"{turn}"), user(f"and after {turn}?")]
    assert [len(set(run)) for run in found] == [1, 1, 1] and len({run[0] for run in found}) == 3


def test_a_request_once_more_after_a_cut_answer_is_a_retry() -> None:
    runs = Runs()
    one, other = runs.send([user("hi")], "ho"), runs.send([user("hi")], "ho")
    again = [user("hi"), reply("ho"), user("more")]
    assert runs.send(again, "half an ans", is_cut=True) == one
    assert runs.send(again, "half an answer, whole") == one
    assert runs.send(again, "half an answer, whole") == other


def test_runs_that_called_different_tools_go_on_with_their_own() -> None:
    def called(name: str) -> dict[str, Any]:
        function = {"name": name, "arguments": "{}"}
        return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": function}]}

    runs = Runs()
    opened = {name: runs.send([user("hi")], f"{name}{{}}") for name in ("look", "book")}
    for name in ("book", "look"):
        history = [user("hi"), called(name), {"role": "tool", "tool_call_id": "1", "content": "2"}]
        assert runs.send(history, "done") == opened[name]


def test_an_answer_that_was_changed_tells_nothing() -> None:
    """Also where each client keeps answers in its own words: a run's next request is not the other's."""
    runs = Runs()
    one = runs.send([user("hi")], "the whole answer")
    assert runs.send([user("hi"), reply("cut"), user("more")], "x") == one
    runs = Runs()
    sessions = [{runs.send([user("hi")], "call it")} for _ in range(2)]
    for session in sessions:
        session.add(runs.send([user("hi"), reply("Calling: it"), user("more")], "x"))
    assert [len(session) for session in sessions] == [1, 1] and sessions[0] != sessions[1]


def test_agents_that_ask_at_once_stay_in_their_run_beside_one_that_was_answered_alike() -> None:
    """The third comes while the second is on its way from where the first left off: none repeats its own request."""
    index = ConversationIndex()
    for number in range(2):
        opened = index.match("t", "lead", [user("Repair the mill.")])
        index.record(opened, f"s{number}", "lead")
        index.answered(opened, turn_of(["All of you."]), False)
    history = [user("Repair the mill."), reply("All of you."), user("Say what you need.")]
    first = index.match("t", "miller", history)
    index.record(first, "s0", "miller")
    others = [index.match("t", agent, history) for agent in ("carpenter", "smith")]
    assert [claim.session for claim in (first, *others)] == ["s0"] * 3


def test_a_hundred_runs_at_once_go_on_with_their_own() -> None:
    runs = Runs()
    opened = [runs.send([user("Count.")], f"{n}") for n in range(100)]
    assert [runs.send([user("Count."), reply(f"{n}"), user("Go on.")], "x") for n in range(100)] == opened
    assert len(set(opened)) == 100


@pytest.mark.parametrize(
    ("answered", "kept"),
    [
        ('weather{"city": "K\u00f6ln"}', 'weather{"city":"K\\u00f6ln"}'),
        ("ships \U0001f6a2", "ships \\ud83d\\udea2"),
        ("<think>\nLet me see.\n</think>\n\nyes", "yes"),
    ],
)
def test_a_turn_is_the_same_however_its_client_writes_it(answered: str, kept: str) -> None:
    assert turn_of([answered]) == turn_of([kept]) is not None
