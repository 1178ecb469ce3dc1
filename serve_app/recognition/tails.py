"""Conversations whose last message stood beside a note that its client doesn't keep (pure, bounded).

A reminder, a falling count of tokens, retrieved pages, `Reply in JSON.`: what a harness puts beside the last message of
each turn and drops at the next is in no later history, so no later prompt extends the whole of an earlier one (see
`conversations.py`). But all that is kept does: what stood before the last message, and that message as the head or
the end of what was sent. The note may be a message too, of the system's or all in tags.

That is evidence as long as it is one session's. Of several sessions of the agent that stand so only the one is
continued which was answered with the turn that follows; where several were, none: runs of one task at once.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime_actor.fair_map import FairMap
from serve_app.recognition.canonical import LEADING_ROLES
from serve_app.recognition.ends import MAX_BRANCHES, End
from serve_app.recognition.quotes import worth
from serve_app.recognition.turns import turn_of_message

MAX_PLACES = 8_192
"""Places of last messages remembered; the one not seen for longest is forgotten."""

MAX_TAILS_PER_PLACE = 16
"""Last messages at one place, those that were gone on from forgotten first. One with more open ones tells nothing any
more: what is missing there might be what goes on.
"""

MAX_PLACES_TRIED = 32
"""Of one history, the longest prefixes first: each is compared, which may read all that is before it."""

MAX_END_CHARS = 512
"""Of a last message that are kept, from either end."""

LEAST_OVERLAP_CHARS = 64
"""Of a message longer than that: what either end of it must have in common with what was sent, beside the note."""

LEAST_SAID_CHARS = 24
"""What users have said in all: many begin with the same greeting."""

_OPENS = re.compile(r"<([A-Za-z][\w-]{0,31})>")
_CLOSES = re.compile(r"</([A-Za-z][\w-]{0,31})>\Z")
MAX_TAG_CHARS = 36


Tail = tuple[int, str]
"""Key of what stands before a prompt's last message, 0 if nothing does, and that message without notes in tags."""


@dataclass(slots=True)
class _Sent:
    """What is remembered of one."""

    end: End
    head: str
    tail: str
    size: int

    def holds(self, text: str) -> bool:
        """Whether it begins or ends with `text`, whole words of it."""
        size = len(text)
        if size <= MAX_END_CHARS:
            if self.head.startswith(text) and not self.head[size : size + 1].isalnum():
                return True
            return self.tail.endswith(text) and not self.tail[-size - 1 : -size].isalnum()
        common = MAX_END_CHARS - (self.size - size)
        if not LEAST_OVERLAP_CHARS <= common <= MAX_END_CHARS:
            return False
        if text.startswith(self.head) and self.tail[:common] == text[-common:]:
            return True
        return text.endswith(self.tail) and self.head[-common:] == text[:common]


class TailIndex:
    """Last messages by what stands before them, those of openings by lines of their own."""

    def __init__(self) -> None:
        self._sent: FairMap[int, tuple[_Sent, ...]] = FairMap(MAX_PLACES)

    def add(self, tenant: str, tail: Tail, end: End) -> None:
        """A prompt with that last message was accepted and left that end."""
        part = self._sent.part(tenant)
        place, text = tail
        sent = _Sent(end, text[:MAX_END_CHARS], text[-MAX_END_CHARS:], len(text))
        for key in (place,) if place else _keys_of_opening(text):
            if key in part:
                part[key] = (*_kept(part[key]), sent)
                part.move_to_end(key)
            else:
                part[key] = (sent,)
        self._sent.trim(tenant)

    def continued(
        self, tenant: str, agent: str, keys: Sequence[int], history: Sequence[Mapping[str, Any]], known: int = 0
    ) -> tuple[End | None, int]:
        """The end that a history with these prefixes goes on from, and how many messages that stands for: more than
        `known`. Without an end, but with messages: there are several.
        """
        part = self._sent.part(tenant)
        if not part:
            return None, 0
        lowest = _without_notes_before(history, known)
        found = (count for count in range(len(keys), max(0, lowest - 1), -1) if keys[count - 1] in part)
        counts = [*itertools.islice(found, MAX_PLACES_TRIED)]
        for count in (*counts, 0) if lowest == 0 else counts:
            at = count
            while at < len(history) and _role(history[at]) in LEADING_ROLES:
                at += 1
            # What was said there is in this history if it was answered.
            if known <= at < len(history) - 1 and _role(history[at + 1]) == "assistant" and _may_be_last(history[at]):
                ends = _ends_at(part, agent, keys[count - 1] if count else 0, _without_blocks(_said(history[at])))
                if ends and _has_said_enough(history[: at + 1]):
                    return _choose(ends, turn_of_message(history[at + 1]), keys[at + 1]), at + 1
        return None, 0


def _kept(there: tuple[_Sent, ...]) -> tuple[_Sent, ...]:
    """What stays of one place when one comes to it."""
    if len(there) < MAX_TAILS_PER_PLACE:
        return there
    closed = next((at for at, sent in enumerate(there) if not sent.end.is_open), None)
    if closed is None and len(there) == MAX_TAILS_PER_PLACE:
        return there
    lost = closed or 0
    return there[:lost] + there[lost + 1 :]


def _ends_at(part: Mapping[int, Sequence[_Sent]], agent: str, place: int, text: str) -> list[End]:
    """Of the agent's prompts there whose last message held `text`."""
    if place:
        of_place = [part.get(place, ())]
    elif _first_line(text) in part or _last_line(text) in part:
        of_place = [part.get(key, ()) for key in _keys_of_opening(text)]
    else:
        return []
    whole = [sent for sent in of_place if len(sent) <= MAX_TAILS_PER_PLACE]
    found = {id(one.end): one.end for sent in whole for one in sent if one.end.agent == agent and one.holds(text)}
    return [*found.values()]


def tail_of(keys: Sequence[int], history: Sequence[Mapping[str, Any]]) -> Tail | None:
    """Of a history with these prefixes; None where an assistant's turn is the last."""
    at = before = len(history) - 1
    if at < 1 or _role(history[-1]) != "user" or _role(history[-2]) != "assistant":
        while at >= 0 and _is_note(history, at):
            at -= 1
        if at < 0 or _role(history[at]) == "assistant":
            return None
        before = _without_notes_before(history, at)
    return (keys[before - 1] if before else 0, _without_blocks(_said(history[at])))


def _without_notes_before(history: Sequence[Mapping[str, Any]], count: int) -> int:
    while count and _role(history[count - 1]) in LEADING_ROLES:
        count -= 1
    return count


def _role(message: Mapping[str, Any]) -> Any:
    return message.get("role")


def _may_be_last(message: Mapping[str, Any]) -> bool:
    role = _role(message)
    return role != "assistant" and role not in LEADING_ROLES


def _is_note(history: Sequence[Mapping[str, Any]], at: int) -> bool:
    """Whether that message says nothing of its own: the system's, or all in tags behind another one."""
    role = _role(history[at])
    if role in LEADING_ROLES:
        return True
    if role != "user" or at == 0 or _role(history[at - 1]) == "assistant":
        return False
    text = _said(history[at])
    opens = _OPENS.match(text)
    return opens is not None and text.find(f"</{opens[1]}>") == len(text) - len(opens[1]) - 3


def _said(message: Mapping[str, Any]) -> str:
    """Text alone: what else a message holds may be large."""
    content = message.get("content")
    if isinstance(content, list):
        texts = (part.get("text") if isinstance(part, dict) else part for part in content)
        content = "\n".join(text for text in texts if isinstance(text, str))
    return content.strip() if isinstance(content, str) else ""


def _without_blocks(text: str) -> str:
    """Without what stands in tags before or behind the rest, if there is a rest."""
    whole = text
    while text[:1] == "<" and (opens := _OPENS.match(text)) is not None:
        end = text.find(f"</{opens[1]}>")
        if end < 0:
            break
        text = text[end + len(opens[1]) + 3 :].lstrip()
    while text[-1:] == ">" and (closes := _CLOSES.search(text, max(0, len(text) - MAX_TAG_CHARS))) is not None:
        start = text.rfind(f"<{closes[1]}>")
        if start < 0:
            break
        text = text[:start].rstrip()
    return text or whole


def _first_line(text: str) -> int:
    end = text.find("\n")
    return hash(text if end < 0 else text[:end].strip())


def _last_line(text: str) -> int:
    return hash(text[text.rfind("\n") + 1 :].strip())


def _keys_of_opening(text: str) -> set[int]:
    """Of its first and its last line, one of which is the same whatever stands before or behind, and of the longest:
    many openings may begin and end alike.
    """
    if "\n" not in text:
        return {hash(text)}
    return {_first_line(text), _last_line(text), hash(max(text[: 2 * MAX_END_CHARS].split("\n"), key=len).strip())}


def _has_said_enough(history: Sequence[Mapping[str, Any]]) -> bool:
    return sum(worth(_said(message)) for message in history if _role(message) == "user") >= LEAST_SAID_CHARS


def _choose(ends: Sequence[End], turn: int | None, followed_by: int) -> End | None:
    """The only session's whose prompt was answered with `turn`, else that waits or went on so."""
    ends = [end for end in ends if end.branches < MAX_BRANCHES]
    alike = [end for end in ends if turn is not None and end.answer == turn]
    waiting = [end for end in ends if end.is_open or end.followed_by == followed_by]
    for some in ([end for end in alike if end.is_open], alike, waiting):
        if some:
            return some[-1] if len({end.session for end in some}) == 1 else None
    return None
