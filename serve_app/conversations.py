"""Which session a conversation belongs to when the client doesn't say (pure, bounded).

A chat client sends its whole history each time, so a later request begins with an earlier prompt.
Each accepted prompt leaves an `End` at the hash of its history (without the leading system messages:
the agents of a team share a history but not a system prompt). A request that extends an end
continues that session. Rules that keep strangers apart:

- A history without an assistant turn that equals an end exactly starts a new session: two clients
  may open with the same words.
- Of several sessions with the same end, one that no request has continued yet is taken first, the
  same agent's before others, the oldest first; a continued one only if there is no other (a fan-out
  from one point).
- Only ends of prompts that were served count, so a few-shot prefix that many clients share doesn't
  join them.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from serve_app.canonical import canonical_json, leading_count, text_of

MAX_ENDS = 32_768
"""Distinct histories remembered; the least recently used is forgotten, its conversation then counts as new."""

MAX_SESSIONS_PER_END = 64
"""Sessions that stand at the same history; the oldest is forgotten first."""


@dataclass(slots=True)
class End:
    """The end of one accepted prompt."""

    session: str
    agent: str
    claims: int = 0
    continued: bool = False

    @property
    def is_open(self) -> bool:
        return self.claims == 0 and not self.continued


@dataclass(slots=True)
class Claim:
    """One request's hold on the end that it continues; `record` or `release` it exactly once.

    `known_messages`: how many leading messages that end stands for.
    """

    session: str | None
    key: int | None
    end: End | None = None
    known_messages: int = 0
    settled: bool = field(default=False)


class ConversationIndex:
    """History hash -> ends, for all tenants of a gateway; the tenant is part of the hash."""

    def __init__(self, max_ends: int = MAX_ENDS) -> None:
        self._max_ends = max_ends
        self._ends: OrderedDict[int, list[End]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ends)

    def match(
        self,
        tenant: str,
        agent: str,
        messages: list[dict[str, Any]],
        votes: Callable[[], dict[str, int]] = dict,
    ) -> Claim:
        """The session this history continues, or None; holds its end until `record` or `release`.

        `votes` (session -> weight) is asked when the history alone doesn't decide.
        """
        keys, has_assistant = history_keys(tenant, messages)
        for index in range(len(keys) - 1, -1, -1):
            if index == len(keys) - 1 and not has_assistant:
                continue
            ends = self._ends.get(keys[index])
            if ends:
                self._ends.move_to_end(keys[index])
                end = _choose(ends, agent, votes)
                end.claims += 1
                return Claim(end.session, keys[-1], end, len(messages) - len(keys) + index + 1)
        weights = votes()
        return Claim(max(weights, key=weights.__getitem__, default=None), keys[-1] if keys else None)

    def record(self, claim: Claim, session: str, agent: str) -> None:
        """The request was accepted: its own history is now an end of `session`."""
        if claim.settled:
            return
        self.release(claim)
        if claim.end is not None:
            claim.end.continued = True
        if claim.key is None:
            return
        ends = self._ends.setdefault(claim.key, [])
        ends.append(End(session, agent))
        del ends[:-MAX_SESSIONS_PER_END]
        self._ends.move_to_end(claim.key)
        while len(self._ends) > self._max_ends:
            self._ends.popitem(last=False)

    def release(self, claim: Claim) -> None:
        """The request was refused: nothing is remembered of it."""
        if not claim.settled:
            claim.settled = True
            if claim.end is not None:
                claim.end.claims -= 1


def _choose(ends: list[End], agent: str, votes: Callable[[], dict[str, int]]) -> End:
    if len(ends) > 1 and len({end.session for end in ends}) > 1:
        weights = votes()
        best = max(ends, key=lambda end: weights.get(end.session, 0))
        if best.session in weights:
            ends = [end for end in ends if end.session == best.session]
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
        has_assistant = has_assistant or role == "assistant"
        content = message.get("content")
        text = content if isinstance(content, str) else text_of(content)
        calls, answers = message.get("tool_calls"), message.get("tool_call_id")
        key = hash((key, role, text))
        if calls or answers:
            key = hash((key, canonical_json(calls or ()), str(answers or "")))
        keys.append(key)
    return keys, has_assistant
