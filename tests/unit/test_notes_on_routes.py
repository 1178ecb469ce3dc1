"""A note that isn't kept parts no session on the routes that the gateway turns into a chat either."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.identity import IdentityResolver
from serve_app.preparation import Limits
from serve_app.routes.messages import MessagesRoute
from serve_app.routes.responses import ResponsesRoute
from serve_app.routes.route import Route

RULES = "You are the keeper of a weir."
LIMITS = Limits(modalities=frozenset({"text"}), max_choices=1)
OPENING = "Count the herons at weir 5 before noon."


def messages(turn: int, kept: list[dict[str, Any]], text: str) -> dict[str, Any]:
    parts = [f"<system-reminder>Step {turn}.</system-reminder>", text]
    last = {"role": "user", "content": [{"type": "text", "text": part} for part in parts]}
    return {"system": RULES, "max_tokens": 8, "messages": [*kept, last]}


def messages_with_a_note_behind(turn: int, kept: list[dict[str, Any]], text: str) -> dict[str, Any]:
    last = {"role": "user", "content": text}
    note = {"role": "user", "content": [{"type": "text", "text": f"<note>{turn}</note>"}]}
    return {"system": RULES, "max_tokens": 8, "messages": [*kept, last, note]}


def responses(turn: int, kept: list[dict[str, Any]], text: str) -> dict[str, Any]:
    note = {"role": "developer", "content": f"<total_tokens>{9000 - turn} tokens left"}
    return {"instructions": RULES, "input": [*kept, {"role": "user", "content": text}, note]}


def constant(turn: int, kept: list[dict[str, Any]], text: str) -> dict[str, Any]:
    return {"instructions": RULES, "input": [*kept, {"role": "user", "content": f"{text}\nReply in JSON."}]}


@pytest.mark.parametrize(
    ("route", "form"),
    [
        (MessagesRoute(), messages),
        (MessagesRoute(), messages_with_a_note_behind),
        (ResponsesRoute(), responses),
        (ResponsesRoute(), constant),
    ],
)
def test_it_parts_no_session(route: Route, form: Any) -> None:
    resolver = IdentityResolver(b"secret")
    kept: list[dict[str, Any]] = []
    found = set()
    for turn in range(4):
        text = "Go on." if turn else OPENING
        fields = route.prepare(form(turn, kept, text), LIMITS)
        resolved = resolver.resolve("t", {}, route.identity_view(fields))
        resolver.accept(resolved)
        resolver.answered(resolved, "Yes, do.")
        found.add((resolved.identity.session, resolved.identity.agent))
        kept += [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes, do."}]
    assert len(found) == 1
