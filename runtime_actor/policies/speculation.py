"""Speculative agent execution: a session's next request is started before it is asked for.

After each answer the policy says what the session's next request will be: whose, and every field of it, from the
template learnt at this place of earlier sessions. Right is only a guess that is the same in every field, so one
share says both how certain the next agent is and how well its input is known. Guesses are made and judged all the
time and cost nothing; started are those of places where lately almost all were right, within a budget of tokens.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from runtime_actor.fair_map import FairMap
from runtime_actor.messages import SessionEnded
from runtime_actor.policies.base import (
    GATEWAY,
    Clock,
    GuessEnded,
    GuessSuggestion,
    Observation,
    RequestSent,
    RequestServed,
    RequestView,
)
from runtime_actor.policies.own import OwnPolicy
from runtime_actor.policies.request_templates import Frame, Source, Template, asked_text, learnt
from runtime_actor.settings import AnyPolicySettings, number

MAX_SESSIONS = 2048
MAX_PLACES = 1024
"""Places whose request is known: (agent that answered, how many answers there were), by tenant."""
MAX_FRAMES = 1024
MAX_ACCOUNTS = 4096
MAX_STEPS = 32
"""Answers of a session that are kept; a longer session isn't guessed any further."""
MAX_SESSION_CHARS = 131_072
MAX_CHARS = 1 << 26
"""Of all sessions' texts; beyond it a session is forgotten, of tenants in fair parts, the longest unseen first."""
OUTCOMES = 16
"""Guesses at one place by which it is judged."""
RELEARN_EVERY = 8
"""At a place that was never right lately, only so many misses later another template is looked for."""
ACCOUNT_TOKENS = 1_000_000
"""What was served longer ago than about so many tokens gives no more credit."""
DELAYS = 256
"""First items of answers by whose delay a slow replica is told."""
MIN_DELAYS = 64
MIN_HEDGE_S = 0.1
HEDGED_METHODS = ("chat", "completions")
SIDE_EFFECTS = ("tools", "functions")


@dataclass(frozen=True, slots=True)
class SpeculationOptions:
    """A place's guesses are started once `min_seen` were made there and a share of `min_probability` of the last
    16 was right. `max_waste`: tokens of guesses that nobody asked for, as a share of the tenant's tokens.
    `max_wait_s` is how long a guess waits for its request. `max_guesses` run at once, and only while no more than
    `max_load` of the engines' places are taken. `allow_tools`: also requests that offer tools.
    `hedge_share`: so many of all requests may be sent to a second replica when the first is slower than
    `hedge_factor` times what 95 of 100 took; 0: none."""

    min_seen: int = number(3, 1, 1000)
    min_probability: float = number(0.9, 0.5, 1.0)
    max_waste: float = number(0.1, 0.0, 1.0)
    max_wait_s: float = number(30.0, 0.1, 600.0)
    max_guesses: int = number(8, 1, 1024)
    max_load: float = number(0.75, 0.0, 1.0)
    allow_tools: bool = False
    hedge_share: float = number(0.0, 0.0, 0.5)
    hedge_factor: float = number(2.0, 1.0, 100.0)


@dataclass(slots=True)
class Place:
    """What comes next there. `outcomes`: whether the last guesses were right."""

    template: Template | None = None
    agent: str = ""
    method: str = ""
    tokens: int = 0
    misses: int = 0
    outcomes: deque[bool] = field(default_factory=lambda: deque(maxlen=OUTCOMES))

    @property
    def right_share(self) -> float:
        return sum(self.outcomes) / len(self.outcomes) if self.outcomes else 0.0


@dataclass(slots=True)
class Session:
    """The texts of a session so far, where it stands, and what is guessed to come."""

    sources: dict[Source, str] = field(default_factory=dict)
    chars: int = 0
    answers: int = 0
    running: int = 0
    last_agent: str = ""
    guess: Guess | None = None


@dataclass(frozen=True, slots=True)
class Guess:
    """`at`: the place it was made at."""

    at: tuple[str, int]
    agent: str
    method: str
    fields: Mapping[str, Any]
    made_s: float


@dataclass(slots=True)
class Account:
    """A tenant's tokens: served to it, thrown away, and at stake in guesses that run."""

    served: float = 0.0
    wasted: float = 0.0
    at_stake: dict[str, int] = field(default_factory=dict)

    def allows(self, tokens: int, share: float) -> bool:
        return self.wasted + sum(self.at_stake.values()) + tokens <= share * self.served

    def serve(self, tokens: int) -> None:
        self.served += tokens
        if self.served > ACCOUNT_TOKENS:
            self.served, self.wasted = self.served / 2.0, self.wasted / 2.0


class SpeculationPolicy(OwnPolicy[SpeculationOptions]):
    """All is kept by workload, which is a tenant's: nobody's requests or answers show in another's guesses."""

    name: ClassVar[str] = "speculation"
    seat: ClassVar[str] = GATEWAY
    kind: ClassVar[type[Any]] = SpeculationOptions
    reads_answers: ClassVar[bool] = True

    def __init__(self, settings: AnyPolicySettings, substrate: Clock) -> None:
        super().__init__(settings, substrate)
        self._sessions: FairMap[str, Session] = FairMap(MAX_SESSIONS)
        self._places: FairMap[tuple[str, int], Place] = FairMap(MAX_PLACES)
        self._frames: FairMap[str, Frame] = FairMap(MAX_FRAMES)
        self._chars = 0
        self._accounts: OrderedDict[str, Account] = OrderedDict()
        self._found: list[GuessSuggestion] = []
        self._delays: deque[float] = deque(maxlen=DELAYS)
        self._hedge_after_s: float | None = None

    # --- observe ------------------------------------------------------------------------------------

    def observe(self, event: Observation) -> None:
        if isinstance(event, RequestSent):
            self._asked(event.request)
        elif isinstance(event, RequestServed):
            self._served(event)
        elif isinstance(event, GuessEnded):
            self._ended(event)
        elif isinstance(event, SessionEnded):
            session = self._sessions.pop(event.workload, event.session)
            if session is not None:
                self._chars -= session.chars
                self._judge(event.workload, session, None)

    def _asked(self, request: RequestView) -> None:
        sessions = self._sessions.part(request.workload)
        session = sessions.get(request.session)
        if session is None:
            session = sessions[request.session] = Session()
        sessions.move_to_end(request.session)
        session.running += 1
        if session.answers == 0 and session.running == 1:
            self._begin(session, request)
        elif session.running == 1 and session.answers <= MAX_STEPS:
            self._judge(request.workload, session, request)
        session.guess = None
        self._trim(request.workload)

    def _trim(self, workload: str) -> None:
        gone = self._sessions.trim(workload)
        self._chars -= sum(session.chars for session in gone)
        while self._chars > MAX_CHARS:
            oldest = self._sessions.pop(*self._sessions.oldest(workload))
            self._chars -= oldest.chars if oldest is not None else 0

    def _begin(self, session: Session, request: RequestView) -> None:
        """A first request: what it is about is a text that later ones may repeat."""
        text = asked_text(request.fields)
        frames = self._frames.part(request.workload)
        known = frames.get(request.agent)
        frame = known.narrowed(text) if known is not None else Frame(text, text)
        frames[request.agent] = frame
        frames.move_to_end(request.agent)
        self._frames.trim(request.workload)
        self._chars -= session.chars
        session.sources, session.chars = {}, 0
        self._add(session, ("task", 0), text)
        if known is not None:
            self._add(session, ("task", 1), frame.inside(text))

    def _add(self, session: Session, name: Source, text: str) -> None:
        if session.chars + len(text) <= MAX_SESSION_CHARS:
            session.sources[name] = text
            session.chars += len(text)
            self._chars += len(text)

    def _judge(self, workload: str, session: Session, request: RequestView | None) -> None:
        """What came against what was guessed, and the template where it was something else; None: nothing came."""
        at = (session.last_agent, session.answers)
        guess = session.guess
        place = self._place(workload, at) if guess is not None or request is not None else None
        if place is None:
            return
        if guess is not None:
            is_right = request is not None and is_same(guess, request)
            place.outcomes.append(is_right)
            self._counts["right" if is_right else "wrong"] += 1
            if is_right and request is not None:
                place.misses = 0
                return
        if request is not None and place.misses % RELEARN_EVERY in (0, 1, 2):
            before = place.template.fields if place.template is not None else None
            place.template = self._template(request, session, before)
            place.agent, place.method, place.tokens = request.agent, request.method, 0
        place.misses += 1
        if not any(place.outcomes):
            # Not understood yet: what was tried before the first right one says nothing of the one that is.
            place.outcomes.clear()

    def _template(self, request: RequestView, session: Session, before: Mapping[str, Any] | None) -> Template | None:
        if not self.options.allow_tools and any(request.fields.get(name) for name in SIDE_EFFECTS):
            self._counts["with_tools"] += 1
            return None
        return learnt(request.fields, session.sources, before)

    def _place(self, workload: str, at: tuple[str, int]) -> Place:
        places = self._places.part(workload)
        place = places.setdefault(at, Place())
        places.move_to_end(at)
        self._places.trim(workload)
        return place

    # --- predict ------------------------------------------------------------------------------------

    def _served(self, event: RequestServed) -> None:
        request = event.request
        tokens = event.prompt_tokens + event.output_tokens
        self._account(request.tenant).serve(tokens)
        session = self._sessions.get(request.workload, request.session)
        if session is None:
            return
        place = self._places.get(request.workload, (session.last_agent, session.answers))
        if place is not None and place.agent == request.agent:
            place.tokens = max(place.tokens, tokens)
        session.running = max(0, session.running - 1)
        session.last_agent = request.agent
        if event.answer is None or session.running:
            # Nothing that could be built on, or several at once: their order may be another one next time.
            session.answers = MAX_STEPS + 1
            return
        # Both always, since a template learnt where they differ needs both; frameworks strip or don't.
        self._add(session, ("answer", session.answers), event.answer)
        self._add(session, ("stripped", session.answers), event.answer.strip())
        session.answers += 1
        if session.answers <= MAX_STEPS:
            self._guess(request, session)
        self._trim(request.workload)

    def _guess(self, request: RequestView, session: Session) -> None:
        place = self._places.get(request.workload, (session.last_agent, session.answers))
        if place is None or place.template is None:
            return
        fields = place.template.filled(session.sources)
        if fields is None:
            return
        at = (session.last_agent, session.answers)
        session.guess = Guess(at, place.agent, place.method, fields, self.substrate.now_s)
        if len(place.outcomes) < self.options.min_seen or place.right_share < self.options.min_probability:
            self._counts["unsure"] += 1
            return
        tokens = max(1, place.tokens)
        account = self._account(request.tenant)
        if not account.allows(tokens, self.options.max_waste):
            self._counts["no_budget"] += 1
            return
        account.at_stake[request.session] = tokens
        self._counts["suggested"] += 1
        self._found.append(
            GuessSuggestion(
                self.name, request.tenant, request.workload, request.session, place.agent, place.method, fields,
                tokens, self.options.max_wait_s,
            )
        )  # fmt: skip

    # --- act ----------------------------------------------------------------------------------------

    def act(self) -> list[GuessSuggestion]:
        found, self._found = self._found, []
        return found

    # --- a second replica for a slow one ------------------------------------------------------------

    def began(self, delay_s: float) -> None:
        """A request's first item came so long after it had been sent to the replica that it came from."""
        self._delays.append(delay_s)
        self._counts["watched"] += 1
        if len(self._delays) >= MIN_DELAYS and self._counts["watched"] % 16 == 0:
            slow_s = sorted(self._delays)[int(0.95 * len(self._delays))]
            self._hedge_after_s = max(MIN_HEDGE_S, slow_s * self.options.hedge_factor)

    def hedge_after_s(self, request: RequestView) -> float | None:
        """When a request that has no answer by then may be sent again; None: not at all."""
        has_tools = any(request.fields.get(name) for name in SIDE_EFFECTS)
        if self.options.hedge_share <= 0.0 or has_tools or request.method not in HEDGED_METHODS:
            return None
        return self._hedge_after_s

    def may_hedge(self) -> bool:
        """Whether one more is within the share; it is counted then."""
        if self._counts["hedged"] + 1 > self.options.hedge_share * self._counts["watched"]:
            self._counts["hedges_refused"] += 1
            return False
        self._counts["hedged"] += 1
        return True

    def hedge_won(self) -> None:
        self._counts["hedges_won"] += 1

    def _account(self, tenant: str) -> Account:
        account = self._accounts.setdefault(tenant, Account())
        self._accounts.move_to_end(tenant)
        if len(self._accounts) > MAX_ACCOUNTS:
            self._accounts.popitem(last=False)
        return account

    def _ended(self, event: GuessEnded) -> None:
        account = self._account(event.tenant)
        account.at_stake.pop(event.session, None)
        if event.is_joined:
            self._counts["joined"] += 1
            return
        if not event.wasted_tokens:
            self._counts["not_started"] += 1
            return
        account.wasted += event.wasted_tokens
        self._counts["wasted"] += 1
        self._counts["wasted_tokens"] += event.wasted_tokens
        session = self._sessions.get(event.workload, event.session)
        if session is not None and session.guess is not None:
            # Nobody asked in time.
            self._judge(event.workload, session, None)
            session.guess = None

    def counters(self) -> Mapping[str, int]:
        served = sum(account.served for account in self._accounts.values())
        return {**self._counts, "served_tokens": math.floor(served), "places": len(self._places)}


def is_same(guess: Guess | GuessSuggestion, request: RequestView) -> bool:
    """Whether the request is the guessed one, in every field: the engine makes the same tokens of both."""
    return guess.agent == request.agent and guess.method == request.method and guess.fields == request.fields
