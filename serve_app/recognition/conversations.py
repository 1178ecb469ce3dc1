"""Which session a conversation belongs to when the client doesn't say (pure, bounded).

A chat client sends its whole history each time, so a later request begins with an earlier prompt.
Each accepted prompt leaves an `End` at the hash of its history (without the leading system messages:
the agents of a team share a history but not a system prompt; and without telling `user` from
`assistant`: each agent of a group chat calls its own turns the one and all others' the other). A
request that extends an end continues that session. Rules that keep strangers apart:

- A history that equals the one that its agent opened a session with starts a new session: two clients
  may open with the same words, the same greeting or the same examples. Only where the answer to it was
  cut a moment ago is it a retry. But an agent that hasn't opened so joins a session that another agent
  opened with the same long text and that waits: a supervisor hands its worker the task as it came.
- Of several sessions with the same end, one that no request has continued yet is taken first, the
  same agent's before others, the oldest first; a continued one (a fan-out from one point) or an
  agent's own repeated request (a retry) only if there is no other, and if no other session has since
  come to an earlier point and waits there (the same conversation once more, with the same answers).
- Where one of them was answered with the very turn that follows, it is that one. One that has gone on
  with another turn, and was answered with another one, is not continued. A request that is sent once more is
  such another session's, if one was answered so and waits; only after an answer that was cut is it a retry.
- An agent that is asked with its system prompt alone speaks first: what begins with its answer goes on with it, once.
- Only ends of prompts that were served count, so a few-shot prefix that many clients share doesn't
  join them; nor does one that was served, beyond `MAX_BRANCHES`.
"""

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime_actor.fair_map import FairMap
from serve_app.recognition.canonical import leading_count, text_of
from serve_app.recognition.ends import MAX_BRANCHES, MAX_ENDS, End, Ends
from serve_app.recognition.history import history_keys
from serve_app.recognition.quotes import worth
from serve_app.recognition.tails import Tail, TailIndex, tail_of
from serve_app.recognition.turns import turn_of_message

MAX_ANSWERS = 32_768
"""Answers remembered with their session, for histories that lack what led to them; the oldest goes first."""

MAX_ENDED = 4096
"""Sessions remembered as ended; the oldest goes first."""

JOIN_WITHIN_S = 600.0
"""How long a session waits for another agent that is handed its task."""

RETRY_WITHIN_S = 60.0
"""How long a request without turns whose answer was cut waits to be sent once more."""

LEAST_TASK_CHARS = 24
"""Openings shorter than this (a greeting) don't make two agents a team."""


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
    tail: Tail | None = None
    settled: bool = field(default=False)

    @property
    def gone_on(self) -> str | None:
        """The agent whose request was answered and goes on with this one, by whichever agent."""
        return self.end.agent if self.end is not None and self.has_answer else None


class ConversationIndex:
    """History hash -> ends, for all tenants of a gateway. `clock` gives monotonic seconds."""

    def __init__(self, max_ends: int = MAX_ENDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._ends = Ends(max_ends)
        self._said: FairMap[tuple[str, int], None] = FairMap(MAX_ANSWERS)
        self._ended: FairMap[str, None] = FairMap(MAX_ENDED)
        self._tails = TailIndex()
        self._numbers = itertools.count()
        self._clock = clock

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
        history = messages[len(messages) - len(keys) :]
        claim = self._match(tenant, agent, messages, history, keys, has_assistant, votes, is_like)
        claim.tail = tail_of(keys, history)
        return claim

    def _match(
        self,
        tenant: str,
        agent: str,
        messages: list[dict[str, Any]],
        history: list[dict[str, Any]],
        keys: list[int],
        has_assistant: bool,
        votes: Callable[[], dict[str, int]],
        is_like: Callable[[str], bool],
    ) -> Claim:
        known = self._ends.part(tenant)
        # Of a system text alone: unlike histories, those of two agents have nothing in common.
        alone = hash((tenant, agent))
        if alone in known or not known.keys().isdisjoint(keys):
            search = _Search(known, self._said.part(tenant), keys, history, agent, known.get(alone, []), votes)
            found, count = search.continued(has_assistant)
            least = _least_of_later(found, agent, history, count) if found is not None and count else None
            if least is not None:
                later, later_count = self._tails.continued(tenant, agent, keys, history, least)
                found, count = (later, later_count) if later_count else (found, count)
            if found is not None:
                self._ends.use(tenant, keys[count - 1] if count else alone)
                return _claim(tenant, found, keys, messages, count)
        weights = votes()
        session = max(weights, key=weights.__getitem__, default=None)
        if session is None and has_assistant and keys[-1] not in known:
            found, count = self._tails.continued(tenant, agent, keys, history)
            if found is not None:
                return _claim(tenant, found, keys, messages, count)
        if session is None and keys and not has_assistant and _size(messages) >= LEAST_TASK_CHARS:
            there = known.get(keys[-1], ())
            now_s = self._clock()
            cut = _cut_a_moment_ago(there, agent, now_s - RETRY_WITHIN_S)
            if cut is not None:
                return _claim(tenant, cut, keys, messages, len(keys))
            ended = self._ended.part(tenant)
            session = _session_to_join(there, agent, is_like, ended, now_s - JOIN_WITHIN_S)
        return Claim(tenant, session, keys[-1] if keys else alone)

    def record(self, claim: Claim, session: str, agent: str) -> None:
        """The request was accepted: its own history is now an end of `session`."""
        if claim.settled:
            return
        self.release(claim)
        if claim.end is not None:
            claim.end.branches += 1
        if claim.key is None:
            return
        claim.own = End(session, agent, next(self._numbers), self._clock(), opens=claim.session is None)
        self._ends.add(claim.tenant, claim.key, claim.own)
        if claim.tail is not None:
            self._tails.add(claim.tenant, claim.tail, claim.own)

    def answered(self, claim: Claim, turn: int | None, is_cut: bool, other_turns: Iterable[int] = ()) -> None:
        """The request of `claim` was answered so (see `turns.py`), or its answer was cut. `other_turns`: of further
        choices.
        """
        if claim.own is None:
            return
        claim.own.at_s = self._clock()
        claim.own.is_cut = is_cut
        claim.own.answer = None if is_cut else turn
        claim.own.answered_number = None if is_cut else next(self._numbers)
        if not is_cut:
            said = self._said.part(claim.tenant)
            said.update(((claim.own.session, one), None) for one in (turn, *other_turns) if one is not None)
            self._said.trim(claim.tenant)

    def ended(self, tenant: str, session: str) -> None:
        """The client says that it is over: nobody joins it any more."""
        self._ended.part(tenant)[session] = None
        self._ended.trim(tenant)

    def release(self, claim: Claim) -> None:
        """The request was refused: nothing is remembered of it."""
        if not claim.settled:
            claim.settled = True
            if claim.end is not None:
                claim.end.claims -= 1


def _claim(tenant: str, end: End, keys: list[int], messages: list[dict[str, Any]], count: int) -> Claim:
    """On an end that stands for `count` messages of a history with these prefixes."""
    end.claims += 1
    known_messages = len(messages) - len(keys) + count
    if count == len(keys):
        return Claim(tenant, end.session, keys[-1], end, known_messages)
    if end.followed_by is None:
        end.followed_by = keys[count]
    has_answer = messages[known_messages].get("role") == "assistant"
    return Claim(tenant, end.session, keys[-1], end, known_messages, has_answer)


def _least_of_later(end: End, agent: str, history: Sequence[Mapping[str, Any]], count: int) -> int | None:
    """How many messages stood at least before the last one of a prompt that a history may go on from rather than from
    this end of `count` messages. None if from no other: one answer follows.
    """
    if count < len(history):
        has_others = (
            len(history) > count + 2 and sum(message.get("role") == "assistant" for message in history[count:]) > 1
        )
        return count if has_others else None
    if end.agent != agent or end.is_cut:
        return None
    # It was sent before: by this session, or by one that was answered alike.
    answers = (at for at in range(len(history) - 1, 0, -1) if history[at].get("role") == "assistant")
    return next((at - 1 for at in answers), None)


@dataclass(frozen=True, slots=True)
class _Search:
    """For the end that a history goes on from: `keys` of its prefixes, `said` what sessions were answered, `alone` the
    ends of the agent's prompts without turns.
    """

    known: Mapping[int, list[End]]
    said: Collection[tuple[str, int]]
    keys: list[int]
    history: Sequence[dict[str, Any]]
    agent: str
    alone: list[End]
    votes: Callable[[], dict[str, int]]

    def continued(self, has_assistant: bool) -> tuple[End | None, int]:
        """That of the longest prefix, and the prefix's length."""
        taken: End | None = None
        count = 0
        is_repeated = False
        for length in range(len(self.keys) if has_assistant else len(self.keys) - 1, 0, -1):
            ends = self.known.get(self.keys[length - 1])
            if not ends:
                continue
            runs = _runs_answered_alike(ends, taken) if taken is not None and is_repeated else []
            quoted = _quoted(ends, self.votes)
            if quoted and taken is None:
                return _choose(quoted, self.agent), length
            is_whole = length == len(self.keys)
            ends = self._not_opened_so(ends) if is_whole else self._going_on(ends, length)
            if not ends:
                continue
            repeated = {end.session for end in ends if end.agent == self.agent} if is_whole else set()
            is_repeated = is_repeated or bool(repeated)
            after = taken.number if taken is not None else -1
            waiting = [end for end in ends if end.is_open and end.number > after and end.session not in repeated]
            waiting = waiting or runs
            if waiting or taken is None:
                taken, count = _choose(waiting or ends, self.agent), length
            if waiting:
                return taken, count
        spoke_first = self._spoke_first(taken) if taken is None or is_repeated else None
        return (taken, count) if spoke_first is None else (spoke_first, 0)

    def _spoke_first(self, repeated: End | None) -> End | None:
        """Where the agent was asked without turns and answered what the history begins with."""
        if not self.alone or not self.history or (turn := turn_of_message(self.history[0])) is None:
            return None
        ends = self.alone if repeated is None else _runs_answered_alike(self.alone, repeated)
        return next((end for end in ends if end.is_open and end.answer == turn), None)

    def _not_opened_so(self, ends: list[End]) -> list[End]:
        """Without the sessions that this agent opened with just this history, but for a retry's."""
        opened = {end.session for end in ends if end.opens and end.agent == self.agent and not end.is_cut}
        return [end for end in ends if end.session not in opened] if opened else ends

    def _going_on(self, ends: list[End], length: int) -> list[End]:
        """Those that were answered with the message after that prefix; else those of whose answer nothing is known;
        else those that nothing speaks against: a client may keep answers in words of its own, but always in the same.
        """
        if len(ends) == 1 and ends[0].is_open:
            return ends
        ends = [end for end in ends if end.branches < MAX_BRANCHES]
        message = self.history[length]
        if message.get("role") != "assistant":
            # Who was answered goes on with the answer, or did not keep it, once.
            return [end for end in ends if end.is_open or end.agent != self.agent]
        turn = turn_of_message(message)
        if turn is None:
            return ends
        alike = [end for end in ends if end.answer == turn]
        alike = alike or [end for end in ends if (end.session, turn) in self.said]
        unknown = [end for end in ends if end.answer is None]
        return alike or unknown or [end for end in ends if end.is_open or end.followed_by == self.keys[length]]


def _runs_answered_alike(ends: list[End], repeated: End) -> list[End]:
    """Of the ends at an earlier point those of other sessions that were answered there as the repeated request's was.

    They are runs at once, and what was sent once more is the next request of one of them. Not where the answer to
    it was cut: then it is a retry.
    """
    if repeated.is_cut:
        return []
    answers = {end.answer for end in ends if end.session == repeated.session and end.answer is not None}
    return [end for end in ends if end.is_open and end.session != repeated.session and end.answer in answers]


def _cut_a_moment_ago(ends: Sequence[End], agent: str, since_s: float) -> End | None:
    """The same request of this agent whose client went away: it is sent once more, as SDKs do by themselves."""
    cut = (end for end in ends if end.is_cut and end.is_open and end.agent == agent)
    return next((end for end in cut if end.at_s >= since_s), None)


def _session_to_join(
    ends: Sequence[End], agent: str, is_like: Callable[[str], bool], ended: Collection[str], since_s: float
) -> str | None:
    """A session that another agent opened and that waits for this one: it hasn't gone on without it.

    Not one of an agent that is worded like this one: prompts of one make, which open alike in any session. The task
    is handed on once it was answered; the oldest goes first, but one that has been left behind, since its agent
    opened another one later than that, is taken only where there is none but such.
    """
    like = {agent for agent in {end.agent for end in ends} if is_like(agent)}
    # What was cut and sent once more counts by that.
    others = [end for end in ends if not (end.is_cut and end.branches)]
    closed = {
        end.session
        for end in others
        if end.branches or end.is_cut or end.agent == agent or end.agent in like or end.session in ended
    }
    waiting = [end for end in others if end.session not in closed and end.at_s >= since_s]
    answered = [end for end in waiting if end.answered_number is not None]
    newest = {end.agent: end.number for end in ends}
    current = [end for end in answered if newest[end.agent] < (end.answered_number or 0)]
    if current or not answered:
        return next((end.session for end in current or waiting), None)
    return answered[-1].session


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
