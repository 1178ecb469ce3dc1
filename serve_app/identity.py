"""HTTP request -> tenant, session and agent (pure).

Order of trust, first hit wins:

session  1. headers `x-session-id`, `session-id`, `x-dynamo-session-id`, `x-claude-code-session-id`
         2. body `session_id`, `nvext.agent_context.session_id`, `nvext.agent_context.trajectory_id`,
            `agent_hints.workflow_id`, `nvext.agent_hints.workflow_id`, `vllm_xargs.session_id`
         3. the conversation's own prefix (see `conversations.py`), else what it repeats of a session
            (see `quotes.py`); a completion without a declared session is a session of its own
agent    1. header `x-claude-code-agent-id`
         2. body `agent_hints.agent_id`, `nvext.agent_hints.agent_id`, `nvext.agent_context.session_type_id`
         3. content: leading system text (its lines in any order; or its template, see `templates.py`) and tools;
            without one that says anything the role that the first user's message opens with, if it does; of a
            completion the first 512 characters (or 128 token ids) when the prompt is at least twice as
            long, else the tenant's common agent

Header names are matched without regard to case and with `_` for `-`. A value that stands for
none (see `blanks.py`), or that holds control characters, counts as absent. `x-request-id` and the like
name a request, not a conversation, and are never read. A declared id is never echoed: what leaves is
a hash keyed with the application's secret and the tenant, so ids can't be forged, and the same
client id of two tenants is two sessions.
"""

import hashlib
import itertools
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from runtime_actor.fair_map import FairMap
from serve_app.recognition.blanks import is_blank
from serve_app.recognition.canonical import CanonicalDigests, canonical_json, leading_count
from serve_app.recognition.conversations import Claim, ConversationIndex
from serve_app.recognition.labels import label_of
from serve_app.recognition.leading import LeadingIndex
from serve_app.recognition.orders import OrderIndex
from serve_app.recognition.quotes import QuoteIndex, Reading, lines_of_answer, lines_of_messages
from serve_app.recognition.roles import is_generic, role_of_first_user, short_roles
from serve_app.recognition.templates import TemplateIndex
from serve_app.recognition.turns import turn_of

SESSION_HEADERS = ("x-session-id", "session-id", "x-dynamo-session-id", "x-claude-code-session-id")
SESSION_FIELDS = (
    ("session_id",),
    ("nvext", "agent_context", "session_id"),
    ("nvext", "agent_context", "trajectory_id"),
    ("agent_hints", "workflow_id"),
    ("nvext", "agent_hints", "workflow_id"),
    ("vllm_xargs", "session_id"),
)
AGENT_HEADERS = ("x-claude-code-agent-id",)
AGENT_FIELDS = (
    ("agent_hints", "agent_id"),
    ("nvext", "agent_hints", "agent_id"),
    ("nvext", "agent_context", "session_type_id"),
)
FINAL_HEADERS = ("x-dynamo-session-final",)
FINAL_FIELDS = (("nvext", "agent_context", "trajectory_final"),)

MAX_TEXTS_WITH_TOOLS = 4096
"""System texts whose tools are remembered; the one not sent for longest is forgotten."""

PREAMBLE_CHARS = 512
PREAMBLE_TOKENS = 128
NEWS_MESSAGES = 2
"""Last messages of a request with a declared session that are compared with other agents' texts."""

SESSION_ID = re.compile(r"s-[0-9a-f]{16}\Z")

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters and halves of pairs. `isprintable` refuses more: wide and fixed spaces, what joins the letters of
a Persian word or the parts of an emoji, and letters that are newer than this Python."""


class Identity(NamedTuple):
    """Who a request belongs to. Sources are the header or field that decided, `content` or `new`."""

    tenant: str
    workload: str
    session: str
    agent: str
    label: str
    session_source: str
    agent_source: str
    starts_session: bool
    ends_session: bool


class _Agent(NamedTuple):
    """`text` is the digest of a chat's leading system text and tools, where that decided; `parts` of each of them.

    Of a text whose lines came in several orders `text` is the first one's.
    """

    id: str
    source: str
    label: str
    text: str | None = None
    parts: tuple[bytes, bytes] | None = None

    @property
    def speaker(self) -> str:
        """Whose histories continue each other: each of a template's prompts has its own."""
        return self.id if self.text is None else self.text


@dataclass(slots=True)
class Resolved:
    """An identity and what must be recorded when the request is accepted, or released; `newest`: its last messages."""

    identity: Identity
    agent: _Agent
    claim: Claim | None
    lines: Sequence[int]
    newest: Sequence[dict[str, Any]]
    accepted: bool = False


class IdentityResolver:
    """One per gateway process; `secret` is the application's and the same in every process."""

    def __init__(self, secret: bytes, conversations: ConversationIndex | None = None) -> None:
        self._key = hashlib.blake2b(secret, digest_size=32, person=b"agent-runtime-id").digest()
        seed = hashlib.blake2b(secret, digest_size=8, person=b"tools").digest()
        self._digests = CanonicalDigests(int.from_bytes(seed))
        self.conversations = ConversationIndex() if conversations is None else conversations
        self.quotes = QuoteIndex()
        self.templates = TemplateIndex(self.quotes)
        self.orders = OrderIndex()
        self.leading = LeadingIndex()
        self._tools: FairMap[bytes, bytes] = FairMap(MAX_TEXTS_WITH_TOOLS)

    def resolve(self, tenant: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Resolved:
        """`headers` as of `fold_headers`; `body` is the parsed and validated JSON object."""
        messages = body.get("messages")
        reading = Reading(messages if isinstance(messages, list) else [])
        agent = self._agent(tenant, headers, body, reading)
        session, source, claim, lines = self._session(tenant, agent, headers, body, reading)
        identity = Identity(
            tenant=tenant,
            workload=tenant,
            session=session,
            agent=agent.id,
            label=agent.label,
            session_source=source,
            agent_source=agent.source,
            starts_session=source == "new",
            ends_session=_is_final(headers, body),
        )
        return Resolved(identity, agent, claim, lines, reading.newest)

    def accept(self, resolved: Resolved) -> None:
        """Remember the conversation: only now that an engine took the request."""
        if resolved.accepted or (resolved.claim is not None and resolved.claim.settled):
            return
        resolved.accepted = True
        identity, speaker = resolved.identity, resolved.agent.speaker
        gone_on = None
        if resolved.claim is not None:
            gone_on = resolved.claim.gone_on
            self.conversations.record(resolved.claim, identity.session, speaker)
        self.quotes.note(identity.tenant, resolved.lines, identity.session, identity.agent, speaker, gone_on)
        self.templates.note(resolved.agent.text, identity.tenant, identity.session, identity.agent)
        self._note_tools(identity.tenant, resolved.agent.parts)

    def answered(
        self,
        resolved: Resolved,
        text: str,
        turn: int | None = None,
        is_cut: bool = False,
        other_turns: Iterable[int] = (),
    ) -> None:
        """Remember what an accepted request was answered: its next request and other agents of its session repeat it.

        `turn` and `other_turns`: as of `AnswerText`, else of the text alone. `is_cut`: the client went away, or an
        error ended it.
        """
        if not resolved.accepted:
            return
        if resolved.claim is not None:
            said = turn_of((text,)) if turn is None else turn
            self.conversations.answered(resolved.claim, said, is_cut, other_turns)
        if text:
            identity = resolved.identity
            lines = lines_of_answer(text, resolved.newest)
            self.quotes.note_answer(identity.tenant, lines, identity.session, resolved.agent.speaker)

    def refuse(self, resolved: Resolved) -> None:
        if resolved.claim is not None:
            self.conversations.release(resolved.claim)

    def session_ended(self, tenant: str, session: str) -> None:
        """The client says that the session of this id (ours) is over."""
        self.conversations.ended(tenant, session)

    def session_id(self, tenant: str, declared: str) -> str:
        """The id of the session that `tenant` calls `declared`; our own ids stand for themselves."""
        return declared if SESSION_ID.match(declared) else self._id("s", tenant, declared.encode())

    def _agent(self, tenant: str, headers: Mapping[str, str], body: Mapping[str, Any], reading: Reading) -> _Agent:
        declared, source = _declared(headers, body, AGENT_HEADERS, AGENT_FIELDS)
        if declared is not None:
            return _Agent(self._id("a", tenant, b"declared:" + declared.encode()), source, label_of(declared))
        messages = body.get("messages")
        if isinstance(messages, list) and messages:
            return self._chat_agent(tenant, messages, body.get("tools"), reading)
        preamble, shown = preamble_of(body.get("prompt"))
        content = self._digests.of_text(tenant, preamble)
        return _Agent(self._id("a", tenant, b"text:" + content), "content", label_of(shown))

    def _chat_agent(self, tenant: str, messages: list[dict[str, Any]], tools: Any, reading: Reading) -> _Agent:
        system = self.leading.text_of_agent(tenant, messages, reading)
        of_text = self._digests.of_text(tenant, system)
        of_tools = self._digests.of_tools(tenant, tools) or self._tools_left_out(tenant, of_text, messages)
        content = of_text + of_tools
        label = label_of(system)
        if not system or is_generic(system):
            role = role_of_first_user(messages[leading_count(messages) :])
            if role:
                content = self._digests.of_text(tenant, role) + of_tools
                return _Agent(self._id("a", tenant, b"role:" + content), "content", label_of(role))
        if not system:
            return _Agent(self._id("a", tenant, b"chat:" + content), "content", label)
        scope = tenant.encode() + b"\0"
        plain = partial(self._digests.plain, tenant, system)
        order = self.orders.of(tenant, plain, (scope + content).hex(), scope + of_tools)
        text = order.first
        template = self.templates.name_of(
            tenant, text, scope + of_tools, lambda: (reading.asked, reading.system, short_roles(system))
        )
        if template is not None:
            known_as = b"template:" + template + of_tools
        else:
            known_as = b"chat:" + content if order.name is None else b"lines:" + order.name + of_tools
        return _Agent(self._id("a", tenant, known_as), "content", label, text, (of_text, of_tools))

    def _tools_left_out(self, tenant: str, of_text: bytes, messages: list[dict[str, Any]]) -> bytes:
        """An agent's tools where it looks back on what they gave and doesn't send them, as AutoGen's reflection."""
        tools = self._tools.get(tenant, of_text)
        return tools if tools and any(message.get("tool_calls") for message in messages) else b""

    def _note_tools(self, tenant: str, parts: tuple[bytes, bytes] | None) -> None:
        """A text that was sent with several sets of tools is several agents': then none of them is guessed."""
        if parts is None or not parts[1]:
            return
        known = self._tools.part(tenant)
        of_text, of_tools = parts
        if known.setdefault(of_text, of_tools) != of_tools:
            known[of_text] = b""
        known.move_to_end(of_text)
        self._tools.trim(tenant)

    def _session(
        self, tenant: str, agent: _Agent, headers: Mapping[str, str], body: Mapping[str, Any], reading: Reading
    ) -> tuple[str, str, Claim | None, Sequence[int]]:
        declared, source = _declared(headers, body, SESSION_HEADERS, SESSION_FIELDS)
        messages: Any = body.get("messages")
        if not isinstance(messages, list):
            messages = []
        if declared is not None:
            count = leading_count(messages)
            told = [*messages[:count], *_first_user(messages[count:]), *messages[-NEWS_MESSAGES:]]
            return self.session_id(tenant, declared), source, None, list(lines_of_messages(told))
        if not messages:
            return self._id("s", tenant, secrets.token_bytes(16)), "new", None, []
        read: list[int] = []
        claim = self.conversations.match(
            tenant,
            agent.speaker,
            messages,
            _Once(lambda: self._votes(tenant, agent, reading, read)),
            lambda other: self.templates.are_alike(tenant, agent.text, other),
        )
        lines: Sequence[int] = read
        if claim.known_messages:
            # A history that is known up to some message was read up to there when it was sent, by whichever agent:
            # the system text of the one that goes on may be new.
            lines = list(lines_of_messages(messages[claim.known_messages :]))
            if agent.text and claim.session and not self.templates.is_read(tenant, agent.text, claim.session):
                lines += reading.system
        if claim.session is not None:
            return claim.session, "content", claim, lines
        return self._id("s", tenant, secrets.token_bytes(16)), "new", claim, lines

    def _votes(self, tenant: str, agent: _Agent, reading: Reading, read: list[int]) -> dict[str, int]:
        """Puts the keys of the lines that it had to look at into `read`."""
        system, conversation = reading.system, reading.conversation
        read += system
        read += conversation
        return self.quotes.vote(tenant, conversation, system, agent.id, agent.speaker, reading.greeting)

    def _id(self, prefix: str, tenant: str, content: bytes) -> str:
        name = tenant.encode()
        hashed = hashlib.blake2b(
            b"%s%d:%s%s" % (prefix.encode(), len(name), name, content), digest_size=8, key=self._key
        )
        return f"{prefix}-{hashed.hexdigest()}"


class _Once:
    """What `make` gives, made when it is first asked for; a wrapper by `functools.cache` costs 10 us."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], dict[str, int]]) -> None:
        self._make = make
        self._made: dict[str, int] | None = None

    def __call__(self) -> dict[str, int]:
        if self._made is None:
            self._made = self._make()
        return self._made


def fold_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Lower-case names with `_` as `-`; of repeated names the first that says something.

    Values are read as UTF-8, as a body is, where they can be: one id is one session in either.
    """
    folded: dict[str, str] = {}
    for name, value in raw:
        key = name.decode("latin-1").lower().replace("_", "-")
        if key not in folded or is_blank(folded[key]):
            folded[key] = _decoded(value)
    return folded


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def declared_value(value: Any) -> str | None:
    """A client's id as text, or None where it says nothing."""
    if not isinstance(value, str):
        return None
    text = value.strip()
    if is_blank(text) or (not text.isprintable() and _CONTROL.search(text)):
        return None
    return text


def _declared(
    headers: Mapping[str, str],
    body: Mapping[str, Any],
    header_names: tuple[str, ...],
    fields: tuple[tuple[str, ...], ...],
) -> tuple[str | None, str]:
    for name in header_names:
        value = declared_value(headers.get(name))
        if value is not None:
            return value, name
    for path in fields:
        value = declared_value(_at(body, path)) if path[0] in body else None
        if value is not None:
            return value, ".".join(path)
    return None, ""


def _at(body: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = body
    for part in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def _first_user(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first message of a user, which may hold a role's fixed text."""
    return list(itertools.islice((message for message in messages if message.get("role") == "user"), 1))


def _is_final(headers: Mapping[str, str], body: Mapping[str, Any]) -> bool:
    for name in FINAL_HEADERS:
        if name in headers and headers[name].strip().lower() in ("true", "1"):
            return True
    return any(path[0] in body and _at(body, path) is True for path in FINAL_FIELDS)


def preamble_of(prompt: Any) -> tuple[str, str]:
    """The leading part of a completion's prompt that stands for its agent, and what to show of it."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str) and len(prompt) >= 2 * PREAMBLE_CHARS:
        return prompt[:PREAMBLE_CHARS], prompt
    if isinstance(prompt, list) and len(prompt) >= 2 * PREAMBLE_TOKENS:
        return canonical_json(prompt[:PREAMBLE_TOKENS]).decode(), "token ids"
    return "", "completions"
