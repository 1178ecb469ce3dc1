"""A window of session steps, five bytes each, and what can be counted from it.

Slots are small integers: agents 0..max_agents-1 (the last is OTHER), then START and END. A stage is (slot,
visits): the how-manieth request of that agent in its session, capped at MAX_VISITS. A team that goes
through its agents twice is ambiguous in its agents and plain in its stages.
"""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Stage = tuple[int, int]
Context = tuple[int, int, int]
"""(previous slot, current slot, visits of the current one)."""

MAX_SLOTS = 256
MAX_VISITS = 8
ANY_VISITS = 0
VISIT_BITS = 4

GAP_BINS = 44
"""Bin 0 is below the shortest gap; then two bins an octave, the last from about 11 hours up."""

SHORTEST_GAP_S = 0.02
CODES_A_BIN = 5
MAX_GAP_CODE = 1 + CODES_A_BIN * (GAP_BINS - 1)
"""Code 0: no gap; 1: shorter than the shortest; then ten codes an octave, so a code's middle is at most 3.5 %
off. A longer silence than the last code's counts as that, so that one forgotten session can't move a mean."""

LONGEST_GAP_S = 0.999 * SHORTEST_GAP_S * 2.0 ** ((MAX_GAP_CODE - 1) / (2 * CODES_A_BIN))

STEP_BYTES = 5


class Step(NamedTuple):
    """One step of a session: a request of `source`, whose request before was of `before`, led to `target`."""

    before: int
    source: int
    target: int
    gap_code: int
    source_visits: int = ANY_VISITS
    target_visits: int = ANY_VISITS

    @property
    def slots(self) -> tuple[int, int, int]:
        return self[:3]


def gap_code(gap_s: float | None) -> int:
    """Code of a silence; 0 where it isn't known."""
    if gap_s is None:
        return 0
    if gap_s < SHORTEST_GAP_S:
        return 1
    return 2 + int(2 * CODES_A_BIN * math.log2(min(gap_s, LONGEST_GAP_S) / SHORTEST_GAP_S))


def gap_seconds() -> NDArray[np.float64]:
    """Geometric middle of each code, seconds [MAX_GAP_CODE + 1]; of code 0: 0."""
    exponents = (np.arange(MAX_GAP_CODE - 1) + 0.5) / (2 * CODES_A_BIN)
    return np.concatenate([[0.0, SHORTEST_GAP_S / 2.0], SHORTEST_GAP_S * 2.0**exponents])


def gap_bin_centres_s() -> NDArray[np.float64]:
    """Geometric middle of each bin, seconds [GAP_BINS]."""
    exponents = (np.arange(1, GAP_BINS) - 0.5) / 2.0
    return np.concatenate([[SHORTEST_GAP_S / 2.0], SHORTEST_GAP_S * 2.0**exponents])


def _bin_of_code(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(codes <= 1, 0, (codes - 2) // CODES_A_BIN + 1)


class StepCounts:
    """Counts over a window.

    first [slots+2, slots+2]: (source, target), START and END included, repeats on the diagonal.
    stage_pairs [k, 5]: source, its visits, target, its visits, count; START is (start, 0), END (end, 0).
    contexts: (previous, current, visits) -> next stage -> count. gaps, ends [slots+2, GAP_BINS]: silences
    after a request of an agent that ended with the next request, or with the session's end. gap_s_sum,
    gap_count [slots+2]: of the former.
    """

    def __init__(self, rows: NDArray[np.uint8], start: int, end: int) -> None:
        size = end + 1
        self.start = start
        self.end = end
        before, source, target, codes, visits = rows.T.astype(np.int64)
        source_visits, target_visits = visits & ((1 << VISIT_BITS) - 1), visits >> VISIT_BITS
        self.first = np.bincount(source * size + target, minlength=size * size).reshape(size, size)
        source_stage = source << VISIT_BITS | source_visits
        target_stage = target << VISIT_BITS | target_visits
        width = MAX_SLOTS << VISIT_BITS
        pairs, counts = np.unique(source_stage * width + target_stage, return_counts=True)
        self.stage_pairs = np.column_stack([*_stage(pairs // width), *_stage(pairs % width), counts])
        self.contexts = _contexts(before, source_stage, target_stage, source != start)
        ended = target == end
        self.ends = _by_bin(source, codes, (codes > 0) & ended, size)
        self.gaps = _by_bin(source, codes, (codes > 0) & ~ended, size)
        self.gap_count = self.gaps.sum(axis=1)
        went_on = (codes > 0) & ~ended
        self.gap_s_sum = np.bincount(source[went_on], weights=gap_seconds()[codes[went_on]], minlength=size)


def _stage(stages: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return stages >> VISIT_BITS, stages & ((1 << VISIT_BITS) - 1)


def _by_bin(
    source: NDArray[np.int64], codes: NDArray[np.int64], chosen: NDArray[np.bool_], size: int
) -> NDArray[np.int64]:
    places = source[chosen] * GAP_BINS + _bin_of_code(codes[chosen])
    return np.bincount(places, minlength=size * GAP_BINS).reshape(size, GAP_BINS)


def _contexts(
    before: NDArray[np.int64], source: NDArray[np.int64], target: NDArray[np.int64], chosen: NDArray[np.bool_]
) -> dict[Context, Counter[Stage]]:
    width = MAX_SLOTS << VISIT_BITS
    keys, counts = np.unique((before * width + source)[chosen] * width + target[chosen], return_counts=True)
    contexts: dict[Context, Counter[Stage]] = {}
    columns = (keys // width // width, *_stage(keys // width % width), *_stage(keys % width), counts)
    for previous, current, visits, slot, slot_visits, count in zip(*(c.tolist() for c in columns), strict=True):
        contexts.setdefault((previous, current, visits), Counter())[slot, slot_visits] = count
    return contexts


class Window:
    """The newest `size` steps, in 5 * size bytes."""

    def __init__(self, size: int, start: int, end: int) -> None:
        if end >= MAX_SLOTS:
            raise ValueError(f"{end + 1} slots, START and END included, are more than {MAX_SLOTS}")
        self.size = size
        self._start = start
        self._end = end
        self._data = bytearray(STEP_BYTES * size)
        self._rows = np.frombuffer(self._data, np.uint8).reshape(size, STEP_BYTES)
        self._length = 0
        self._next = 0

    def __len__(self) -> int:
        return self._length

    def push(self, step: Step) -> tuple[int, ...] | None:
        """Add a step; the slots of the one that left the window for it."""
        before, source, target, code, source_visits, target_visits = step
        at = STEP_BYTES * self._next
        gone = None
        if self._length == self.size:
            gone = tuple(self._data[at : at + 3])
        else:
            self._length += 1
        packed = source_visits | target_visits << VISIT_BITS
        self._data[at : at + STEP_BYTES] = bytes((before, source, target, code, packed))
        self._next = (self._next + 1) % self.size
        return gone

    def rename(self, slot: int, name: int) -> None:
        """Steps that name `slot` name `name` from now on."""
        slots = self._rows[: self._length, :3]
        slots[slots == slot] = name

    def counts(self) -> StepCounts:
        return StepCounts(self._rows[: self._length], self._start, self._end)

    def uses(self) -> NDArray[np.int64]:
        """How often each slot is named [slots+2]."""
        return np.bincount(self._rows[: self._length, :3].ravel(), minlength=self._end + 1)

    def __iter__(self) -> Iterator[Step]:
        """Oldest first."""
        for before, source, target, code, visits in self._in_order().tolist():
            yield Step(before, source, target, code, visits & (1 << VISIT_BITS) - 1, visits >> VISIT_BITS)

    def _in_order(self) -> NDArray[np.uint8]:
        return (
            np.roll(self._rows[: self._length], -self._next, axis=0)
            if self._length == self.size
            else self._rows[: self._length]
        )

    def to_text(self) -> str:
        """Oldest first, base64 of five bytes a step."""
        return base64.b64encode(self._in_order().tobytes()).decode()

    def load(self, text: str) -> None:
        """Take the newest steps of `to_text`. Raises ValueError where one can't be."""
        data = base64.b64decode(text, validate=True)
        rows = np.frombuffer(data, np.uint8)
        if rows.size % STEP_BYTES:
            raise ValueError(f"a window of {rows.size} bytes is no number of steps")
        rows = rows.reshape(-1, STEP_BYTES)[-self.size :]
        agents = self._start
        before, source, target, codes, visits = rows.T.astype(np.int64)
        ok = (before <= agents) & (source <= agents) & ((target < agents) | (target == self._end))
        ok &= (codes <= MAX_GAP_CODE) & (visits & 15 <= MAX_VISITS) & (visits >> VISIT_BITS <= MAX_VISITS)
        if not ok.all():
            raise ValueError(f"window step {int(np.argmin(ok))} names what can't be: {rows[np.argmin(ok)].tolist()}")
        self._rows[: len(rows)] = rows
        self._length = len(rows)
        self._next = len(rows) % self.size
