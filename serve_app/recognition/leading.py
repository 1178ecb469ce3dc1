"""Leading system messages behind the first that are notes: they change from request to request (pure, bounded).

A harness may put a note of the system's before the last message of each turn. Before the first message of a
conversation it stands among the leading ones, which name the agent: each conversation would begin with an agent of its
own. So the first names the agent alone where what follows it is new nearly each time, and that is so

- at once, where a later turn behind the same first message has such a note and no other leading message; or
- from `LEAST_TEXTS` texts on: a note may also stand there in every turn.

Texts that come back are roles of a team whose rules come first, as is a text that opens as a role does.
"""

from dataclasses import dataclass, field
from typing import Any

from runtime_actor.fair_map import FairMap
from serve_app.recognition.canonical import LEADING_ROLES, leading_count, leading_system_text, text_of
from serve_app.recognition.quotes import Reading
from serve_app.recognition.roles import opens_as_role

MAX_FIRST_TEXTS = 1024
"""First system messages of all tenants, who share the memory fairly; the one not sent for longest is forgotten."""

MAX_FOLLOWING = 64
"""Texts remembered behind one of them; the oldest is forgotten first."""

LEAST_TEXTS = 8
MOST_RETURNED = 4
"""At most 1 in so many requests may have a text that was there before."""

LEAST_NOTED_MESSAGES = 4
"""Of a conversation with a note in a later turn: the system's, a user's, an answer, and the note or what follows it."""


@dataclass(slots=True)
class _Following:
    """`is_noted`: a later turn had a note where no other leading message stood."""

    is_noted: bool = False
    texts: dict[int, None] = field(default_factory=dict)
    new: int = 0
    returned: int = 0

    def add(self, text: int) -> None:
        if text in self.texts:
            self.returned += 1
            return
        self.new += 1
        self.texts[text] = None
        if len(self.texts) > MAX_FOLLOWING:
            del self.texts[next(iter(self.texts))]

    @property
    def are_notes(self) -> bool:
        return MOST_RETURNED * self.returned <= self.new and (self.is_noted or self.new >= LEAST_TEXTS)


class LeadingIndex:
    """What followed each first system message."""

    def __init__(self) -> None:
        self._following: FairMap[int, _Following] = FairMap(MAX_FIRST_TEXTS)

    def text_of_agent(self, tenant: str, messages: list[dict[str, Any]], reading: Reading) -> str:
        """The leading system text that names an agent; where it leaves notes out, so does `reading`."""
        count = leading_count(messages)
        if count == 0:
            return ""
        first = text_of(messages[0].get("content"))
        if count == 1:
            self._look_for_note(tenant, first, messages)
            return first
        if not self._is_first_alone(tenant, first, messages[1:count]):
            return leading_system_text(messages)
        reading.leave_notes_out()
        return first

    def _is_first_alone(self, tenant: str, first: str, following: list[dict[str, Any]]) -> bool:
        """Whether the leading system messages behind the first, `following`, are no part of the agent."""
        texts = [text_of(message.get("content")) for message in following]
        if any(map(opens_as_role, texts)):
            return False
        known = self._of(tenant, first)
        known.add(hash("\n".join(texts)))
        return known.are_notes

    def _look_for_note(self, tenant: str, first: str, messages: list[dict[str, Any]]) -> None:
        """A prompt whose only leading system message is `first`."""
        if len(messages) < LEAST_NOTED_MESSAGES:
            return
        if messages[-1].get("role") in LEADING_ROLES or messages[-2].get("role") in LEADING_ROLES:
            self._of(tenant, first).is_noted = True

    def _of(self, tenant: str, first: str) -> _Following:
        part = self._following.part(tenant)
        known = part.setdefault(hash(first), _Following())
        part.move_to_end(hash(first))
        self._following.trim(tenant)
        return known
