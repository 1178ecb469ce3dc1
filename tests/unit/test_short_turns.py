"""A client that keeps the newest few messages, each of a word or two: one session by what follows on what."""

from __future__ import annotations

import random

import pytest

from serve_app.identity import IdentityResolver
from serve_app.recognition.quotes import lines_of_answer

SYSTEM = {"role": "system", "content": "You play a guessing game."}


class Game:
    """One client's conversation, of which it sends the newest `window` messages."""

    def __init__(self, resolver: IdentityResolver, window: int = 5) -> None:
        self.resolver = resolver
        self.window = window
        self.messages: list[dict[str, str]] = []
        self.sessions: list[str] = []

    def ask(self, text: str, answer: str) -> None:
        self.messages.append({"role": "user", "content": text})
        body = {"messages": [SYSTEM, *self.messages[-self.window :]]}
        resolved = self.resolver.resolve("t", {}, body)
        self.resolver.accept(resolved)
        self.resolver.answered(resolved, answer)
        self.messages.append({"role": "assistant", "content": answer})
        self.sessions.append(resolved.identity.session)


@pytest.fixture
def resolver() -> IdentityResolver:
    return IdentityResolver(b"secret")


@pytest.mark.parametrize("window", [5, 6, 7, 12])
def test_a_window_of_short_turns_is_one_session(resolver: IdentityResolver, window: int) -> None:
    game = Game(resolver, window)
    for n in range(20):
        game.ask(f"Is it {n * 7}?", f"Not {n}.")
    assert len(set(game.sessions)) == 1


def test_windows_at_once_never_mix_and_stay_whole(resolver: IdentityResolver) -> None:
    rng = random.Random(1)
    games = [Game(resolver) for _ in range(6)]
    for _ in range(200):
        place = rng.randrange(len(games))
        games[place].ask(f"Is it {place}{rng.randrange(10_000)}?", rng.choice(["Yes.", "No."]))
    sessions = [set(game.sessions) for game in games]
    assert len(set().union(*sessions)) == sum(map(len, sessions)) == len(games)


def test_short_turns_that_two_sessions_had_tell_nothing(resolver: IdentityResolver) -> None:
    """A third client, whose window begins where nobody's history did, is a stranger."""
    turns = [("Is it red?", "No."), ("Is it big?", "Yes."), ("Is it old?", "No."), ("Is it new?", "Yes.")]
    known = [Game(resolver, 99) for _ in range(2)]
    for game in known:
        for turn in turns:
            game.ask(*turn)
    third = Game(resolver)
    third.messages = [{**message} for message in known[0].messages[2:6]]
    third.ask("Is it far?", "No.")
    assert third.sessions[0] not in {session for game in known for session in game.sessions}


def test_what_was_said_before_counts_only_with_a_short_answer() -> None:
    before = [{"role": "user", "content": "Which colour does the sky have?"}]
    line = "Blue, as long as the sun is up"
    assert list(lines_of_answer(f"{line}.", before).values()) == [line]
    assert list(lines_of_answer("Blue.", before).values()) == ["Which colour does the sky have?\nBlue."]
    assert lines_of_answer("Blue.", [{"role": "user", "content": "Sky?"}]) == lines_of_answer("", before) == {}
