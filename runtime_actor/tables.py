"""Reach tables of one workload: what an engine needs to value its blocks without asking anybody."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from runtime_actor.errors import MessageError

OTHER = "other"
"""Name of the slot that agents without one of their own share; always the last agent of a table."""

MAGIC = b"RTB2"
HEADER = struct.Struct("<4sHHHfff")
MAX_WIRE_BYTES = 25_000
"""What a workload may send down; `compute_tables` leaves out the contexts with least evidence beyond it."""

MAX_WIRE_AGENTS = 250
WAIT_POINTS = 24
MAX_VALUE = 1.0
ANY_VISITS = 0


@dataclass(frozen=True, eq=False)
class Waits:
    """What a session's silence says, by the agent of its last request [n, WAIT_POINTS], all in [0, 1].

    Point 0 is no silence, point k >= 1 is first_s * 2^((k-1)/2) seconds. going: share of gaps that are
    longer; silent_ends: share of the undeclared ends that nobody can know of yet; discount: expected
    discount of what is left of the gap.
    """

    first_s: float
    going: NDArray[np.float32]
    silent_ends: NDArray[np.float32]
    discount: NDArray[np.float32]

    def point(self, silent_s: float) -> int:
        if silent_s < self.first_s:
            return 0
        return min(1 + int(2.0 * math.log2(silent_s / self.first_s)), WAIT_POINTS - 1)


@dataclass(frozen=True, eq=False)
class ReachTables:
    """Discounted first-passage values of one workload's agents (n, OTHER last).

    first [n+1, n]: value of agent j's KV at the moment of a session's request of agent i; row n: of a
    session that is about to start. contexts [m, 3]: (previous, current, visits) with previous n for START
    and n + 1 for any, visits 0 for any; context_values [m, n] as `first`; context_ends [m]: P(the session
    ends). gap_s [n]: mean seconds from a request of an agent to its session's next; inf where never seen.
    end_probability [n]. arrivals_per_request: new sessions per request. gamma: discount of a mean gap.
    """

    workload: str
    agents: tuple[str, ...]
    first: NDArray[np.float32]
    contexts: NDArray[np.int16]
    context_values: NDArray[np.float32]
    arrivals_per_request: float
    gap_s: NDArray[np.float32]
    end_probability: NDArray[np.float32]
    context_ends: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    gamma: float = 0.9
    waits: Waits | None = None
    _positions: Mapping[str, int] = field(init=False, repr=False)
    _places: Mapping[tuple[int, int, int], int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_positions", {a: i for i, a in enumerate(self.agents)})
        places = {tuple(map(int, key)): k for k, key in enumerate(self.contexts)}
        object.__setattr__(self, "_places", places)

    @property
    def start(self) -> int:
        """Index of START, as a row of `first` and as a previous agent."""
        return len(self.agents)

    def index(self, agent: str) -> int:
        """Index of `agent`; OTHER's if it has no slot of its own."""
        return self._positions.get(agent, len(self.agents) - 1)

    def row(self, previous: int, current: int, visits: int = ANY_VISITS) -> NDArray[np.float32]:
        """Values [n] at the moment of a request of `current`, the session's `visits`-th of that agent.

        From the finest context that is known: with both, with visits, with previous, order 1.
        """
        place = self._place(previous, current, visits)
        return self.first[current] if place is None else self.context_values[place]

    def values(self, previous: int, current: int, visits: int, silent_s: float) -> NDArray[np.float32]:
        """`row` of a session that has been silent for `silent_s` since that request, within [0, 1].

        Silence brings the next request nearer, until it says that the session is over. Where ends are
        declared with the last request, a session that isn't declared over goes on: above `row` already
        at no silence.
        """
        row, factor = self.standing(previous, current, visits, silent_s)
        return np.minimum(row * np.float32(factor), MAX_VALUE)

    def standing(self, previous: int, current: int, visits: int, silent_s: float) -> tuple[NDArray[np.float32], float]:
        """The two factors of `values`, for callers that value many sessions at once."""
        place = self._place(previous, current, visits)
        row = self.first[current] if place is None else self.context_values[place]
        ends = self.end_probability[current] if place is None else self.context_ends[place]
        return row, self._waited(current, float(ends), silent_s)

    def alive(self, current: int, silent_s: float) -> float:
        """Factor that `silent_s` of silence puts on `row` where only the current agent is known."""
        return self._waited(current, float(self.end_probability[current]), silent_s)

    def _place(self, previous: int, current: int, visits: int) -> int | None:
        places = self._places
        anything = len(self.agents) + 1
        for key in (
            (previous, current, visits),
            (anything, current, visits),
            (previous, current, ANY_VISITS),
        ):
            place = places.get(key)
            if place is not None:
                return place
        return None

    def _waited(self, current: int, ends: float, silent_s: float) -> float:
        """P(goes on | silent) * E[discount of the rest] over the same at the request itself."""
        if self.waits is None:
            return 1.0
        waits = self.waits
        point = waits.point(silent_s)
        discount = float(waits.discount[current, point]) / max(float(waits.discount[current, 0]), 1e-6)
        going = (1.0 - ends) * float(waits.going[current, point])
        silent_end = ends * float(waits.silent_ends[current, point])
        if going + silent_end <= 0.0:
            return 0.0
        return discount * going / (going + silent_end) / max(1.0 - ends, 1e-6)

    # --- wire ---------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Little-endian; values as float16 (relative error below 0.05 %), waits in steps of 1/255."""
        names = [name.encode() for name in (self.workload, *self.agents)]
        n, m = len(self.agents), len(self.contexts)
        first_s = self.waits.first_s if self.waits else 0.0
        arrivals = self.arrivals_per_request
        waits = self.waits
        grids = (waits.going, waits.silent_ends, waits.discount) if waits else ()
        return b"".join(
            (
                HEADER.pack(MAGIC, n, m, len(names[0]), arrivals, self.gamma, first_s),
                names[0],
                *(bytes([len(name)]) + name for name in names[1:]),
                self.contexts.astype("u1").tobytes(),
                self.context_ends.astype("<f2").tobytes(),
                self.gap_s.astype("<f4").tobytes(),
                self.end_probability.astype("<f2").tobytes(),
                *(np.rint(grid * 255.0).astype("u1").tobytes() for grid in grids),
                self.first.astype("<f2").tobytes(),
                self.context_values.astype("<f2").tobytes(),
            )
        )

    @classmethod
    def from_bytes(cls, wire: bytes) -> ReachTables:
        """Raises MessageError, naming the field, unless `wire` is what `to_bytes` makes."""
        try:
            return _Reader(wire).tables()
        except (struct.error, UnicodeDecodeError, IndexError) as error:
            raise MessageError(f"reach tables: truncated or damaged: {error}") from error


def wire_bytes(workload: str, agents: tuple[str, ...], contexts: int) -> int:
    """Size of `to_bytes` for tables with these names and this many contexts."""
    n = len(agents)
    names = len(workload.encode()) + sum(1 + len(agent.encode()) for agent in agents)
    fixed = HEADER.size + names + n * 6 + 3 * n * WAIT_POINTS + (n + 1) * n * 2
    return fixed + contexts * (3 + 2 + 2 * n)


class _Reader:
    """Takes tables off a buffer, front to back, checking as it goes."""

    def __init__(self, wire: bytes) -> None:
        if not isinstance(wire, bytes):
            raise MessageError(f"reach tables: expected bytes, got {type(wire).__name__}")
        self._wire = wire
        self._at = 0

    def tables(self) -> ReachTables:
        header = HEADER.unpack(self._take(HEADER.size, "header"))
        magic, n, m, length, arrivals, gamma, first_s = header
        if magic != MAGIC:
            raise MessageError(f"reach tables: unknown version {magic!r}, only {MAGIC!r}")
        if not 1 <= n <= MAX_WIRE_AGENTS:
            raise MessageError(f"reach tables: {n} agents, allowed are 1 to {MAX_WIRE_AGENTS}")
        workload = self._take(length, "workload").decode()
        agents = tuple(self._take(self._take(1, "agents")[0], "agents").decode() for _ in range(n))
        if len(set(agents)) != n or agents[-1] != OTHER:
            raise MessageError(f"reach tables: agents must be unique and end with {OTHER!r}")
        contexts = self._array("u1", (m, 3), "contexts").astype(np.int16)
        if m and (contexts[:, 0].max() > n + 1 or contexts[:, 1].max() >= n):
            raise MessageError("reach tables: contexts name an agent that isn't there")
        context_ends = self._shares("<f2", (m,), "context_ends")
        gap_s = self._array("<f4", (n,), "gap_s")
        end = self._shares("<f2", (n,), "end_probability")
        if not (gap_s >= 0.0).all() or not 0.0 <= first_s < math.inf:
            raise MessageError("reach tables: gap_s and first_s must be from 0 up")
        if not 0.0 <= arrivals <= 1.0 or not 0.0 < gamma < 1.0:
            raise MessageError("reach tables: arrivals_per_request and gamma must be within [0, 1]")
        waits = None
        if first_s > 0.0:
            waits = Waits(first_s, self._grid(n), self._grid(n), self._grid(n))
        first = self._shares("<f2", (n + 1, n), "first")
        values = self._shares("<f2", (m, n), "context_values")
        if self._at != len(self._wire):
            raise MessageError(f"reach tables: {len(self._wire) - self._at} bytes too many")
        return ReachTables(workload, agents, first, contexts, values, arrivals, gap_s, end, context_ends, gamma, waits)

    def _grid(self, n: int) -> NDArray[np.float32]:
        """Shares in steps of 1/255."""
        return self._array("u1", (n, WAIT_POINTS), "waits").astype(np.float32) / np.float32(255.0)

    def _shares(self, dtype: str, shape: tuple[int, ...], name: str) -> NDArray[np.float32]:
        values = self._array(dtype, shape, name)
        if not ((values >= 0.0) & (values <= 1.0)).all():
            raise MessageError(f"reach tables: {name} must be within [0, 1]")
        return values

    def _take(self, count: int, name: str) -> bytes:
        part = self._wire[self._at : self._at + count]
        if len(part) != count:
            raise MessageError(f"reach tables: {name} is cut off")
        self._at += count
        return part

    def _array(self, dtype: str, shape: tuple[int, ...], name: str) -> NDArray:
        raw = self._take(math.prod(shape) * np.dtype(dtype).itemsize, name)
        array = np.frombuffer(raw, dtype=dtype).reshape(shape)
        return array if dtype == "u1" else array.astype(np.float32)
