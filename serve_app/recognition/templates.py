"""Agents whose system prompt is a template with the task, a person or a run in it (pure, bounded).

By its text such an agent is another one in each session, and nothing learnt of it is ever used. A new system
text belongs to a template rather than to an agent of its own if it shares sentences with an earlier one and

- all that it lacks of the earlier one, roles of a few words included, is text of that one's session alone, which
  another agent there was given or answered: the slot holds a task (AgentVerse, DyLAN); or
- as many as `LEAST_VARIANTS` such texts were each seen in one session, no session had two of them, and one
  agent talked with all of them: the slot holds a person or a case (a simulated user).

What differs in an ordinary sentence is another agent: its sentence is nobody else's text. Texts that come back in
further sessions were fixed roles after all: a template with many of them is given up.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from runtime_actor.fair_map import FairMap

MAX_TEXTS = 4096
"""System texts of all tenants, who share the memory fairly; the one not sent for longest is forgotten.

Whoever holds a text holds the keys of all its sentences, so nothing holds one that is forgotten.
"""

MAX_SESSIONS = 4096
MAX_TEXTS_PER_LINE = 16
MAX_CANDIDATES = 3
MAX_AGENTS_PER_SESSION = 16
LEAST_VARIANTS = 5
LEAST_SHARED_CHARS = 40
LEAST_SHARE = 0.5
MOST_RETURNED = 4
"""At most 1 in so many of a template's texts may come back in another session."""


@dataclass(slots=True, eq=False)
class Template:
    """What its first two texts have in common, keys and a name made of it; each further one has all of it."""

    name: bytes
    fixed: frozenset[int]
    texts: int = 1
    returned: int = 0

    @property
    def is_given_up(self) -> bool:
        return MOST_RETURNED * self.returned > self.texts


@dataclass(slots=True, eq=False)
class _Text:
    """One system text, where it was sent, and the template it belongs to or gave rise to.

    `asked` and `system`: keys of the sentences of the first user's message and its own; `chars`: of its own. A role
    that it gives in fewer words than make a sentence is kept with what was asked: two such texts aren't yet alike.
    """

    tenant: str
    asked: tuple[int, ...]
    system: tuple[int, ...]
    chars: int
    scope: bytes
    place: tuple[str, str] | None = None
    template: Template | None = None
    founded: Template | None = None
    is_fixed: bool = False

    @property
    def lines(self) -> dict[int, None]:
        return dict.fromkeys((*self.asked, *self.system))


@dataclass(slots=True)
class _Session:
    agents: list[str] = field(default_factory=list)
    texts: list[_Text] = field(default_factory=list)


class TemplateIndex:
    """System texts by digest, and the templates found among them.

    Args:
        is_session_text: whether a tenant's line is known from one session alone, where a second agent was given it.
    """

    def __init__(self, is_session_text: Callable[[str, int, str], bool]) -> None:
        self._is_session_text = is_session_text
        self._texts: FairMap[str, _Text] = FairMap(MAX_TEXTS)
        self._by_line: FairMap[int, tuple[_Text, ...]] = FairMap(8 * MAX_TEXTS)
        self._sessions: FairMap[str, _Session] = FairMap(MAX_SESSIONS)
        # Scope -> its only text, None once there are two. One of a scope that was forgotten is not compared any more.
        self._alone: FairMap[bytes, _Text | None] = FairMap(MAX_TEXTS)

    def __len__(self) -> int:
        return len(self._texts)

    def name_of(
        self, tenant: str, digest: str, scope: bytes, read: Callable[[], tuple[dict[int, str], dict[int, str]]]
    ) -> bytes | None:
        """The template that a text belongs to. `scope`: only texts of one scope (tenant, tools) are compared.

        `read` gives the sentences of the system text; and those of the first user's message with the text's roles.
        """
        known = self._texts.part(tenant)
        text = known.get(digest)
        if text is None:
            system, asked = read()
            text = _Text(tenant, tuple(asked), tuple(system), sum(map(len, system.values())), scope)
            known[digest] = text
            if not self._is_alone(text):
                seen = self._by_line.part(tenant).keys()
                has_seen_lines = not (seen.isdisjoint(system) and seen.isdisjoint(asked))
                text.template = self._template_of(text, {**asked, **system}) if has_seen_lines else None
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
            text.place = place
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
            for keys in (text.asked, text.system):
                for key in keys:
                    by_line[key] = alone
        else:
            for key in text.lines:
                by_line[key] = (*by_line.get(key, ()), text)[-MAX_TEXTS_PER_LINE:]
                by_line.move_to_end(key)
        self._by_line.trim(text.tenant)

    def _template_of(self, text: _Text, said: dict[int, str]) -> Template | None:
        like = self._alike(text, said)
        for other in like[:MAX_CANDIDATES]:
            template = other.template or other.founded
            if template is not None and not template.is_given_up:
                if template.fixed <= said.keys():
                    template.texts += 1
                    return template
            elif not other.is_fixed and self._is_slot(said, other):
                return self._found(said, other, like)
        cases = [other for other in like if _share(text, other, said) >= LEAST_SHARE]
        if not self._are_cases(cases):
            return None
        template = self._found(said, cases[0], like)
        for other in cases:
            _adopt(other, template)
        return template

    def _found(self, said: dict[int, str], other: _Text, like: list[_Text]) -> Template:
        """The template of two texts, and of those before that it explains: their next requests belong to it.

        Its name depends on the common text alone, so that it outlives this process.
        """
        common = {key: said[key] for key in other.lines if key in said}
        name = hashlib.blake2b("\n".join(sorted(common.values())).encode(), digest_size=16).digest()
        template = other.founded = Template(name, frozenset(common))
        for earlier in like:
            if common.keys() <= earlier.lines.keys() and self._is_slot(common, earlier):
                _adopt(earlier, template)
        return template

    def _alike(self, text: _Text, said: dict[int, str]) -> list[_Text]:
        """Texts of the same scope that share sentences with this one, most first."""
        by_line = self._by_line.part(text.tenant)
        shared: Counter[_Text] = Counter()
        for key, line in said.items():
            for other in by_line.get(key, ()):
                if other.scope == text.scope:
                    shared[other] += len(line)
        return [other for other, size in shared.most_common() if size >= LEAST_SHARED_CHARS]

    def _is_slot(self, kept: Mapping[int, str], other: _Text) -> bool:
        """Whether all that `kept` lacks of `other` was its session's own, and shared there."""
        lacking = [key for key in other.lines if key not in kept]
        if not lacking or other.place is None:
            return False
        tenant, session = other.place
        return all(self._is_session_text(tenant, key, session) for key in lacking)

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


def _share(text: _Text, other: _Text, said: dict[int, str]) -> float:
    """How much of the longer system text the two have in common."""
    common = sum(len(said[key]) for key in {*text.system} & {*other.system})
    return common / max(text.chars, other.chars, 1)
