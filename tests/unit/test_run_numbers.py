"""A run's own number doesn't make another agent; a limit does, whatever its noun."""

from __future__ import annotations

import pytest

from serve_app.recognition.canonical import canonical_text

SAME = [
    ("(thread 4f2a9c)", "(thread 5a1b2d)"),
    ("run_name: run-17", "run_name: run-18"),
    ("Work in /workspace/run_17/src", "Work in /workspace/run_18/src"),
    ("Request: req_48151623", "Request: req_48151624"),
    ("Job: job-48213", "Job: job-48214"),
    ("<session>8841</session>", "<session>8842</session>"),
    ('{"run": 17, "step": 2}', '{"run": 18, "step": 2}'),
    ("**Run:** 17", "**Run:** 18"),
    ("- Your session: 8841.", "- Your session: 8842."),
    ("This is run #9 of the nightly job", "This is run #10 of the nightly job"),
    ("Log: run_17.log", "Log: run_18.log"),
]
DIFFERENT = [
    ("Most characters in a message: 2000", "Most characters in a message: 4000"),
    ("Budget per task: 1000 tokens", "Budget per task: 5000 tokens"),
    ("Timeout of a request: 1500 ms", "Timeout of a request: 2500 ms"),
    ("You may call user-4000 and no other", "You may call user-5000 and no other"),
    ("Work on task-0001 of the plan", "Work on task-0002 of the plan"),
    ("Use GB-18030 for a message: 18030", "Use GB-18030 for a message: 18031"),
    ("Tokens per request: 128k", "Tokens per request: 256k"),
    ("Timeout of a call: 1500ms", "Timeout of a call: 2500ms"),
    ("request: 1500", "request: 2500"),
    ("Session: 45 minutes", "Session: 60 minutes"),
    ("Session: 90%", "Session: 80%"),
    ("Session: 2024", "Session: 2025"),
    ("Trace: 0.25", "Trace: 0.75"),
    ("Run 100 tests", "Run 200 tests"),
    ("Run: 1,000 steps", "Run: 2,000 steps"),
    ("Use at most thread-8000", "Use at most thread-9000"),
    ("Steps of this run: 500", "Steps of this run: 600"),
    ("OMP_THREAD=16", "OMP_THREAD=32"),
    ("Session 3: verbs", "Session 4: verbs"),
    ("Open until session 100 ends", "Open until session 200 ends"),
]

RUN_NOUNS = ["run", "Session", "trace", "THREAD", "conversation", "execution"]
OTHER_NOUNS = ["request", "task", "message", "call", "batch", "turn", "user", "process", "job", "event", "chat"]
RUN_FORMS = ["{noun}: {number}", "{noun}={number}", "{noun} #{number}", "{noun} {number}", "[{noun} {number}]"]
LIMIT_FORMS = [
    "Most tokens in a {noun}: {number}",
    "{noun}: {number} tokens",
    "Budget per {noun}={number}",
    "{noun}-{number}",
]


def prompt(text: str) -> str:
    return f"You are the planner of a team. Be brief.\n{text}\nBe kind to all."


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_names_a_run_is_the_same(one: str, other: str) -> None:
    assert canonical_text(prompt(one)) == canonical_text(prompt(other))


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_limits_and_fixed_numbers_are_significant(one: str, other: str) -> None:
    assert canonical_text(prompt(one)) != canonical_text(prompt(other))


@pytest.mark.parametrize("form", RUN_FORMS)
@pytest.mark.parametrize("noun", RUN_NOUNS)
def test_a_number_behind_what_names_the_run_is_no_content(noun: str, form: str) -> None:
    one, other = (prompt(form.format(noun=noun, number=number)) for number in (4711, 8842))
    assert canonical_text(one) == canonical_text(other)


@pytest.mark.parametrize("form", [*LIMIT_FORMS, "{noun}: {number}", "Read {noun} {number}"])
@pytest.mark.parametrize("noun", OTHER_NOUNS)
def test_a_number_behind_another_noun_is_content(noun: str, form: str) -> None:
    one, other = (prompt(form.format(noun=noun, number=number)) for number in (4711, 8842))
    assert canonical_text(one) != canonical_text(other)


@pytest.mark.parametrize("form", LIMIT_FORMS[:3])
@pytest.mark.parametrize("noun", RUN_NOUNS)
def test_a_limit_of_a_run_is_content(noun: str, form: str) -> None:
    one, other = (prompt(form.format(noun=noun, number=number)) for number in (4711, 8842))
    assert canonical_text(one) != canonical_text(other)
