"""Clients that put a note beside each turn's last message and don't keep it: their prompts extend no earlier one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from serve_app.identity import IdentityResolver
from serve_app.recognition import tails
from serve_app.recognition.ends import End
from serve_app.recognition.history import history_keys
from tests.unit.conversation_kit import Messages, reply, user

SYSTEM = {"role": "system", "content": "You are the keeper of a weir. Answer in few words."}
RULES = "Keep to the list of birds. Don't guess what you haven't seen. Numbers are to be whole."

Note = Callable[[int, str], Messages]


def tail_message(turn: int, text: str) -> Messages:
    return [user(text), {"role": "system", "content": f"<total_tokens>{4_999_000 - 713 * turn} tokens left"}]


def reminder_before(turn: int, text: str) -> Messages:
    return [user(f"<system-reminder>\nStep {turn}. {RULES}\n</system-reminder>\n\n{text}")]


def reminder_before_in_one_line(turn: int, text: str) -> Messages:
    return [user(f"<system-reminder>Step {turn}.</system-reminder> {text}")]


def reminder_as_a_part(turn: int, text: str) -> Messages:
    parts = [f"<system-reminder>Step {turn}.</system-reminder>", text]
    return [{"role": "user", "content": [{"type": "text", "text": part} for part in parts]}]


def reminder_as_a_message(turn: int, text: str) -> Messages:
    return [user(text), user(f"<system-reminder>Step {turn}. {RULES}</system-reminder>")]


def constant_behind(turn: int, text: str) -> Messages:
    return [user(f"{text}\nReply in JSON.")]


def retrieved_before(turn: int, text: str) -> Messages:
    return [user(f"Context:\n{RULES} Page {turn * 7}.\n\n{text}")]


def message_before(turn: int, text: str) -> Messages:
    note: dict[str, Any] = {"role": "system", "content": f"The gauge stands at {turn} hands."}
    return [note, user(text)] if turn else [user(text)]


NOTES: list[Note] = [
    tail_message,
    reminder_before,
    reminder_before_in_one_line,
    reminder_as_a_part,
    reminder_as_a_message,
    constant_behind,
    retrieved_before,
    message_before,
]


class Run:
    """Its history is kept without notes; `system` leads it."""

    def __init__(self, resolver: IdentityResolver, note: Note, opening: str, says: str = "Go on, please.") -> None:
        self.resolver, self.note, self.opening, self.says = resolver, note, opening, says
        self.kept: Messages = []
        self.sessions: list[str] = []

    def turn(self, answer: str, served: str | None = None) -> str:
        """`served`: what the engine said where the client keeps `answer` in words of its own."""
        number = len(self.sessions)
        text = self.says if self.kept else self.opening
        resolved = self.resolver.resolve("t", {}, {"messages": [SYSTEM, *self.kept, *self.note(number, text)]})
        self.resolver.accept(resolved)
        self.resolver.answered(resolved, answer if served is None else served)
        self.kept += [user(text), reply(answer)]
        self.sessions.append(resolved.identity.session)
        return resolved.identity.session


@pytest.mark.parametrize("served", [None, "So be it."])
@pytest.mark.parametrize("answer", ["Yes, do.", "That has been looked at, and nothing in it needs to be changed."])
@pytest.mark.parametrize("note", NOTES)
def test_a_note_that_is_dropped_parts_no_session(note: Note, answer: str, served: str | None) -> None:
    rng = random.Random(3)
    resolver = IdentityResolver(b"secret")
    runs = [Run(resolver, note, f"Count the herons at weir {number} before noon.") for number in range(5)]
    for run in rng.sample(runs * 4, 20):
        run.turn(answer, served)
    assert [len(set(run.sessions)) for run in runs] == [1] * 5
    assert len({run.sessions[0] for run in runs}) == 5


@pytest.mark.parametrize("is_alike", [False, True])
@pytest.mark.parametrize("note", NOTES)
@pytest.mark.parametrize("seed", range(4))
def test_runs_that_open_alike_are_never_one_session(seed: int, note: Note, is_alike: bool) -> None:
    rng = random.Random(seed)
    resolver = IdentityResolver(b"secret")
    runs = [Run(resolver, note, "Count the herons at the weir.") for _ in range(4)]
    for run in rng.sample([*range(4)] * 5, 20):
        runs[run].turn("Yes." if is_alike else f"Yes, {run}.")
    owners: dict[tuple[str, int], int] = {}
    for number, run in enumerate(runs):
        for step, session in enumerate(run.sessions):
            assert owners.setdefault((session, step), number) == number
    if not is_alike:
        assert all(len(set(run.sessions)) == 1 for run in runs)


@pytest.mark.parametrize("note", NOTES)
def test_a_task_that_is_run_once_more_is_a_session_again(note: Note) -> None:
    resolver = IdentityResolver(b"secret")
    runs = [Run(resolver, note, "Count the herons at the weir.") for _ in range(3)]
    for run in runs:
        for _ in range(4):
            run.turn("Yes.")
    assert [len(set(run.sessions)) for run in runs] == [1, 1, 1]
    assert len({run.sessions[0] for run in runs}) == 3


@pytest.mark.parametrize("note", NOTES)
def test_the_same_examples_before_another_task_are_no_evidence(note: Note) -> None:
    resolver = IdentityResolver(b"secret")
    runs = [Run(resolver, note, f"Is it {10 + number}, would you say, or is it more?") for number in range(4)]
    for run in runs:
        run.kept = [user("Is it 4 or 5 herons at the weir?"), reply("It is 4.")]
        run.says = run.opening
        run.turn("Yes.")
    assert len({run.sessions[0] for run in runs}) == 4
    for run in runs:
        assert run.turn("No.") == run.sessions[0]


def test_a_greeting_is_no_evidence() -> None:
    resolver = IdentityResolver(b"secret")
    run = Run(resolver, constant_behind, "Hello!", "Hm.")
    assert run.turn("Hello.") != run.turn("Yes.")


@pytest.mark.parametrize("size", [10, 600, 1500, 4000])
def test_one_that_begins_alike_and_goes_on_otherwise_is_another(size: int) -> None:
    """Whole words of what was sent, from its head or to its end, and all of it but the note."""
    resolver = IdentityResolver(b"secret")
    common = "Count the herons. " + "x" * size
    known = Run(resolver, constant_behind, f"{common} At weir 1 or below").turn("Yes.")
    other = Run(resolver, constant_behind, f"{common} At weir 17 or above")
    other.kept = [user(other.opening), reply("Yes.")]
    assert other.turn("No.") != known


@pytest.mark.parametrize("size", [600, 1500, 4000])
@pytest.mark.parametrize("note", NOTES)
def test_long_messages_are_compared_at_both_ends(size: int, note: Note) -> None:
    resolver = IdentityResolver(b"secret")
    run = Run(resolver, note, f"Count the herons.\n{'x' * size}\nAnd the gulls.", "y" * size)
    for _ in range(4):
        run.turn("Yes.")
    assert len(set(run.sessions)) == 1


@pytest.mark.parametrize("note", NOTES)
@pytest.mark.parametrize("seed", range(3))
def test_crowds_that_open_alike_are_never_one_session(seed: int, note: Note) -> None:
    """More at once than are remembered, of which some are answered alike."""
    rng = random.Random(seed)
    resolver = IdentityResolver(b"secret")
    runs = [Run(resolver, note, "Count the herons at the weir.") for _ in range(40)]
    for run in runs:
        run.turn(f"Yes, {rng.randrange(30)}.")
    for run in rng.sample(runs * 2, 80):
        run.turn(f"Yes, {rng.randrange(30)}.")
    for step in range(3):
        assert len({run.sessions[step] for run in runs}) == len(runs)


def test_a_long_history_is_compared_at_a_bounded_number_of_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each comparison may read all that stands before it: where every turn is known that is the square."""
    index, history = tails.TailIndex(), []
    for turn in range(200):
        history.append(user(""))
        keys, _ = history_keys("t", history)
        place = tails.tail_of(keys, history)
        assert place is not None
        index.add("t", place, End("s", "a", turn, 0.0))
        history.append(reply(""))
    keys, _ = history_keys("t", history)
    compared: list[int] = []
    plain = tails._ends_at
    monkeypatch.setattr(tails, "_ends_at", lambda *given: compared.append(given[2]) or plain(*given))
    assert index.continued("t", "a", keys, history) == (None, 0), "nothing was said in all"
    assert 1 < len(compared) <= tails.MAX_PLACES_TRIED + 1
