"""What stays the same of a prompt when only its harness noise changes (pure).

An agent without a declared id is known by its leading system text and its tools. Harnesses write
things into that text that change with every request: a billing line, a clock, a run id. They are
replaced here, for identity only. The prompt itself keeps them, but for billing lines (see
`strip_billing`). A sentence that merely holds a year or a number stays significant.
"""

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

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
_CLOCK_WORDS = ("date", "time", "clock", "now", "today")
_ID_WORDS = (" id", "_id", "-id")

_encoder = msgspec.json.Encoder(order="sorted")


def strip_billing(text: str) -> str:
    """`text` without the lines a harness adds for its own billing."""
    return _BILLING.sub("", text) if "billing-header" in text.lower() else text


def canonical_text(text: str) -> str:
    """`text` with billing lines, clocks, uuids and run ids made the same for every request."""
    text = strip_billing(text)
    if _UUID_MIDDLE.search(text):
        text = _UUID.sub("#", text)
    return "\n".join(_canonical_line(line) for line in text.split("\n"))


def _canonical_line(line: str) -> str:
    """The patterns are slow to search for, so only lines with one of their words are searched."""
    lowered = line.lower()
    if any(word in lowered for word in _CLOCK_WORDS):
        line = _CLOCK.sub(_without_clock, line)
    if "id" in lowered and any(word in lowered for word in _ID_WORDS):
        line = _RUN_ID.sub(r"\1\2#", line)
    return line


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
    """Digests of canonical forms, remembered by what was sent.

    The memo's keys are the interpreter's own keyed hashes, several times faster than a digest: they never leave
    the process, and nobody outside can make two contents meet in one.
    """

    def __init__(self, max_entries: int = MAX_MEMO_ENTRIES) -> None:
        self._max_entries = max_entries
        self._memo: OrderedDict[int, bytes] = OrderedDict()

    def of_text(self, text: str) -> bytes:
        return self._known(hash(text), lambda: canonical_text(text).encode())

    def of_tools(self, tools: Any) -> bytes:
        """Doesn't depend on the order of the tools or of their keys."""
        if not isinstance(tools, list) or not tools:
            return b""
        encode = _encoder.encode
        parts = [encode(tool) for tool in tools]
        return self._known(hash((b"tools", *parts)), lambda: b"\n".join(sorted(parts)))

    def _known(self, raw: int, canonical: Callable[[], bytes]) -> bytes:
        known = self._memo.get(raw)
        if known is not None:
            self._memo.move_to_end(raw)
            return known
        result = digest(canonical())
        self._memo[raw] = result
        if len(self._memo) > self._max_entries:
            self._memo.popitem(last=False)
        return result


def digest(data: bytes) -> bytes:
    """Unkeyed digest of bulk content; SHA-256 because processors have instructions for it."""
    return hashlib.sha256(data).digest()
