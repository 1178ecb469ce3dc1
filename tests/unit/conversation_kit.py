"""Turns of conversations, and clients that send them."""

from __future__ import annotations

from typing import Any

from serve_app.recognition.conversations import ConversationIndex
from serve_app.recognition.turns import turn_of

Messages = list[dict[str, Any]]

TASK = "count the herons at the weir"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def reply(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


class Client:
    """Names sessions as the gateway would."""

    def __init__(self, index: ConversationIndex) -> None:
        self.index = index
        self.minted = 0

    def send(self, messages: Messages, agent: str = "a", tenant: str = "t") -> str:
        claim = self.index.match(tenant, agent, messages)
        if claim.session is None:
            self.minted += 1
        session = claim.session or f"s{self.minted}"
        self.index.record(claim, session, agent)
        return session


class Runs:
    """Runs, answered as told, their requests in any order, at `now_s`."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.index = ConversationIndex(clock=lambda: self.now_s)
        self.minted = 0

    def send(self, messages: Messages, answer: str | None, is_cut: bool = False, agent: str = "a") -> str:
        claim = self.index.match("t", agent, messages)
        self.minted += claim.session is None
        session = claim.session or f"s{self.minted}"
        self.index.record(claim, session, agent)
        if answer is not None:
            self.index.answered(claim, turn_of([answer]), is_cut)
        return session
