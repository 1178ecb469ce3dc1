"""Sessions that open with the same words, and agents that are handed a task: who is a stranger, who joins."""

from __future__ import annotations

import pytest

from serve_app.recognition.conversations import JOIN_WITHIN_S, RETRY_WITHIN_S
from serve_app.recognition.turns import turn_of
from tests.unit.conversation_kit import TASK, Messages, Runs, reply, user


@pytest.mark.parametrize(
    "opening",
    [
        [reply("How can I help you today?"), user("Hi")],
        [user("2+2?"), reply("4"), user("3+3?"), reply("6"), user("5+5?")],
        [user("Give me JSON."), reply("{")],
    ],
)
def test_clients_that_open_with_the_same_turns_are_strangers(opening: Messages) -> None:
    """A page's greeting, examples, the beginning of an answer."""
    runs = Runs()
    opened = [runs.send(opening, f"ten {n}") for n in range(5)]
    assert len(set(opened)) == 5
    for n in (3, 0, 4):
        assert runs.send([*opening, reply(f"ten {n}"), user("So?")], "so") == opened[n]


def test_an_opening_with_turns_is_a_teams_all_the_same() -> None:
    """Another agent may be given it too, and the client sends it once more where its answer was cut."""
    runs = Runs()
    opening = [user("2+2?"), reply("4"), user("Count the herons at the weir.")]
    one = runs.send(opening, "three", agent="lead")
    assert runs.send(opening, "two", agent="worker") == one
    other = runs.send(opening, "fo", is_cut=True, agent="lead")
    assert other != one
    assert runs.send(opening, "four", agent="lead") == other


def test_a_prompt_that_many_others_begin_with_joins_them_no_more_than_once() -> None:
    """A greeting that was once asked alone, and what each visitor says then; the answer to it stands in none."""
    runs = Runs()
    alone = runs.send([reply("How can I help you today?")], "You can't.")
    asked = [runs.send([reply("How can I help you today?"), user(f"What is {n}?")], "that") for n in range(20)]
    assert len(set(asked)) == 20 and asked[1:].count(alone) == 0


def test_examples_that_were_once_served_join_no_more_than_may_branch() -> None:
    runs = Runs()
    runs.send([user("2+2?")], "4", agent="classifier")
    asked = [runs.send([user("2+2?"), reply("4"), user(f"{n}+{n}?")], "so", agent="solver") for n in range(200)]
    assert len(set(asked)) > 100


def test_answers_that_contradict_each_other_are_of_several_sessions() -> None:
    """Of runs that were under way when nothing was known of them; what is known was answered otherwise."""
    runs = Runs()
    known = runs.send([user(TASK)], "nine")
    others = [runs.send([user(TASK), reply(f"{n} of them"), user("And ships?")], "none") for n in range(4)]
    assert len(set(others)) == 4 and others[1:].count(known) == 0
    assert runs.send([user(TASK), reply("nine"), user("And ships?")], "one") == known


def test_parts_of_a_plan_that_is_kept_in_other_words_stay_together() -> None:
    runs = Runs()
    first = runs.send([user("task")], "plan: a, b, c")
    parts = [runs.send([user("task"), reply("My plan: a, b, c"), user(f"part {n}")], "done") for n in range(4)]
    assert {first} == set(parts)


def test_an_opening_that_was_cut_is_sent_once_more() -> None:
    runs = Runs()
    first = runs.send([user(TASK)], "Thr", is_cut=True)
    runs.now_s += RETRY_WITHIN_S
    assert runs.send([user(TASK)], "Three.") == first, "a timeout's retry"
    assert runs.send([user(TASK)], "Two.") != first, "it was sent once more already"
    runs.send([user(f"{TASK}, again")], "Thr", is_cut=True)
    runs.now_s += RETRY_WITHIN_S + 1.0
    assert runs.send([user(f"{TASK}, again")], "Three.") == "s4", "long after it is another one's"


@pytest.mark.parametrize("agent", ["lead", "worker"])
def test_whoever_is_cut_again_and_again_stays_in_the_session(agent: str) -> None:
    """Who opened it as well as who joined: SDKs retry more than once."""
    runs = Runs()
    first = runs.send([user(TASK)], "Ask the worker.", agent="lead") if agent == "worker" else None
    sessions = {runs.send([user(TASK)], "Th", is_cut=True, agent=agent) for _ in range(3)}
    sessions.add(runs.send([user(TASK)], "Three.", agent=agent))
    assert len(sessions) == 1 and first in (None, *sessions)


@pytest.mark.parametrize("how", ["cut", "left", "ended"])
def test_a_run_that_never_got_to_its_worker_holds_back_no_later_one(how: str) -> None:
    runs = Runs()
    orphan = runs.send([user(TASK)], "Three.", is_cut=how == "cut", agent="lead")
    runs.now_s += RETRY_WITHIN_S + 1.0
    if how == "ended":
        runs.index.ended("t", orphan)
    for number in range(4):
        opened = runs.send([user(TASK)], "Ask the worker.", agent="lead")
        assert runs.send([user(TASK)], f"{number}", agent="worker") == opened
        assert runs.send([user(TASK), reply(f"{number}")], "done", agent="lead") == opened
        assert opened != orphan


def test_a_retry_of_the_one_who_hands_over_is_joined_like_any() -> None:
    runs = Runs()
    first = runs.send([user(TASK)], "As", is_cut=True, agent="lead")
    assert runs.send([user(TASK)], "Ask the worker.", agent="lead") == first
    assert runs.send([user(TASK)], "three", agent="worker") == first


def test_nobody_joins_what_was_left_long_ago_or_has_ended() -> None:
    runs = Runs()
    one = runs.send([user(TASK)], "Three.", agent="lead")
    runs.now_s += JOIN_WITHIN_S
    assert runs.send([user(TASK)], "three", agent="worker") == one
    runs.now_s += JOIN_WITHIN_S + 1.0
    assert runs.send([user(TASK)], "three", agent="other") == "s2"
    runs.index.ended("t", "s2")
    assert runs.send([user(TASK)], "three", agent="late") == "s3"


def test_workers_of_runs_at_once_join_in_the_order_in_which_they_were_answered() -> None:
    runs = Runs()
    opened = [runs.send([user(TASK)], "Ask the worker.", agent="lead") for _ in range(4)]
    assert len(set(opened)) == 4
    assert [runs.send([user(TASK)], "three", agent="worker")] == [opened[3]], "each opened after the last was answered"
    runs = Runs()
    claims = [runs.index.match("t", "lead", [user(TASK)]) for _ in range(3)]
    for number, claim in enumerate(claims):
        runs.index.record(claim, f"s{number}", "lead")
    for claim in claims:
        runs.index.answered(claim, turn_of(["Ask the worker."]), False)
    assert [runs.send([user(TASK)], "three", agent="worker") for _ in range(3)] == ["s0", "s1", "s2"]


def test_a_history_without_what_led_to_an_answer_goes_on_with_its_own() -> None:
    """As where a handoff leaves out the tools' messages: what was said last is an answer to a later prompt."""
    runs = Runs()
    opened = {}
    for name in "abcd":
        opened[name] = runs.send([user("hi")], f"look({name})")
    for name in "abcd":
        looked = [user("hi"), reply(f"look({name})"), {"role": "tool", "content": name}]
        assert runs.send(looked, f"over {name}") == opened[name]
    for name in "cadb":
        assert runs.send([user("hi"), reply(f"over {name}"), user("go")], "x", agent="next") == opened[name]


def test_an_agent_that_speaks_first_goes_on_with_its_own() -> None:
    """It is asked with its system prompt alone: callers, interviewers, pages that greet."""
    runs = Runs()
    leading = {"role": "system", "content": "You call a dentist."}
    hello, ask = [reply("Hello there."), user("Yes?")], [reply("Good day."), user("Yes?")]
    opened = [runs.send([leading], turn[0]["content"]) for turn in (hello, ask, hello)]
    assert len(set(opened)) == 3
    assert runs.send([leading, *ask], "Monday?") == opened[1]
    assert [runs.send([leading, *hello], f"Friday {n}?") for n in range(2)] == [opened[0], opened[2]]
    assert runs.send([leading, *hello, reply("Friday 1?"), user("No.")], "So be it.") == opened[2]
    other = [leading, hello[0], user("Who is it?")]
    assert runs.send(other, "Friday?") not in opened, "a stranger, who was greeted by a page"
    assert runs.send([leading], "Hello there.") not in opened
    assert runs.send(other, "Friday?", agent="other") not in opened, "nobody's answer but its agent's own"


def test_a_request_without_turns_whose_answer_was_cut_is_nobodys() -> None:
    runs = Runs()
    leading = {"role": "system", "content": "You call a dentist."}
    opened = runs.send([leading], "Hello th", is_cut=True)
    assert runs.send([leading, reply("Hello there."), user("Yes?")], "Monday?") != opened
