"""Patterns in text that is whole, and in text that comes in pieces (pure).

`regex` rather than `re`: it can give up after a time, and it can say that a text may be the beginning of a
match, so that no more than that is held back of a stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import regex

from runtime_actor.errors import ConfigurationError

T = TypeVar("T")

SCAN_LIMIT_S = 0.05
"""Of all searches in one prompt, or in one piece of an answer, in time of a core. Longer is a fault of a pattern, or an
attack; waiting for a core is neither."""
SCAN_WAIT_S = 1.0
"""And on the clock: meanwhile this process does nothing else."""
MAX_HELD_CHARS = 4096
CONTEXT_CHARS = 64
"""Of what went out already, for patterns that look behind or at a word's edge."""
WITHHELD = "[withheld]"


class ScanTimeout(Exception):
    """Raised when a search didn't end in time: the text can't be judged."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """`refuses`: a match is not to be replaced but ends it."""

    name: str
    compiled: Any
    refuses: bool
    replacement: str


def compiled(path: str, name: str, pattern: str, refuses: bool, replacement: str) -> Pattern:
    """Raises ConfigurationError for what isn't a pattern, or one that matches nothing at all."""
    try:
        made = regex.compile(pattern)
    except (regex.error, RecursionError) as error:
        raise ConfigurationError(
            f"{path}: {pattern!r} is not allowed; allowed: a regular expression ({error})"
        ) from None
    if made.search("") is not None:
        raise ConfigurationError(
            f"{path}: {pattern!r} is not allowed; allowed: a pattern that can't match an empty text"
        )
    return Pattern(name, made, refuses, replacement)


class Scan:
    """Searches that may take SCAN_LIMIT_S together."""

    def __init__(self) -> None:
        self._ends_s = time.thread_time() + SCAN_LIMIT_S
        self._latest_s = time.monotonic() + SCAN_WAIT_S

    def search(self, pattern: Pattern, text: str, start: int = 0, partial: bool = False) -> Any:
        """The first match from `start` on. Raises ScanTimeout."""
        compiled = pattern.compiled
        return self._timed(
            pattern,
            lambda left_s: compiled.search(text, start, partial=partial, timeout=left_s, concurrent=True),
        )

    def redacted(self, pattern: Pattern, text: str) -> tuple[str, int]:
        """The text with each match replaced, and how many there were. Raises ScanTimeout."""
        compiled = pattern.compiled
        return self._timed(
            pattern,
            lambda left_s: compiled.subn(lambda _: pattern.replacement, text, timeout=left_s, concurrent=True),
        )

    def _timed(self, pattern: Pattern, job: Callable[[float], T]) -> T:
        """`regex` looks at the clock: a job that was stopped while others had the core is done again."""
        while (left_s := self._ends_s - time.thread_time()) > 0.0 and time.monotonic() < self._latest_s:
            try:
                return job(left_s)
            except TimeoutError:
                continue
        raise ScanTimeout(pattern.name)


class StreamScanner:
    """One text in pieces. `hits` are the names of the patterns that matched; once one that refuses has, or a
    search didn't end in time, nothing more goes out."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns = patterns
        self._context = ""
        self._held = ""
        self.is_ended = False
        self.hits: list[str] = []

    def feed(self, text: str) -> str:
        return self._scan(text, is_last=False)

    def end(self) -> str:
        return self._scan("", is_last=True)

    def _scan(self, text: str, is_last: bool) -> str:
        if self.is_ended:
            return ""
        self._held += text
        out = ""
        scan = Scan()
        while self._held:
            try:
                found = self._first(scan, is_last)
            except ScanTimeout as timeout:
                return out + self._withhold(str(timeout))
            if found is None:
                return out + self._release(len(self._held))
            pattern, start, end, is_open = found
            out += self._release(start)
            if is_open and end - start <= MAX_HELD_CHARS:
                return out
            if pattern.refuses or is_open:
                return out + self._withhold(pattern.name)
            self.hits.append(pattern.name)
            out += pattern.replacement
            self._context = ""
            self._held = self._held[end - start :]
            if start == end:
                # A match of nothing, at a word's edge say: the text behind it goes on.
                out += self._release(1)
        return out

    def _first(self, scan: Scan, is_last: bool) -> tuple[Pattern, int, int, bool] | None:
        """The match that begins first as (pattern, start, end, whether it may still grow) in what is held."""
        best: tuple[Pattern, int, int, bool] | None = None
        whole = self._context + self._held
        offset = len(self._context)
        for pattern in self._patterns:
            match = scan.search(pattern, whole, offset, partial=not is_last)
            if match is None:
                continue
            start, end = match.start() - offset, match.end() - offset
            is_open = not is_last and (match.partial or end == len(self._held))
            if best is None or (start, -end) < (best[1], -best[2]):
                best = (pattern, start, end, is_open)
        return best

    def _release(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        self._context = (self._context + text)[-CONTEXT_CHARS:]
        return text

    def _withhold(self, name: str) -> str:
        self.hits.append(name)
        self.is_ended = True
        self._held = ""
        return WITHHELD
