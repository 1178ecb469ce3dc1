"""Which session a prompt belongs to by what it repeats (pure, bounded).

Frameworks that write each prompt anew break the chain of histories, yet a team's prompts repeat its own
texts: an agent is handed what another one answered, or the task that another one was given. Lines are
remembered with the session they came from. A line says something as long as one session alone has it, and

- an answer of that session holds it: nobody else has seen that text; or
- another agent of that session sent it, this one never did, and this agent is known from other sessions: what
  its framework always says is common by then, what is left is the task.

Where several sessions have a line, as runs of one task with the same answers do, it still says something while
exactly one of them waits for it: its answer held the line, no request there has had it since, and the conversation
that it was an answer in has not gone on.

A turn of a word or two is no line, but it is one together with what was said before it: so a client that sends the
newest few messages alone goes on with its session.

A first-time agent never joins by text it was given: two strangers may use one framework's wording. Nor does anyone by
the greeting that a page puts into the assistant's mouth, in the words that models like as well.
"""

import itertools
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from runtime_actor.fair_map import FairMap
from serve_app.recognition.canonical import leading_count, text_of

MAX_LINES = 65_536
"""Lines remembered for all tenants; the one not seen for longest is forgotten first."""

MAX_AGENTS = 4096
"""Agents remembered with the session they were first seen in."""

MAX_LINES_PER_TEXT = 256
"""Lines of one prompt or answer that are looked at, from both ends of the conversation."""

MAX_TEXT_CHARS = 16_384
"""Characters of one message that are looked at, half from either end."""

MAX_PROMPT_CHARS = 6144
"""Characters of all messages that are looked at, so that a long prompt costs no more than a short one."""

ALWAYS_READ = 3
"""The newest message, the oldest and the second newest are looked at in any case: debaters' answers are as long."""

LEAST_LINE_CHARS = 24
LEAST_LINE_SIGNS = 16
"""Of Chinese, Japanese and Korean, which say as much with fewer (see `worth`)."""

MAX_SHORT_CHARS = 64
"""A turn that is longer or has a line of its own is not taken together with what was said before it."""

MAX_BEFORE_CHARS = 256
"""Of each message before it."""

MAX_GREETING_CHARS = 128
"""A longer turn at the head of a history is an agent's: teams hand them on."""

NEWEST_MESSAGES = 8
"""Of a conversation, among which short turns are looked for."""

LEAST_EVIDENCE_CHARS = 40
ANSWER_WEIGHT = 4
LEAST_QUOTED = 0.5
"""How much of an answer must be repeated where its lines are not one session's alone."""

MAX_SENDERS = 4
MAX_HANDED_OVER = 2048
"""Latest answers, one an agent of a session, whose lines may wait for a request."""

MAX_WAITING = 4
"""Sessions that one line of an answer may wait in; beyond it the line is everybody's and waits nowhere."""

_MARKS = " \t\r*-#>`.0123456789()[]"
"""Stripped from the head of a line: lists are numbered anew when they are quoted."""

_STOPS = ". *`\r\t"
_WIDE_STOPS = "：。！？；"

_ADDRESS = "You are "
"""How a role that one agent describes is handed to another."""

Lines = dict[int, str]
"""Key -> text. Keys are the interpreter's own string hashes: they never leave the process."""


@dataclass(slots=True)
class _Seen:
    """Where a line was seen: its one session, the agents that sent it, when it was an answer's if it was.

    `waiting`: sessions with it in an answer and in no request since, and that answer's characters; None once there
    were too many. A shared record stands for several lines: it is copied before it is changed.
    """

    session: str
    senders: tuple[str, ...] = ()
    answered: int = 0
    is_common: bool = False
    waiting: tuple[tuple[str, int], ...] | None = ()
    is_shared: bool = False

    @property
    def waits_in(self) -> tuple[str, int] | None:
        return self.waiting[0] if self.waiting and len(self.waiting) == 1 else None


class Origin(NamedTuple):
    """`answered`: when an answer first held the line, 0 if none did; `is_handed_on`: by one agent to another."""

    session: str
    answered: int
    is_handed_on: bool


class QuoteIndex:
    """Lines of prompts and answers -> session, each tenant's apart; tenants share the memory fairly."""

    def __init__(self, max_lines: int = MAX_LINES, max_agents: int = MAX_AGENTS) -> None:
        self.now = 0
        """Answers noted so far, which is all the time that counts here."""
        self._lines: FairMap[int, _Seen] = FairMap(max_lines)
        self._homes: FairMap[str, str | None] = FairMap(max_agents)
        self._handed_over: FairMap[tuple[str, str], list[int]] = FairMap(MAX_HANDED_OVER)

    def __len__(self) -> int:
        return len(self._lines)

    def vote(
        self,
        tenant: str,
        conversation: Lines,
        system: Lines,
        agent: str,
        speaker: str,
        greeting: Collection[int] = (),
    ) -> dict[str, int]:
        """Session -> weight of the evidence for it; sessions with too little are left out.

        `speaker` tells an agent's prompts apart that differ by more than their conversation. What a system text
        shares with another agent's says nothing: prompts of one make share more than a task. `greeting`: as of
        `Reading`. It is a page's, unless this very speaker was answered so and has not gone on from there yet.
        """
        known_lines = self._lines.part(tenant)
        seen_before = known_lines.keys()
        if seen_before.isdisjoint(conversation) and seen_before.isdisjoint(system):
            return {}
        votes: Counter[str] = Counter()
        waiting: Counter[tuple[str, int]] = Counter()
        is_known = self._homes.part(tenant).get(agent, "") is None
        for lines, may_share in ((conversation, is_known), (system, False)):
            for key, text in lines.items():
                seen = known_lines.get(key)
                if seen is None or (key in greeting and not self._is_told(tenant, key, seen, speaker)):
                    continue
                size = worth(text)
                if seen.is_common:
                    if seen.waits_in is not None:
                        waiting[seen.waits_in] += size
                elif seen.answered:
                    votes[seen.session] += ANSWER_WEIGHT * size
                elif may_share and speaker not in seen.senders:
                    votes[seen.session] += size
        if not votes:
            for (session, answered), size in waiting.items():
                votes[session] += ANSWER_WEIGHT * size if size >= LEAST_QUOTED * answered else 0
        return {session: weight for session, weight in votes.items() if weight >= LEAST_EVIDENCE_CHARS}

    def _is_told(self, tenant: str, key: int, seen: _Seen, speaker: str) -> bool:
        """Whether an answer with that line was this speaker's last one in a session that waits for it."""
        answers = (self._handed_over.get(tenant, (session, speaker)) for session, _ in seen.waiting or ())
        return any(keys is not None and key in keys for keys in answers)

    def note(
        self,
        tenant: str,
        keys: Sequence[int],
        session: str,
        agent: str,
        speaker: str,
        gone_on: str | None = None,
    ) -> None:
        """A request with the lines of these keys was accepted as part of `session`.

        `gone_on`: the speaker whose last answer there stands in its history, in whatever words.
        """
        homes, known = self._homes.part(tenant), self._lines.part(tenant)
        if homes.setdefault(agent, session) != session:
            homes[agent] = None
        homes.move_to_end(agent)
        self._homes.trim(tenant)
        known_before = [] if known.keys().isdisjoint(keys) else [key for key in keys if key in known]
        # Most lines are never seen again: until then one record stands for all that came with them.
        together = _Seen(session, (speaker,), is_shared=True)
        for key in keys if not known_before else [key for key in keys if key not in known]:
            known[key] = together
        for key in known_before:
            seen = _at(known, key, session)
            if speaker not in seen.senders and len(seen.senders) < MAX_SENDERS:
                seen.senders = (*seen.senders, speaker)
            self._got(seen, session)
        for one in dict.fromkeys((speaker, gone_on or speaker)):
            for key in self._handed_over.pop(tenant, (session, one)) or ():
                self._got(known.get(key), session)
        self._lines.trim(tenant)

    def note_answer(self, tenant: str, lines: Lines, session: str, speaker: str) -> None:
        """A request of `speaker` in `session` was answered so."""
        self.now += 1
        handed_over = self._handed_over.part(tenant)
        handed_over[session, speaker] = list(lines)
        handed_over.move_to_end((session, speaker))
        self._handed_over.trim(tenant)
        known = self._lines.part(tenant)
        answered = sum(map(worth, lines.values()))
        for key in lines:
            seen = _at(known, key, session)
            if not seen.senders:
                seen.answered = seen.answered or self.now
            self._got(seen, session)
            if seen.waiting is not None:
                seen.waiting = (*seen.waiting, (session, answered)) if len(seen.waiting) < MAX_WAITING else None
        self._lines.trim(tenant)

    @staticmethod
    def _got(seen: _Seen | None, session: str) -> None:
        """`session` waits for that line no longer."""
        if seen is not None and seen.waiting:
            seen.waiting = tuple(place for place in seen.waiting if place[0] != session)

    def origin(self, tenant: str, key: int) -> Origin | None:
        """Where a line of one session alone comes from; None of any other."""
        seen = self._lines.get(tenant, key)
        if seen is None or seen.is_common:
            return None
        return Origin(seen.session, seen.answered, seen.answered > 0 or len(seen.senders) > 1)


def _at(known: OrderedDict[int, _Seen], key: int, session: str) -> _Seen:
    seen = known.get(key)
    if seen is None:
        seen = known[key] = _Seen(session)
    elif seen.is_shared:
        seen = known[key] = _Seen(seen.session, seen.senders)
    if seen.session != session:
        seen.is_common = True
    known.move_to_end(key)
    return seen


def lines_of_messages(messages: Sequence[dict[str, Any]]) -> Lines:
    """Distinct lines worth comparing; the newest and the oldest messages come first."""
    return _lines_of(_texts_of(messages))


def lines_of_answer(text: str, before: Sequence[dict[str, Any]] = ()) -> Lines:
    """Of an answer to a conversation that ends with the messages `before`."""
    return _lines_of((text,)) or _short_turn(text, before)


def _short_turn(text: str, before: Sequence[dict[str, Any]]) -> Lines:
    """A turn without a line of its own, with as much of what was said before it as makes one; if there is that much.

    Who said what doesn't count: agents of a group chat call each other's turns the user's.
    """
    if len(text) > MAX_SHORT_CHARS or not (said := text.strip()) or _lines_of((said,)):
        return {}
    for message in reversed(before):
        said = f"{text_of(message.get('content')).strip()[-MAX_BEFORE_CHARS:]}\n{said}"
        if worth(said) > LEAST_LINE_CHARS:
            return {hash(said): said}
    return {}


class Reading:
    """The lines of one request's messages, each text read once and only if it is asked for."""

    __slots__ = ("_asked", "_conversation", "_lines", "_opening", "_system", "_system_lines")

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        leading = leading_count(messages)
        self._system = messages[:leading]
        self._conversation = messages[leading:]
        self._opening = ""
        self._system_lines: Lines | None = None
        self._asked: Lines | None = None
        self._lines: Lines | None = None

    def leave_notes_out(self) -> None:
        """Of the leading system messages the first alone counts."""
        del self._system[1:]

    @property
    def system(self) -> Lines:
        """Of the leading system messages."""
        if self._system_lines is None:
            self._system_lines = lines_of_messages(self._system)
        return self._system_lines

    @property
    def asked(self) -> Lines:
        """Of the first message of a user, which may hold a role's fixed text."""
        if self._asked is None:
            opening = next((message for message in self._conversation if message.get("role") == "user"), None)
            self._opening = "" if opening is None else text_of(opening.get("content"))
            self._asked = _lines_of((self._opening,))
        return self._asked

    @property
    def greeting(self) -> Lines:
        """Of the short turn of the assistant's that the conversation begins with, before a user's."""
        roles = [message.get("role") for message in self._conversation[:2]]
        text = text_of(self._conversation[0].get("content")) if roles == ["assistant", "user"] else ""
        return _lines_of((text,)) if 0 < len(text) <= MAX_GREETING_CHARS else {}

    @property
    def newest(self) -> list[dict[str, Any]]:
        """The last messages of the conversation, which its answer follows."""
        return self._conversation[-NEWEST_MESSAGES:]

    @property
    def conversation(self) -> Lines:
        if self._lines is None:
            self._lines = _lines_of(_texts_of(self._conversation), self._opening, self._asked)
            newest = self.newest
            for at, message in enumerate(newest):
                text = text_of(message.get("content"))
                if at and len(text) <= MAX_SHORT_CHARS:
                    self._lines |= _short_turn(text, newest[:at])
        return self._lines


def _texts_of(messages: Sequence[dict[str, Any]]) -> Iterable[str]:
    return (text_of(message.get("content")) for message in _from_both_ends(messages))


def _from_both_ends(messages: Sequence[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    low, high = 0, len(messages) - 1
    while low <= high:
        yield messages[high]
        if low < high:
            yield messages[low]
        low, high = low + 1, high - 1


def _lines_of(texts: Iterable[str], known: str = "", known_lines: Lines | None = None) -> Lines:
    """The lines of one text may be known already."""
    found: Lines = {}
    left = MAX_PROMPT_CHARS
    for number, text in enumerate(texts):
        if known_lines is not None and text is known:
            found.update(known_lines)
        else:
            _add_lines(text, found)
        left -= min(len(text), MAX_TEXT_CHARS + 1)
        if (left <= 0 and number + 1 >= ALWAYS_READ) or len(found) >= MAX_LINES_PER_TEXT:
            break
    return found if len(found) <= MAX_LINES_PER_TEXT else dict(itertools.islice(found.items(), MAX_LINES_PER_TEXT))


def _add_lines(text: str, found: Lines) -> None:
    """The lines and sentences of a text that are long enough, without what marks them in a list; colons are stops."""
    if len(text) > MAX_TEXT_CHARS:
        text = text[: MAX_TEXT_CHARS // 2] + "\n" + text[-MAX_TEXT_CHARS // 2 :]
    is_ascii = text.isascii()
    if not is_ascii:
        for stop in _WIDE_STOPS:
            text = text.replace(stop, "\n")
    least = LEAST_LINE_CHARS if is_ascii else LEAST_LINE_SIGNS
    # A character alone is found ten times faster than two, and several from behind, where the first of them, which
    # is rarer than a space, is what is looked for, twice as fast as from the front.
    pieces = [piece for piece in text.replace(":", ".").replace("\n", ". ").rsplit(". ") if len(piece) >= least]
    # To look at both ends takes a third of the time that stripping nothing takes.
    lines = [
        piece if piece[0] not in _MARKS and piece[-1] not in _STOPS else piece.lstrip(_MARKS).rstrip(_STOPS)
        for piece in pieces
    ]
    if text.rfind(_ADDRESS) >= 0:
        lines = [line.removeprefix(_ADDRESS) for line in lines]
    lines = [
        line for line in lines if len(line) >= LEAST_LINE_CHARS or (not is_ascii and worth(line) >= LEAST_LINE_CHARS)
    ]
    found.update(zip(map(hash, lines), lines, strict=True))


def worth(text: str) -> int:
    """Characters; one that takes three bytes counts as one and a half, since it says more than a letter."""
    return len(text) if text.isascii() else max(len(text), len(text.encode()) // 2)
