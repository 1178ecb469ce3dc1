"""Agents whose system prompt is a template with the task, a person or a run in it (pure, bounded).

By its text such an agent is another one in each session, and nothing learnt of it is ever used. A new system
text belongs to a template rather than to an agent of its own if it shares sentences with an earlier one and

- all that it lacks of the earlier one, roles of a few words included, is text of that one's session alone, which
  another agent there was given or answered: the slot holds a task (AgentVerse, DyLAN); or
- all that differs in the two are answers, as a summary of the conversation so far is: then what the user said first
  may differ as well; or
- as many as `LEAST_VARIANTS` such texts were each seen in one session, no session had two of them, and one
  agent talked with all of them: the slot holds a person or a case (a simulated user).

What differs in an ordinary sentence is another agent: its sentence is nobody else's text. Texts that come back in
further sessions were fixed roles after all: a template with many of them is given up. Two agents of one session
make no template, although a supervisor's list of them makes their roles text of that session alone.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from runtime_actor.fair_map import FairMap
from serve_app.recognition.quotes import Lines, QuoteIndex

MAX_TEXTS = 4096
"""System texts of all tenants, who share the memory fairly; the one not sent for longest is forgotten.

Whoever holds a text holds the keys of all its sentences, so nothing holds one that is forgotten.
"""

MAX_SESSIONS = 4096
MAX_TEXTS_PER_LINE = 16
MAX_CANDIDATES = 8
"""Templates, and earlier texts without one, that a new text is compared with."""

MAX_AGENTS_PER_SESSION = 16
LEAST_VARIANTS = 5
LEAST_SHARED_CHARS = 40
LEAST_SHARE = 0.5
MOST_RETURNED = 4
"""At most 1 in so many of a template's texts may come back in another session."""


@dataclass(slots=True, eq=False)
class Template:
    """What its first two texts have in common, keys and a name made of it; each further one has all of it.

    `own`: of the texts themselves; `fixed`: together with what the user said first.

    `is_of_answers`: and beyond it only text that was answered, whatever the user said first.
    """

    name: bytes
    own: frozenset[int]
    fixed: frozenset[int]
    is_of_answers: bool
    texts: int = 1
    returned: int = 0

    @property
    def is_given_up(self) -> bool:
        return MOST_RETURNED * self.returned > self.texts


@dataclass(slots=True, eq=False)
class _Text:
    """One system text, where it was sent, and the template it belongs to or gave rise to.

    `asked`, `system`, `roles`: keys of the sentences of the first user's message and its own, and of roles that it
    gives in fewer words than make a sentence, in which two texts aren't yet alike; `chars`: of its sentences.
    """

    tenant: str
    asked: tuple[int, ...]
    system: tuple[int, ...]
    roles: tuple[int, ...]
    chars: int
    scope: bytes
    place: tuple[str, str] | None = None
    sent: int = 0
    template: Template | None = None
    founded: Template | None = None
    is_fixed: bool = False

    @property
    def lines(self) -> dict[int, None]:
        return dict.fromkeys((*self.asked, *self.own))

    @property
    def own(self) -> tuple[int, ...]:
        return *self.roles, *self.system


@dataclass(slots=True)
class _Session:
    agents: list[str] = field(default_factory=list)
    texts: list[_Text] = field(default_factory=list)


class TemplateIndex:
    """System texts by digest, and the templates found among them; `quotes` tells where a line comes from."""

    def __init__(self, quotes: QuoteIndex) -> None:
        self._quotes = quotes
        self._texts: FairMap[str, _Text] = FairMap(MAX_TEXTS)
        self._by_line: FairMap[int, tuple[_Text, ...]] = FairMap(8 * MAX_TEXTS)
        self._sessions: FairMap[str, _Session] = FairMap(MAX_SESSIONS)
        # Scope -> its only text, None once there are two. One of a scope that was forgotten is not compared any more.
        self._alone: FairMap[bytes, _Text | None] = FairMap(MAX_TEXTS)

    def __len__(self) -> int:
        return len(self._texts)

    def name_of(
        self, tenant: str, digest: str, scope: bytes, read: Callable[[], tuple[Lines, Lines, Lines]]
    ) -> bytes | None:
        """The template that a text belongs to. `scope`: only texts of one scope (tenant, tools) are compared.

        `read` gives the sentences of the first user's message, those of the system text and its short roles.
        """
        known = self._texts.part(tenant)
        text = known.get(digest)
        if text is None:
            asked, system, roles = read()
            text = _Text(tenant, tuple(asked), tuple(system), tuple(roles), sum(map(len, system.values())), scope)
            known[digest] = text
            if not self._is_alone(text):
                seen = self._by_line.part(tenant).keys()
                has_seen_lines = not (seen.isdisjoint(system) and seen.isdisjoint(asked))
                text.template = self._template_of(text, {**asked, **roles, **system}) if has_seen_lines else None
                self._remember(text, has_seen_lines)
        known.move_to_end(digest)
        for gone in self._texts.trim(tenant):
            self._forget(gone)
        template = text.template
        return None if template is None or template.is_given_up else template.name

    def are_alike(self, tenant: str, digest: str | None, other: str) -> bool:
        """Whether two system texts share a sentence; what was forgotten is like nothing."""
        one, two = self._texts.get(tenant, digest or ""), self._texts.get(tenant, other)
        return one is not None and two is not None and not set(one.system).isdisjoint(two.system)

    def is_read(self, tenant: str, digest: str | None, session: str) -> bool:
        """Whether a text was sent in that session before, or in several: then its sentences are nobody's already."""
        text = self._texts.get(tenant, digest or "")
        return text is not None and (text.is_fixed or text.place == (tenant, session))

    def note(self, digest: str | None, tenant: str, session: str, agent: str) -> None:
        """A request of `agent` was accepted in `session`, with the text of that digest."""
        place = (tenant, session)
        sessions = self._sessions.part(tenant)
        known = sessions.setdefault(session, _Session())
        sessions.move_to_end(session)
        if agent not in known.agents and len(known.agents) < MAX_AGENTS_PER_SESSION:
            known.agents.append(agent)
        self._sessions.trim(tenant)
        text = self._texts.get(tenant, digest) if digest is not None else None
        if text is None or text.place == place:
            return
        if text.place is None:
            text.place, text.sent = place, self._quotes.now
            if len(known.texts) < MAX_AGENTS_PER_SESSION:
                known.texts.append(text)
        elif not text.is_fixed:
            text.is_fixed = True
            for template in (text.template, text.founded):
                if template is not None:
                    template.returned += 1

    def _forget(self, text: _Text) -> None:
        for key in text.lines:
            having = self._by_line.get(text.tenant, key) or ()
            if having == (text,):
                self._by_line.pop(text.tenant, key)
            elif text in having:
                self._by_line.part(text.tenant)[key] = tuple(other for other in having if other is not text)
        if self._alone.get(text.tenant, text.scope) is text:
            self._alone.pop(text.tenant, text.scope)
        session = None if text.place is None else self._sessions.get(*text.place)
        if session is not None and text in session.texts:
            session.texts.remove(text)

    def _is_alone(self, text: _Text) -> bool:
        """Whether its scope has no other text yet: then nobody has to find it by its sentences."""
        alone = self._alone.part(text.tenant)
        if text.scope not in alone:
            alone[text.scope] = text
            self._alone.trim(text.tenant)
            return True
        if (first := alone[text.scope]) is not None:
            alone[text.scope] = None
            self._remember(first, True)
        return False

    def _remember(self, text: _Text, has_seen_lines: bool) -> None:
        by_line = self._by_line.part(text.tenant)
        alone = (text,)
        if not has_seen_lines:
            for keys in (text.asked, text.own):
                for key in keys:
                    by_line[key] = alone
        else:
            for key in text.lines:
                by_line[key] = (*by_line.get(key, ()), text)[-MAX_TEXTS_PER_LINE:]
                by_line.move_to_end(key)
        self._by_line.trim(text.tenant)

    def _template_of(self, text: _Text, said: Lines) -> Template | None:
        own = frozenset(text.own)
        like = self._alike(text, said)
        tried: set[Template | _Text] = set()
        for other in like:
            template = other.template or other.founded
            if template is None or template.is_given_up:
                template = None
                is_of_answers = self._is_slot_of_answers(own, other)
                if (is_of_answers or self._is_slot(own, said, other)) and not self._is_beside(own, other):
                    return self._found(own, said, other, like, is_of_answers)
            elif template not in tried and self._fits(text.tenant, own, said, template):
                template.texts += 1
                return template
            tried.add(template or other)
            if len(tried) == MAX_CANDIDATES:
                break
        cases = [other for other in like if _share(text, other, said) >= LEAST_SHARE]
        if not self._are_cases(cases):
            return None
        template = self._found(own, said, cases[0], like)
        for other in cases:
            _adopt(other, template)
        return template

    def _found(
        self, own: frozenset[int], said: Lines, other: _Text, like: list[_Text], is_of_answers: bool = False
    ) -> Template:
        """The template of two texts, and of those before that it explains: their next requests belong to it.

        Its name depends on the common text alone, so that it outlives this process.
        """
        own = own.intersection(other.own)
        fixed = own if is_of_answers else own.union(other.asked).intersection(said)
        name = hashlib.blake2b("\n".join(sorted(said[key] for key in fixed)).encode(), digest_size=16).digest()
        template = other.founded = Template(name, own, fixed, is_of_answers)
        for earlier in like:
            if own.issubset(earlier.own) and fixed <= earlier.lines.keys() and self._is_slot(own, fixed, earlier):
                _adopt(earlier, template)
        return template

    def _alike(self, text: _Text, said: Lines) -> list[_Text]:
        """Texts of the same scope that share sentences with this one, most first."""
        by_line = self._by_line.part(text.tenant)
        shared: Counter[_Text] = Counter()
        for key, line in said.items():
            for other in by_line.get(key, ()):
                if other.scope == text.scope:
                    shared[other] += len(line)
        return [other for other, size in shared.most_common() if size >= LEAST_SHARED_CHARS]

    def _fits(self, tenant: str, own: frozenset[int], said: Lines, template: Template) -> bool:
        if not (template.own <= own and template.fixed <= said.keys()):
            return False
        return not template.is_of_answers or self._were_answered(tenant, own - template.own)

    def _is_slot(self, own: Collection[int], said: Collection[int], other: _Text) -> bool:
        """Whether all that a text lacks of `other` was its session's own, and shared there.

        What the user says doesn't stand for what the text itself lacks: a task may list the roles of a team.
        """
        if other.is_fixed or other.place is None:
            return False
        tenant, session = other.place
        is_lacking = False
        for keys, having in ((other.own, own), (other.asked, said)):
            for key in keys:
                if key not in having:
                    is_lacking = True
                    origin = self._quotes.origin(tenant, key)
                    if origin is None or origin.session != session or not origin.is_handed_on:
                        return False
        return is_lacking

    def _is_slot_of_answers(self, own: frozenset[int], other: _Text) -> bool:
        """Whether all that differs was answered, as a summary is: then what the user said first may differ as well."""
        if other.is_fixed or other.place is None:
            return False
        tenant, session = other.place
        is_lacking = False
        for key in other.own:
            if key not in own:
                is_lacking = True
                origin = self._quotes.origin(tenant, key)
                if origin is None or origin.session != session or not origin.answered:
                    return False
        return is_lacking and self._were_answered(tenant, own.difference(other.own))

    def _were_answered(self, tenant: str, keys: frozenset[int]) -> bool:
        return bool(keys) and all(
            (origin := self._quotes.origin(tenant, key)) is not None and origin.answered for key in keys
        )

    def _is_beside(self, own: frozenset[int], other: _Text) -> bool:
        """Whether a text and `other` are agents of one session: it has what was known there when `other` was sent.

        What was answered there since makes it a later prompt of the same agent.
        """
        if other.place is None:
            return False
        tenant, session = other.place
        origins = (self._quotes.origin(tenant, key) for key in own.difference(other.own))
        return any(
            origin is not None and origin.session == session and origin.answered <= other.sent for origin in origins
        )

    def _are_cases(self, texts: list[_Text]) -> bool:
        """Whether these are one agent's prompts for one case each."""
        places = {text.place for text in texts if text.place is not None}
        if len(places) < LEAST_VARIANTS or MOST_RETURNED * sum(text.is_fixed for text in texts) > len(texts):
            return False
        met = [known for known in (self._sessions.get(*place) for place in places) if known is not None]
        if any(sum(text in texts for text in session.texts) > 1 for session in met):
            return False
        partners = Counter(agent for session in met for agent in session.agents)
        return bool(partners) and partners.most_common(1)[0][1] >= LEAST_VARIANTS


def _adopt(text: _Text, template: Template) -> None:
    if not text.is_fixed and (text.template is None or text.template.is_given_up):
        text.template = template
        template.texts += 1


def _share(text: _Text, other: _Text, said: Lines) -> float:
    """How much of the longer system text the two have in common."""
    common = sum(len(said[key]) for key in {*text.system} & {*other.system})
    return common / max(text.chars, other.chars, 1)
