"""Plain numbers that name a run: `Run: 17`, `Session #8841`, `/data/run_17/` (pure).

`Budget per task: 1000 tokens` and `Timeout of a request: 1500 ms` are limits, and what two agents differ in. So a
number counts only where its noun stands for the run itself, nothing stands before the noun that the number could be a
limit of, and nothing behind the number that it could be an amount of. A year is never one.
"""

import re

RUN = r"(?:run|session|sess|trace|thread|conversation|conv|trajectory|invocation|execution|exec|correlation)"
"""A request, a task or a turn may be any of many: their numbers are limits."""

MAX_BEFORE_CHARS = 48
_MARKS = " #:=>_-\"'`*$€£~"
_ENDS = frozenset({"run", "ion", "ess", "ace", "ead", "onv", "ory", "xec", "nce", "uid", "req", "est", "job"})
"""Of the nouns: few numbers have one before them, and only there more is looked at."""

_HEAD = r"(?:^|[\n\"'`(\[{<|;]|[.!] )[ \t#>*-]{0,8}[\"'`]?(?:(?:this|your|my|the current|the|current) )?"
_IS = r"(?: ?[:=>]\*{0,2} ?|[-_])[\"'`]?"
_BEFORE = re.compile(
    rf"(?:{_HEAD}(?:(?P<told>(?:{RUN}|nonce|uuid|guid)[\"'`*]{{0,3}}{_IS})|(?P<bare>{RUN} ))"
    rf"|(?P<part>(?:/|[:=] ?[\"'`]?){RUN}[-_])|(?P<value>[:=] ?[\"'`]?(?:req|request|job)[-_])"
    rf"|(?P<sign>(?<![^\W_])(?:{RUN}|request|job) ?#))\Z",
    re.IGNORECASE,
)
_LEAST_DIGITS = {"told": 2, "bare": 3, "part": 2, "value": 4, "sign": 1}
_BEHIND = re.compile(r"[\"'`*]{0,3}[ \t]{0,4}(?:\Z|[\n\r)\]}>|<;]|[,/.](?!\d))")
_YEAR = re.compile(r"(?:19|20)\d\d\Z")


def letters_before(text: str, start: int) -> str:
    """The last three before the number at `start` and the marks that set it off."""
    return text[max(0, start - 12) : start].rstrip(_MARKS)[-3:].lower()


def is_run_number(text: str, start: int, end: int, letters: str) -> bool:
    """Whether the digits from `start` to `end` are one; `letters`: as of `letters_before`."""
    if letters not in _ENDS:
        return False
    # What is behind is known much sooner than what is before.
    is_alone = _BEHIND.match(text, end) is not None and _YEAR.match(text, start, end) is None
    if not is_alone and text[start - 1] != "#":
        return False
    before = _BEFORE.search(text, max(0, start - MAX_BEFORE_CHARS), start)
    if before is None or end - start < _LEAST_DIGITS[str(before.lastgroup)]:
        return False
    return is_alone or (before.lastgroup == "sign" and not text[end : end + 1].isalnum())
