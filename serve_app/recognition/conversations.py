"""Which session a conversation belongs to when the client doesn't say (pure, bounded).

A chat client sends its whole history each time, so a later request begins with an earlier prompt.
Each accepted prompt leaves an `End` at the hash of its history (without the leading system messages:
the agents of a team share a history but not a system prompt; and without telling `user` from
`assistant`: each agent of a group chat calls its own turns the one and all others' the other). A
request that extends an end continues that session. Rules that keep strangers apart:

- A history without an assistant turn that equals an end exactly starts a new session: two clients
  may open with the same words. But an agent that hasn't opened so joins the oldest session that
  another agent opened with the same long text and that hasn't gone on: a supervisor hands its
  worker the task as it came.
- Of several sessions with the same end, one that no request has continued yet is taken first, the
  same agent's before others, the oldest first; a continued one (a fan-out from one point) or an
  agent's own repeated request (a retry) only if there is no other, and if no other session has since
  come to an earlier point and waits there (the same conversation once more, with the same answers).
- Where one of them was answered with the very turn that follows, it is that one. A request that is sent once more is
  such another session's, if one was answered so and waits; only after an answer that was cut is it a retry.
- Only ends of prompts that were served count, so a few-shot prefix that many clients share doesn't
  join them.
"""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime_actor.fair_map import FairMap
from serve_app.recognition.canonical import canonical_json, composed, leading_count, text_of
from serve_app.recognition.quotes import worth
from serve_app.recognition.turns import turn_of_message

MAX_ENDS = 32_768
"""Distinct histories remembered; the least recently used is forgotten, its conversation then counts as new."""

MAX_SESSIONS_PER_END = 64
"""Sessions that stand at the same history; the oldest is forgotten first."""

LEAST_TASK_CHARS = 24
"""Openings shorter than this (a greeting) don't make two agents a team."""


@dataclass(slots=True)
class End:
    """The end of one accepted prompt; a later one has a higher number.

    `answer`: the turn that it was answered with, once it was (see `turns.py`); `is_cut`: its answer was cut.
    """

    session: str
    agent: str
    number: int
    claims: int = 0
    continued: bool = False
    answer: int | None = None
    is_cut: bool = False

    @property
    def is_open(self) -> bool:
        return self.claims == 0 and not self.continued


@dataclass(slots=True)
class Claim:
    """One request's hold on the end that it continues; `record` or `release` it exactly once.

    `known_messages`: how many leading messages that end stands for; `has_answer`: an assistant's turn follows them;
    `own`: the end that this request left itself.
    """

    tenant: str
    session: str | None
    key: int | None
    end: End | None = None
    known_messages: int = 0
    has_answer: bool = False
    own: End | None = None
    settled: bool = field(default=False)

    @property
    def gone_on(self) -> str | None:
        """The agent whose request was answered and goes on with this one, by whichever agent."""
        return self.end.agent if self.end is not None and self.has_answer else None


class ConversationIndex:
    """History hash -> ends, for all tenants of a gateway, who share its memory fairly (`FairMap`)."""

    def __init__(self, max_ends: int = MAX_ENDS) -> None:
        self._ends: FairMap[int, list[End]] = FairMap(max_ends)
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._ends)

    def match(
        self,
        tenant: str,
        agent: str,
        messages: list[dict[str, Any]],
        votes: Callable[[], dict[str, int]] = dict,
        is_like: Callable[[str], bool] = lambda _: False,
    ) -> Claim:
        """The session this history continues, or None; holds its end until `record` or `release`.

        `votes` (session -> weight) is asked when the history alone doesn't decide; `is_like` tells whether an
        agent's prompt is worded like this one's.
        """
        keys, has_assistant = history_keys(tenant, messages)
        known = self._ends.part(tenant)
        history = messages[len(messages) - len(keys) :]
        found, count = _continued(known, keys, has_assistant, agent, votes, history)
        if found is not None:
            found.claims += 1
            known_messages = len(messages) - len(keys) + count
            follows = history[count].get("role") if count < len(keys) else None
            return Claim(tenant, found.session, keys[-1], found, known_messages, follows == "assistant")
        weights = votes()
        session = max(weights, key=weights.__getitem__, default=None)
        if session is None and keys and not has_assistant and _size(messages) >= LEAST_TASK_CHARS:
            session = _session_to_join(known.get(keys[-1], ()), agent, is_like)
        return Claim(tenant, session, keys[-1] if keys else None)

    def record(self, claim: Claim, session: str, agent: str) -> None:
        """The request was accepted: its own history is now an end of `session`."""
        if claim.settled:
            return
        self.release(claim)
        if claim.end is not None:
            claim.end.continued = True
        if claim.key is None:
            return
        known = self._ends.part(claim.tenant)
        ends = known.setdefault(claim.key, [])
        claim.own = End(session, agent, next(self._numbers))
        ends.append(claim.own)
        del ends[:-MAX_SESSIONS_PER_END]
        known.move_to_end(claim.key)
        self._ends.trim(claim.tenant)

    def answered(self, claim: Claim, turn: int | None, is_cut: bool) -> None:
        """The request of `claim` was answered so (see `turns.py`), or its answer was cut."""
        if claim.own is not None:
            claim.own.is_cut = is_cut
            claim.own.answer = None if is_cut else turn

    def release(self, claim: Claim) -> None:
        """The request was refused: nothing is remembered of it."""
        if not claim.settled:
            claim.settled = True
            if claim.end is not None:
                claim.end.claims -= 1


def _continued(
    known: OrderedDict[int, list[End]],
    keys: list[int],
    has_assistant: bool,
    agent: str,
    votes: Callable[[], dict[str, int]],
    history: Sequence[dict[str, Any]],
) -> tuple[End | None, int]:
    """The end that a history with these prefixes goes on from, the longest first, and the prefix's length."""
    taken: End | None = None
    count = 0
    is_repeated = False
    if known.keys().isdisjoint(keys):
        return None, 0
    for length in range(len(keys) if has_assistant else len(keys) - 1, 0, -1):
        key = keys[length - 1]
        ends = known.get(key)
        if not ends:
            continue
        runs = _runs_answered_alike(ends, taken) if taken is not None and is_repeated else []
        quoted = _quoted(ends, votes)
        if quoted and taken is None:
            return _choose(quoted, agent), length
        if len(ends) > 1 and length < len(keys):
            ends = _answered_so(ends, turn_of_message(history[length]))
        repeated = {end.session for end in ends if end.agent == agent} if length == len(keys) else set()
        is_repeated = is_repeated or bool(repeated)
        after = taken.number if taken is not None else -1
        waiting = [end for end in ends if end.is_open and end.number > after and end.session not in repeated]
        waiting = waiting or runs
        if waiting or taken is None:
            known.move_to_end(key)
            taken, count = _choose(waiting or ends, agent), length
        if waiting:
            break
    return taken, count


def _answered_so(ends: list[End], turn: int | None) -> list[End]:
    """Those that were answered with what follows; else those of whose answer nothing is known, else all."""
    if turn is None:
        return ends
    alike = [end for end in ends if end.answer == turn]
    return alike or [end for end in ends if end.answer is None] or ends


def _runs_answered_alike(ends: list[End], repeated: End) -> list[End]:
    """Of the ends at an earlier point those of other sessions that were answered there as the repeated request's was.

    They are runs at once, and what was sent once more is the next request of one of them. Not where the answer to
    it was cut: then it is a retry.
    """
    if repeated.is_cut:
        return []
    answers = {end.answer for end in ends if end.session == repeated.session and end.answer is not None}
    return [end for end in ends if end.is_open and end.session != repeated.session and end.answer in answers]


def _session_to_join(ends: Sequence[End], agent: str, is_like: Callable[[str], bool]) -> str | None:
    """The first session that other agents opened and that hasn't gone on without this one.

    Not one of an agent that is worded like this one: prompts of one make, which open alike in any session.
    """
    closed = {end.session for end in ends if end.continued or end.agent == agent or is_like(end.agent)}
    return next((end.session for end in ends if end.session not in closed), None)


def _size(messages: list[dict[str, Any]]) -> int:
    """Characters that an opening says."""
    return sum(worth(text_of(message.get("content"))) for message in messages[leading_count(messages) :])


def _quoted(ends: list[End], votes: Callable[[], dict[str, int]]) -> list[End]:
    """Of the ends of several sessions those of the one that the request repeats most of, if of any."""
    if len({end.session for end in ends}) < 2:
        return []
    weights = votes()
    best = max(ends, key=lambda end: weights.get(end.session, 0))
    return [end for end in ends if end.session == best.session] if best.session in weights else []


def _choose(ends: list[End], agent: str) -> End:
    still_open = [end for end in ends if end.is_open]
    for end in still_open:
        if end.agent == agent:
            return end
    if still_open:
        return still_open[0]
    for end in reversed(ends):
        if end.agent == agent:
            return end
    return ends[-1]


def history_keys(tenant: str, messages: list[dict[str, Any]]) -> tuple[list[int], bool]:
    """One key for each prefix of the history, and whether it holds an assistant turn.

    Keys never leave the process, so the interpreter's own keyed hash of strings will do; it is several times
    faster than a digest over a long history.
    """
    key = hash(("history", tenant))
    keys: list[int] = []
    has_assistant = False
    for message in messages[leading_count(messages) :]:
        role = message.get("role")
        if role == "assistant":
            has_assistant = True
            role = "user"
        content = message.get("content")
        # Clients may tidy up what they keep.
        text = (content if isinstance(content, str) else text_of(content)).strip()
        if not text.isascii() or "\r" in text:
            text = composed(text.replace("\r\n", "\n"))
        key = hash((key, role, text))
        if len(message) > 2:
            calls, answers = message.get("tool_calls"), message.get("tool_call_id")
            if calls or answers:
                key = hash((key, canonical_json(calls or ()), str(answers or "")))
        keys.append(key)
    return keys, has_assistant
