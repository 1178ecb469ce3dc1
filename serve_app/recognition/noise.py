"""Clocks and run ids in a prompt: found by their form, and by the word that announces them (pure).

A text is looked at where its digits stand, since searching for the patterns themselves takes ten times as long:
a digit at the head of a word or before a letter is what a moment or an id can't do without. What is found there is

- a moment that can be nothing but a clock: a date with a time, a time with seconds, a weekday with its date;
- a date or a time alone, which needs a word near it (`Today is ...`, `Datum: ...`): a sentence may hold one;
- an id by its form: a UUID, ULID, hash, base64 or nanoid, or digits behind a word such as `req_`;
- anything behind `run id:`, `"sessionId":`, `<trace-id>` and the like, and a run's own number (see `run_numbers.py`);
- how far a run has come: `Step 3 of 20`, `9 turns left` (see `counters.py`).

A year, a version, a model's name, a number of steps or an opening hour stay what they are.
"""

import re
import string
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from serve_app.recognition import calendar_words as words
from serve_app.recognition.counters import counter_at
from serve_app.recognition.run_numbers import RUN, is_run_number, letters_before

LEAST_ID_CHARS = 12
"""A shorter run of letters and digits is a name, unless a word such as `req_` stands before it."""

LEAST_HEX_CHARS = 6
"""Directly behind what names a run, as in `thread 4f2a9c`."""

LEAST_COMMIT_CHARS = 7
"""As git shortens them, behind `HEAD` or `commit`."""

LEAST_JOINED_CHARS = 8
"""Behind a word and an underscore, as in `thread_abc123XYZ`: many names of tools and fields look so."""

LEAST_BASE64_CHARS = 16
LEAST_CHANGES = 0.45
"""Of a random id's neighbours, how many are of different kinds (upper, lower, digit); 0.6 is the mean."""

MAX_TOKEN_CHARS = 512
MAX_NEAR_CHARS = 64
"""How far before a date or time the word may stand that makes it a clock."""

MAX_PLACES = 2048
"""Digits of one text that are looked at, half from either end."""

MAX_PART_CHARS = 40
"""Of one date or time."""

MAX_TEMPORARY_CHARS = 40
"""How far before a digit the folder may be named that makes it a temporary name's."""

_MASK = "#"


_DIGIT, _LETTER, _STEP = 1, 2, 255
"""Classes of characters, all others are 0: so only from another to a digit and from a digit to a letter is it one up,
which is 255 when the second is taken from the first."""


def _classes() -> bytes:
    table = bytearray(256)
    for code in range(256):
        char = chr(code)
        if char.isascii() and char.isdigit():
            table[code] = _DIGIT
        elif (char.isascii() and char.isalpha()) or char == "?" or code > 0x7F:
            table[code] = _LETTER
    return bytes(table)


_CLASSES = _classes()

_YEAR = r"(?:19|20)\d\d(?!\d)"
_OF = r"(?: ?(?:of|de|d['’]|-|/|\.) ?| )"
_PART = re.compile(
    rf"(?P<day>{words.DAY}|{words.DAY_IN_BRACKETS})"
    r"|(?P<seconds>\d{1,2}:\d\d:\d\d(?:[.,]\d+)?(?: ?[ap]\.?m\b\.?)?)"
    r"|(?P<stamp>20[0-4]\d[01]\d[0-3]\d[T_-]?[0-2]\d[0-5]\d[0-5]\d(?:[.,]?\d{3,6})?(?!\d|\.\d)"
    r"|\d{4}-\d\d-\d\d[T_ -]\d\d-\d\d-\d\d(?![\d-])"
    r"|20[0-4]\d[01]\d[0-3]\d(?-i:T)[0-2]\d[0-5]\d(?!\d)"
    r"|(?<=datetime\()\d{4}(?:, ?\d{1,2}){4,5}(?:, ?\d{1,6})?(?!\d))"
    r"|(?P<time>\d{1,2}:\d\d(?![\d:])(?: ?[ap]\.?m\b\.?| uhr\b)?"
    rf"|\d{{1,2}}(?:\.\d\d)? ?(?:[ap]\.m\.|[ap]m\b|uhr\b|o'clock)|\d\d?h\d\d\b|{words.TIMES_WITH_SIGNS})"
    r"|(?P<date>\d{4}(?:-\d{1,2}-|/\d{1,2}/|\.\d{1,2}\.)\d{1,2}(?!\d)"
    r"|\d{1,2}(?:-\d{1,2}-|/\d{1,2}/|\.\d{1,2}\.)\d{4}(?!\d)|\d\d?/\d\d?/\d\d(?!\d)|\d\d\.\d\d\.\d\d(?![\d.])"
    r"|\d{4}-w\d\d(?:-\d)?\b|\d{4}-[0-3]\d\d(?!\d)|20[0-4]\d[01]\d[0-3]\d(?!\d)"
    r"|20\d\d[/-](?:0[1-9]|1[0-2])(?![\w/-]|\.\d)|(?<=date\()\d{4}(?:, ?\d{1,2}){2}(?!\d)"
    rf"|{words.DATES_WITH_SIGNS}"
    rf"|\d{{1,2}}(?:st|nd|rd|th|er|º|\.)?{_OF}{words.MONTH}\.?(?:,?{_OF}{_YEAR}{words.AFTER_YEAR})?"
    rf"|{words.MONTH}\.? +(?:the )?(?:\d{{1,2}}(?![\d:])(?:st|nd|rd|th)?(?:,? {_YEAR})?|{_YEAR}))"
    r"|(?P<epoch>1\d{9}(?:\d{3}){0,3}(?:\.\d+)?(?![\w.-]))"
    rf"|(?P<year>{_YEAR})"
    r"|(?P<zone>(?-i:Z|UTC|GMT|[A-Z]{2,4}T)\b(?:[+-]\d{1,2}(?::?\d\d)?)?|[+-]\d\d:?\d\d(?: (?-i:[A-Z]{3,4})\b)?)"
    r"|(?P<since>m=[+-]\d+\.\d+)",
    re.IGNORECASE,
)
_BETWEEN = re.compile(words.BETWEEN, re.IGNORECASE)
_BEFORE = re.compile(
    rf"(?:{words.DAY}\.?[ ,，、(（]*(?:the |der |den |le |el )?)?(?:\b{words.MONTH}\.? +(?:the )?)?\Z", re.IGNORECASE
)

_WORD_BEFORE = re.compile(
    rf"(?:{words.CLOCK_WORD})[^\n\d]{{0,48}}(?:\n[^\w]{{0,8}})?\Z|\b(?:{words.IT_IS}) \Z", re.IGNORECASE
)
_WORD_AFTER = re.compile(r"\W{0,3}(?:right )?(?:now|today|currently|local time)\b", re.IGNORECASE)
_WEEKDAY_ALONE = re.compile(
    rf"oday(?:['’]s date)?(?: is|:) ({words.DAY})(?![ ,]*(?:(?:the|der|den|le|el) )?(?:\d|{words.MONTH}\.? \d))",
    re.IGNORECASE,
)

_NOUN = (
    r"(?:run|request|req|session|sess|trace|span|conversation|conv|thread|task|job|correlation|invocation|execution|exec"
    r"|message|msg|workflow|chat|call|batch|trajectory|interaction|transaction|event|turn|process|user|sandbox|sbx|container|pod)"
)
_NOUN_BEFORE = re.compile(rf"(?<![^\W_])(?<!</){_NOUN}[ _-]?\Z", re.IGNORECASE)
_GIVEN = re.compile(
    r"id[\"'`*]*(?:[ \t]{0,8}(?:[:=]|=>)[ \t]{0,8}|>[ \t]{0,8}| +(?=[\"'`#<\[{])| is (?=[^\s.,]{0,64}\d))[\"'`*#(<\[{]*"
    r"([^\s\"'`<>,;)\]}]{0,256}[^\s\"'`<>,;)\]}.])",
    re.IGNORECASE,
)
_NAMED = re.compile(
    rf"(?<![^\W_])(?:{_NOUN}|chatcmpl|resp|wf|nonce|uuid|guid)\b[\"'`]*(?:\s{{0,8}}[:=]\s{{0,8}}|[-_])[\"'`]*\Z",
    re.IGNORECASE,
)
_JOINED = re.compile(rf"(?<![^\W_])(?:{_NOUN}|chatcmpl|resp|wf|toolu)_\Z", re.IGNORECASE)
_NOUN_AT_HEAD = re.compile(rf"(?:{_NOUN}|chatcmpl|resp|wf|toolu)[_-]", re.IGNORECASE)
_COMMIT_BEFORE = re.compile(
    r"(?<![^\W_])(?:HEAD|commit|revision|rev|sha)[\"'`*]{0,3}(?: ?[:=@] ?| (?:is )?(?:now )?(?:at )?)[\"'`(]?\Z",
    re.IGNORECASE,
)
_RUN_BEFORE = re.compile(rf"(?<![^\W_]){RUN} \Z", re.IGNORECASE)
_TEMPORARY = re.compile(
    r"/tmp(?:(?P<whole>[a-z0-9_]{8})|(?:/[a-z]{1,24})?[._-](?P<tail>[0-9A-Za-z]{6,12}))(?!\w)",
)
"""A folder or file as Python's `tempfile`, Node's `mkdtemp` or `mktemp` name it."""

_UUID_HERE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?![0-9a-f])", re.IGNORECASE)
_PIECE = re.compile(r"[0-9A-Za-z+/]+={0,2}")
_DASHED = re.compile(r"[0-9A-Za-z]+(?:[_-]+[0-9A-Za-z]+)+")
_ID_CHARS = frozenset(string.ascii_letters + string.digits + "_+/-")
_DIGITS = re.compile(r"[0-9]+")
_TO_LAST_DIGIT = re.compile(r".*\d", re.DOTALL)
_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}\Z")
_HEX = re.compile(r"(?:[0-9a-f]+|[0-9A-F]+)\Z")
_WORD_OR_AMOUNT = re.compile(r"[A-Za-z]{4,}\d+\Z|\d+(?![0-9a-f]{2,}\Z)[A-Za-z]*\Z")
"""`planner17`, `2000`, `1500ms`."""

_FIXED_SPACES = "\u00a0\u202f\u2009\u3000"

_ARABIC_DIGITS = {first + digit: str(digit) for first in (0x660, 0x6F0) for digit in range(10)}
_SIGNS_OF_ARABIC = "\u0627\u0662\u06f2"
"""A letter that every Arabic or Persian text has, and the digit that every year has."""

_MOMENTS = frozenset({"seconds", "stamp", "time", "date", "epoch"})
_CLOCKS = frozenset({"seconds", "stamp"})

Span = tuple[int, int]


def without_noise(text: str) -> str:
    """`text` with each moment and id made the same. The rest, and so its length, is as it was."""
    parts: list[str] = []
    done = 0
    spaced = text if text.isascii() else _with_plain_signs(text)
    for start, end in sorted({*_ids_given(spaced), *_weekdays(spaced), *_near_digits(spaced)}):
        if start >= done:
            parts += text[done:start], _MASK
            done = end
    return "".join((*parts, text[done:])) if parts else text


def _with_plain_signs(text: str) -> str:
    """Dates and times are often written with spaces at which no line breaks, and in Arabic with digits of its own."""
    for space in _FIXED_SPACES:
        text = text.replace(space, " ")
    return text.translate(_ARABIC_DIGITS) if any(sign in text for sign in _SIGNS_OF_ARABIC) else text


def _positions(word: str, text: str) -> list[int]:
    """Where `word` stands; of very many places those near either end."""
    found: list[int] = []
    # Short words are found faster from behind than from the front.
    at = text.rfind(word)
    while at >= 0:
        found.append(at)
        at = text.rfind(word, 0, at)
    return _from_both_ends(found[::-1])


def _from_both_ends(places: list[int]) -> list[int]:
    return places if len(places) <= MAX_PLACES else places[: MAX_PLACES // 2] + places[-MAX_PLACES // 2 :]


def _ids_given(text: str) -> Iterator[Span]:
    for at in _positions("id", _lowered(text)):
        if text[at + 2 : at + 3].isalnum() or not (text[at] == "I" or text[at - 1 : at] in (" ", "_", "-")):
            continue
        given = _GIVEN.match(text, at)
        if given is not None and _NOUN_BEFORE.search(text, max(0, at - 16), at) is not None:
            yield given.span(1)


def _lowered(text: str) -> str:
    """As long as `text`: the one letter whose lower case is longer is made another."""
    lowered = text.lower()
    return lowered if len(lowered) == len(text) else text.replace("\u0130", "i").lower()


def _weekdays(text: str) -> Iterator[Span]:
    for at in _positions("oday", text):
        found = _WEEKDAY_ALONE.match(text, at)
        if found is not None:
            yield found.span(1)


def _near_digits(text: str) -> Iterator[Span]:
    done = 0
    for at in _from_both_ends(_digit_places(text)):
        if at < done:
            continue
        start, end = _digits_around(text, at, done)
        found = _moment_at(text, start, done)
        if found is None:
            found, end = _id_at(text, start, end, done)
        if found is not None:
            yield found
            end = found[1]
        done = end


def _digit_places(text: str) -> list[int]:
    """The first digits of words, those before a letter, and what the text begins with if that is one."""
    # One byte a character, so that places are the same in both.
    shape = np.frombuffer(text.encode("latin-1", "replace").translate(_CLASSES), np.uint8)
    steps = shape[:-1] - shape[1:]
    # A search for one byte takes no time beside the comparison of all.
    places: list[int] = []
    if _STEP in steps.tobytes():
        (before,) = np.nonzero(steps == _STEP)
        places = np.unique(before + (shape[before] != _DIGIT)).tolist()
    if text and shape[0] == _DIGIT and places[:1] != [0]:
        places.insert(0, 0)
    return places


def _digits_around(text: str, at: int, done: int) -> Span:
    start = at
    while start > done and text[start - 1] in "0123456789":
        start -= 1
    end = _DIGITS.match(text, at)
    return start, at + 1 if end is None else end.end()


def _moment_at(text: str, start: int, done: int) -> Span | None:
    """The clock whose first digits stand at `start`, with the weekday and month before them."""
    first = _PART.match(text, start, start + MAX_PART_CHARS)
    begin = start
    preceding = text[max(done, start - 16) : start].split()
    # Where words aren't set apart by spaces the last of them has to be looked for.
    if preceding and (preceding[-1][:3].strip(",.").lower() in words.HEADS or not preceding[-1].isascii()):
        before = _BEFORE.search(text, max(done, start - 32), start)
        begin = start if before is None else before.start()
    if begin == start and (first is None or first.lastgroup == "year"):
        return None
    kinds: set[str | None] = set()
    at = end = begin
    while (part := _PART.match(text, at, at + MAX_PART_CHARS)) is not None:
        if part.lastgroup in kinds:
            break
        kinds.add(part.lastgroup)
        end = part.end()
        between = _BETWEEN.match(text, end)
        at = end if between is None else between.end()
    if end <= start or not kinds & _MOMENTS:
        return None
    is_clock = bool(kinds & _CLOCKS) or ("date" in kinds and bool(kinds & {"time", "day"}))
    return (begin, end) if is_clock or _is_told(text, begin, end) else None


def _is_told(text: str, start: int, end: int) -> bool:
    """Whether a word near a date or time says that it is a clock's."""
    if start > 0 and text[start - 1] in "-/.":
        return False
    low = max(0, start - MAX_NEAR_CHARS)
    digits = _TO_LAST_DIGIT.match(text, low, start)
    near = text[low if digits is None else digits.end() : start]
    return _WORD_BEFORE.search(near) is not None or _WORD_AFTER.match(text, end) is not None


def _id_at(text: str, at: int, end: int, done: int) -> tuple[Span | None, int]:
    """The id that has the digits from `at` to `end`, and up to where was looked."""
    letters = letters_before(text, at)
    counter = counter_at(text, at, end, letters)
    if counter is not None:
        return counter, counter[1]
    if is_run_number(text, at, end, letters):
        return (at, end), end
    temporary = _temporary_at(text, at, done)
    if temporary is not None:
        return temporary, temporary[1]
    start = at
    while start > done and at - start < MAX_TOKEN_CHARS and text[start - 1] in _ID_CHARS:
        start -= 1
    uuid = _UUID_HERE.match(text, start)
    if uuid is not None:
        return uuid.span(), uuid.end()
    head = 1 + max(start - 1, text.rfind("/", start, at), text.rfind("+", start, at))
    whole = _DASHED.match(text, head, at + MAX_TOKEN_CHARS)
    if whole is not None and _is_random(whole.group()) and not _NOUN_AT_HEAD.match(whole.group()):
        return whole.span(), whole.end()
    for piece in _PIECE.finditer(text, start, at + MAX_TOKEN_CHARS):
        if piece.end() > at:
            is_id = piece.start() <= at and _is_id(text, *piece.span())
            return piece.span() if is_id else None, max(end, piece.end() if piece.start() <= at else end)
    return None, end


def _temporary_at(text: str, at: int, done: int) -> Span | None:
    folder = text.rfind("/tmp", max(done, at - MAX_TEMPORARY_CHARS), at)
    found = _TEMPORARY.match(text, folder) if folder >= 0 else None
    if found is None or found.end() <= at:
        return None
    if found["tail"] is not None and _changes(found["tail"]) < 3:
        return None
    return found.span(str(found.lastgroup))


def _is_id(text: str, start: int, end: int) -> bool:
    token = text[start:end]
    digits = sum(map(str.isdigit, token))
    if _NAMED.search(text, max(0, start - 24), start):
        return len(token) >= 4 and digits >= 2 and _WORD_OR_AMOUNT.match(token) is None
    if len(token) < LEAST_HEX_CHARS or digits < 2:
        return False
    is_hex = _HEX.match(token) is not None
    if is_hex and len(token) >= LEAST_COMMIT_CHARS and _COMMIT_BEFORE.search(text, max(0, start - 24), start):
        return True
    if is_hex and _changes(token) >= 2 and _RUN_BEFORE.search(text, max(0, start - 16), start):
        return True
    if len(token) < LEAST_JOINED_CHARS:
        return False
    if text[start - 1 : start] == "_" and _JOINED.search(text, max(0, start - 24), start) and _changes(token) >= 3:
        return True
    if len(token) < LEAST_ID_CHARS or digits < 3 or digits == len(token):
        return False
    return is_hex or _ULID.match(token) is not None or _is_random(token)


def _is_random(token: str) -> bool:
    """Whether upper and lower case and digits change as often as in base64."""
    if len(token) < LEAST_BASE64_CHARS or sum(map(str.isdigit, token)) < 3:
        return False
    return _changes(token) >= LEAST_CHANGES * sum(map(str.isalnum, token))


def _changes(token: str) -> int:
    """How many neighbours are of different kinds: upper, lower, digit."""
    kinds = [char.isdigit() + 2 * char.isupper() for char in token if char.isalnum()]
    return sum(one != other for one, other in pairwise(kinds))
