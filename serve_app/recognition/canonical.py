"""What stays the same of a prompt when only its harness noise changes (pure).

An agent without a declared id is known by its leading system text and its tools. Harnesses write
things into that text that change with every request: a billing line, a clock, a run id. They are
replaced here, for identity only. The prompt itself keeps them, but for billing lines (see
`strip_billing`). A sentence that merely holds a year or a number stays significant.
"""

import re
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import msgspec
from blake3 import blake3

MAX_MEMO_ENTRIES = 4096
"""Canonical digests kept, least recently used out first."""

LEADING_ROLES = frozenset({"system", "developer"})

_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_BILLING = re.compile(r"^[ \t]*x-[\w-]*billing-header[ \t]*:[^\n]*(?:\n|\Z)", re.IGNORECASE | re.MULTILINE)
_CLOCK = re.compile(r"\b(?:date|time|datetime|timestamp|clock|now|today)\b[^\n\d]{0,48}\d[^\n]{0,60}", re.IGNORECASE)
_CLOCK_VALUE = re.compile(
    rf"\d{{1,2}}:\d{{2}}|\d{{4}}[-/]\d{{1,2}}[-/]\d{{1,2}}|\d{{1,2}}[/.]\d{{1,2}}[/.]\d{{2,4}}"
    rf"|{_MONTH}\.? \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}|\d{{1,2}}(?:st|nd|rd|th)? {_MONTH}\.?,? \d{{4}}"
    r"|\b1\d{9}(?:\d{3})?\b",
    re.IGNORECASE,
)
_CLOCK_PARTS = re.compile(
    rf"\d+(?:st|nd|rd|th)?|\b(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\b|\b{_MONTH}\b|\b[ap]\.?m\b",
    re.IGNORECASE,
)
_UUID = re.compile(
    r"(?<![0-9a-f])[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?![0-9a-f])", re.IGNORECASE
)
_UUID_MIDDLE = re.compile(r"-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-")
_RUN_ID = re.compile(
    r"\b((?:run|request|session|trace|conversation|thread|task|job|correlation|invocation|execution|message)"
    r"[ _-]id)\b([\"'`*]*\s*[:=]\s*)\S+",
    re.IGNORECASE,
)
_ID_GIVEN = re.compile(r"id\b[\"'`*]*\s*[:=]", re.IGNORECASE)
_CLOCK_WORDS = ("date", "time", "clock", "now", "today")
_ID_WORDS = (" id", "_id", "-id")

_encoder = msgspec.json.Encoder(order="sorted")
_pack = msgspec.msgpack.Encoder(order="sorted").encode
"""For what only gets digested: a fifth faster than JSON, which looks at every letter of a string."""


def strip_billing(text: str) -> str:
    """`text` without the lines a harness adds for its own billing."""
    return _BILLING.sub("", text) if "billing-header" in text.lower() else text


def canonical_text(text: str) -> str:
    """`text` with billing lines, clocks, uuids and run ids made the same for every request."""
    text = strip_billing(text)
    if _UUID_MIDDLE.search(text):
        text = _UUID.sub("#", text)
    return _without_run_ids(_without_clocks(text))


def _without_clocks(text: str) -> str:
    """Looks only where one of the words is: searching for the pattern itself takes ten times as long."""
    lowered = _lowered(text)
    parts: list[str] = []
    done = 0
    for start in sorted(start for word in _CLOCK_WORDS for start in _positions(word, lowered)):
        match = _CLOCK.match(text, start) if start >= done else None
        if match is not None:
            parts += text[done:start], _without_clock(match)
            done = match.end()
    return "".join((*parts, text[done:])) if parts else text


def _without_run_ids(text: str) -> str:
    lowered = _lowered(text)
    if "id" not in lowered:
        return text
    lines = set()
    for start in (start for word in _ID_WORDS for start in _positions(word, lowered)):
        if _ID_GIVEN.match(text, start + 1):
            end = text.find("\n", start)
            lines.add((text.rfind("\n", 0, start) + 1, end if end >= 0 else len(text)))
    parts: list[str] = []
    done = 0
    for start, end in sorted(lines):
        parts += text[done:start], _RUN_ID.sub(r"\1\2#", text[start:end])
        done = end
    return "".join((*parts, text[done:])) if parts else text


def _lowered(text: str) -> str:
    """As long as `text`: the one letter whose lower case is longer is made another."""
    lowered = text.lower()
    return lowered if len(lowered) == len(text) else text.replace("\u0130", "i").lower()


def _positions(word: str, text: str) -> Iterator[int]:
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + 1)


def _without_clock(match: re.Match[str]) -> str:
    text = match.group(0)
    return _CLOCK_PARTS.sub("#", text) if _CLOCK_VALUE.search(text) else text


def text_of(content: Any) -> str:
    """A message's content as one string: a string and a list of one text part are the same."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return canonical_json(content).decode()
    return "\n".join(_part_text(part) for part in content)


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    return canonical_json(part).decode()


def canonical_json(value: Any) -> bytes:
    """JSON bytes that don't depend on the order of keys."""
    return _encoder.encode(value)


def leading_system_text(messages: list[dict[str, Any]]) -> str:
    """The system or developer messages before the first other message; later ones are conversation."""
    return "\n".join(text_of(message.get("content")) for message in messages[: leading_count(messages)])


def leading_count(messages: list[dict[str, Any]]) -> int:
    for index, message in enumerate(messages):
        if message.get("role") not in LEADING_ROLES:
            return index
    return len(messages)


class CanonicalDigests:
    """Digests of canonical texts, remembered by what was sent.

    The memo's keys are the interpreter's own keyed hashes, several times faster than a digest: they never leave
    the process, and nobody outside can make two contents meet in one.
    """

    def __init__(self, max_entries: int = MAX_MEMO_ENTRIES) -> None:
        self._max_entries = max_entries
        self._memo: OrderedDict[int, bytes] = OrderedDict()

    def of_text(self, text: str) -> bytes:
        raw = hash(text)
        known = self._memo.get(raw)
        if known is not None:
            self._memo.move_to_end(raw)
            return known
        result = self._memo[raw] = digest(canonical_text(text).encode())
        if len(self._memo) > self._max_entries:
            self._memo.popitem(last=False)
        return result


def digest_of_tools(tools: Any) -> bytes:
    """Doesn't depend on the order of the tools or of their keys."""
    if not isinstance(tools, list) or not tools:
        return b""
    try:
        parts = [_pack(tool) for tool in tools]
    except OverflowError:  # A whole number beyond 64 bits, which JSON alone can hold.
        parts = [canonical_json(tool) for tool in tools]
    return digest(b"\n".join(sorted(parts)))


def digest(data: bytes) -> bytes:
    """Unkeyed digest of bulk content; BLAKE3, which reads 60 KB of tools in a third of SHA-256's time."""
    return blake3(data).digest()
