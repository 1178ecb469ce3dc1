"""What stays the same of a prompt when only its harness noise changes (pure).

An agent without a declared id is known by its leading system text and its tools. Harnesses write
things into that text that change with every request: a billing line, a clock, a run id. They are
replaced here, for identity only. The prompt itself keeps them, but for billing lines (see
`strip_billing`). A sentence that merely holds a year or a number stays significant.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3
from xxhash import xxh3_128_digest

from runtime_actor.fair_map import FairMap
from serve_app.recognition.noise import without_noise

MAX_MEMO_ENTRIES = 4096
"""Canonical digests kept, shared fairly by tenants, least recently used out first."""

TOOLS_BYTES = 65_536
"""Of a request's tools without another allocation; more is a matter of time alone."""

MAX_MARKS = 30
"""Accents in a row, as in Unicode's stream-safe text; no language has half as many."""

_END_OF_MARKS = 0x20000
_MARKS = frozenset(filter(unicodedata.combining, map(chr, range(0x300, _END_OF_MARKS)))) | {*"\u0f73\u0f75\u0f81"}
"""Accents, and three signs that are made of nothing else."""

_IS_MARK = np.zeros(_END_OF_MARKS + 1, np.bool_)
_IS_MARK[[*map(ord, _MARKS)]] = True

LEADING_ROLES = frozenset({"system", "developer"})

_BILLING = re.compile(r"^[ \t]*x-[\w-]*billing-header[ \t]*:[^\n]*(?:\n|\Z)", re.IGNORECASE | re.MULTILINE)
_SPACES = bytes(0x20 if chr(code).isspace() and code < 0x80 else code for code in range(256))

_DIGITS = b"0123456789"

MAX_SIGNS = 4096
"""Colons and dashes of all tools that are looked at one by one."""

BETWEEN_DESCRIPTIONS = "\n" + 16 * "\0" + "\n"
"""More than any pattern reaches over."""

_encoder = msgspec.json.Encoder(order="sorted")
_packer = msgspec.msgpack.Encoder(order="sorted")
"""For what only gets digested: a fifth faster than JSON, which looks at every letter of a string."""


def strip_billing(text: str) -> str:
    """`text` without the lines a harness adds for its own billing."""
    # Searched from behind, which takes half the time.
    return _BILLING.sub("", text) if text.lower().rfind("billing-header") >= 0 else text


def canonical_text(text: str) -> str:
    """`text` with all that may differ between two requests of one agent made the same.

    These are billing lines, clocks and ids (see `noise.py`), white space, and the form of composed letters.
    """
    return _with_single_spaces(plain_text(text))


def plain_text(text: str) -> str:
    """As `canonical_text`, in the lines that it came in."""
    return without_noise(strip_billing(composed(text).removeprefix("\ufeff")))


def composed(text: str) -> str:
    """Letters with accents in one of the two forms that they have.

    A text with more accents in a row than any real one stays as it is: to put them in order takes the square of
    their number, minutes for a megabyte.
    """
    return text if text.isascii() or _has_too_many_marks(text) else unicodedata.normalize("NFC", text)


def _has_too_many_marks(text: str) -> bool:
    # So many in a row have one at a multiple of their number, and most texts have none there.
    if _MARKS.isdisjoint(text[:: MAX_MARKS + 1]):
        return False
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    runs = _IS_MARK[np.minimum(codes, _END_OF_MARKS)]
    # What begins a run of 2, of 4, and so on.
    size = 1
    while size <= MAX_MARKS:
        step = min(size, MAX_MARKS + 1 - size)
        runs = runs[:-step] & runs[step:]
        size += step
    return bool(runs.any())


def _with_single_spaces(text: str) -> str:
    if text.isascii():
        # Bytes are several times faster than `split` and `join`.
        spaced = text.encode().translate(_SPACES)
        # Two bytes are found twice as fast from behind as from the front.
        while spaced.rfind(b"  ") >= 0:
            spaced = spaced.replace(b"  ", b" ")
        return spaced.strip().decode()
    return " ".join(text.split())


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
    return canonical_json(_without_mark(part)).decode()


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
    """Digests of canonical texts, remembered by tenant and by what was sent: what one tenant sends takes no less time
    because another one has sent it.

    The memo's keys are the interpreter's own keyed hashes, several times faster than a digest: they never leave
    the process, and nobody outside can make two contents meet in one.

    `seed`: the application's, kept secret; see `digest_of_tools`.
    """

    def __init__(self, seed: int, max_entries: int = MAX_MEMO_ENTRIES) -> None:
        self._seed = seed
        self._memo: FairMap[int, bytes] = FairMap(max_entries)
        self._packed = bytearray(TOOLS_BYTES)
        self._plain = "", "", ""

    def of_text(self, tenant: str, text: str) -> bytes:
        part, raw = self._memo.part(tenant), hash(text)
        known = part.get(raw)
        if known is not None:
            part.move_to_end(raw)
            return known
        return self._remember(tenant, raw, digest(_with_single_spaces(self.plain(tenant, text)).encode()))

    def plain(self, tenant: str, text: str) -> str:
        """As `plain_text`, which takes long enough for the last one to be kept."""
        if self._plain[1] is not text or self._plain[0] != tenant:
            self._plain = tenant, text, plain_text(text)
        return self._plain[2]

    def of_tools(self, tenant: str, tools: Any) -> bytes:
        """As `digest_of_tools`, and without the clocks and ids that a description may hold."""
        sent = digest_of_tools(tools, self._packed, self._seed)
        if not sent:
            return sent
        part, raw = self._memo.part(tenant), hash(sent)
        known = part.get(raw)
        if known is not None:
            part.move_to_end(raw)
            return known
        cleaned = _cleaned(tools, self._packed)
        if cleaned:
            sent = digest_of_tools(_with_descriptions(tools, cleaned), self._packed, self._seed)
        return self._remember(tenant, raw, sent)

    def _remember(self, tenant: str, raw: int, result: bytes) -> bytes:
        self._memo.part(tenant)[raw] = result
        self._memo.trim(tenant)
        return result


def _cleaned(tools: list[Any], packed: bytearray) -> dict[str, str]:
    """Descriptions with a clock or an id in them, and those without: looked for where there are signs of one, anywhere
    in what was packed, or the word before a date without signs in what describes a tool: to find it anywhere takes
    12 us more.

    All are cleaned as one text, so that many cost no more than one.
    """
    if not (_has_sign(packed, b":") or _has_sign(packed, b"-")):
        try:
            text = "\n".join([tool["function"]["description"] for tool in tools])
        except (KeyError, TypeError):  # A tool without a description, or of another form.
            text = "\n".join(_descriptions(tools))
        if text.rfind(" date") < 0:
            return {}
    texts = [*dict.fromkeys(_descriptions(tools))]
    cleaned = without_noise(BETWEEN_DESCRIPTIONS.join(texts)).split(BETWEEN_DESCRIPTIONS)
    if len(cleaned) != len(texts):
        return {}
    return {text: clean for text, clean in zip(texts, cleaned, strict=True) if text != clean}


def _descriptions(value: Any) -> Iterator[str]:
    """Of tools and of their parameters, however deep."""
    if isinstance(value, dict):
        if isinstance(text := value.get("description"), str):
            yield text
        value = value.values()
    for inner in value:
        if isinstance(inner, (dict, list)):
            yield from _descriptions(inner)


def _has_sign(packed: bytearray, sign: bytes) -> bool:
    """Whether `sign` stands between digits, as in a time or a date, or where a UUID has it; or too often to tell."""
    at = packed.find(sign, 1)
    for _ in range(MAX_SIGNS):
        if at < 0:
            return False
        if packed[at - 1] in _DIGITS and packed[at + 1 : at + 2].isdigit():
            return True
        if packed[at + 5 : at + 6] == packed[at + 10 : at + 11] == sign:
            return True
        at = packed.find(sign, at + 1)
    return True


def _with_descriptions(value: Any, cleaned: dict[str, str], name: str = "") -> Any:
    """Tools, or what stands in them under `name`, with the descriptions that were cleaned; those of parameters too."""
    if isinstance(value, str):
        return cleaned.get(value, value) if name == "description" else value
    if isinstance(value, dict):
        return {key: _with_descriptions(inner, cleaned, key) for key, inner in value.items()}
    return [_with_descriptions(inner, cleaned) for inner in value] if isinstance(value, list) else value


def digest_of_tools(tools: Any, packed: bytearray, seed: int) -> bytes:
    """Doesn't depend on the order of the tools or of their keys, nor on marks for a client's own cache.

    XXH3, in a tenth of BLAKE3's time: tools with one digest would be one agent's, in a tenant whose clients may call
    any two agents one, and without the seed nobody can look for such tools. `packed` gets what was digested; one that
    is used again saves the system's work for 60 KB of memory.
    """
    if not isinstance(tools, list) or not tools:
        return b""
    try:
        # A tool of two keys has its type and its function.
        may_have_marks = sum(map(len, tools)) > 2 * len(tools)
    except TypeError:
        may_have_marks = True
    plain = [_without_mark(tool) for tool in tools] if may_have_marks else tools
    try:
        by_name = {tool["function"]["name"]: tool for tool in plain}
        if len(by_name) == len(plain):
            # One call for all, into one buffer: a fifth faster than one a tool.
            _packer.encode_into([by_name[name] for name in sorted(by_name)], packed)
            return xxh3_128_digest(packed, seed)
    except (KeyError, TypeError, OverflowError):  # Of another form, without names, or as below.
        pass
    try:
        parts = [_packer.encode(tool) for tool in plain]
    except OverflowError:  # A whole number beyond 64 bits, which JSON alone can hold.
        parts = [canonical_json(tool) for tool in plain]
    packed[:] = b"\n".join(sorted(parts))
    return xxh3_128_digest(packed, seed)


def _without_mark(item: Any) -> Any:
    """A tool or a part without what clients set for a cache of their own, and move from turn to turn."""
    if not isinstance(item, dict) or "cache_control" not in item:
        return item
    return {name: value for name, value in item.items() if name != "cache_control"}


def digest(data: bytes | bytearray) -> bytes:
    """Unkeyed digest of a text; BLAKE3, which takes a third of SHA-256's time."""
    return blake3(data).digest()
