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

MAGIC = b"RTB1"
HEADER = struct.Struct("<4sHHHf")
MAX_WIRE_BYTES = 25_000
"""What a workload may send down; `compute_tables` leaves out the pairs with least evidence beyond it."""

MAX_WIRE_AGENTS = 255


@dataclass(frozen=True, eq=False)
class ReachTables:
    """Discounted first-passage values of one workload's agents (n, OTHER last).

    first [n+1, n]: value of agent j's KV to a session whose last request was agent i's; row n is START.
    second [m, n]: the same for the pairs (previous, current) in second_pairs [m, 2]; previous may be n.
    gap_s [n]: mean seconds from a request of an agent to its session's next; inf where never seen.
    end_probability [n]: P(the session ends after a request of the agent).
    arrivals_per_request: new sessions per request of the workload.
    """

    workload: str
    agents: tuple[str, ...]
    first: NDArray[np.float32]
    second_pairs: NDArray[np.int16]
    second: NDArray[np.float32]
    arrivals_per_request: float
    gap_s: NDArray[np.float32]
    end_probability: NDArray[np.float32]
    _positions: Mapping[str, int] = field(init=False, repr=False)
    _pairs: Mapping[tuple[int, int], int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_positions", {a: i for i, a in enumerate(self.agents)})
        pairs = {(int(p), int(c)): k for k, (p, c) in enumerate(self.second_pairs)}
        object.__setattr__(self, "_pairs", pairs)

    @property
    def start(self) -> int:
        """Index of START, as a row of `first` and as a previous agent."""
        return len(self.agents)

    def index(self, agent: str) -> int:
        """Index of `agent`; OTHER's if it has no slot of its own."""
        return self._positions.get(agent, len(self.agents) - 1)

    def row(self, previous: int, current: int) -> NDArray[np.float32]:
        """Values [n] for a session that went previous -> current: order 2 if known, else order 1."""
        pair = self._pairs.get((previous, current))
        return self.first[current] if pair is None else self.second[pair]

    def alive(self, current: int, silent_s: float) -> float:
        """P(a session isn't over | silent for `silent_s` since a request of agent `current`), relative
        to a session that has just spoken: 1.0 at 0 s, falling to 0.

        Bayes over two cases, the session ended (probability e) or its next request comes after a gap
        of heavy tail with mean g: survival of a Lomax distribution of shape 2, (1 + s/g)^-2.
        """
        gap_s = float(self.gap_s[current])
        end = float(self.end_probability[current])
        if not math.isfinite(gap_s) or silent_s <= 0.0 or end >= 1.0:
            return 1.0
        survival = (1.0 + silent_s / max(gap_s, 1e-3)) ** -2
        return survival / ((1.0 - end) * survival + end)

    # --- wire ---------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Little-endian; values travel as float16 (relative error below 0.05 %)."""
        names = [name.encode() for name in (self.workload, *self.agents)]
        n, m = len(self.agents), len(self.second_pairs)
        head = HEADER.pack(MAGIC, n, m, len(names[0]), self.arrivals_per_request)
        return b"".join(
            (
                head,
                names[0],
                *(bytes([len(name)]) + name for name in names[1:]),
                self.second_pairs.astype("u1").tobytes(),
                self.gap_s.astype("<f4").tobytes(),
                self.end_probability.astype("<f2").tobytes(),
                self.first.astype("<f2").tobytes(),
                self.second.astype("<f2").tobytes(),
            )
        )

    @classmethod
    def from_bytes(cls, wire: bytes) -> ReachTables:
        """Raises MessageError, naming the field, unless `wire` is what `to_bytes` makes."""
        try:
            return _Reader(wire).tables()
        except (struct.error, UnicodeDecodeError, IndexError) as error:
            raise MessageError(f"reach tables: truncated or damaged: {error}") from error


def wire_bytes(workload: str, agents: tuple[str, ...], pairs: int) -> int:
    """Size of `to_bytes` for tables with these names and this many order-2 pairs."""
    n = len(agents)
    names = len(workload.encode()) + sum(1 + len(agent.encode()) for agent in agents)
    return HEADER.size + names + n * 6 + (n + 1) * n * 2 + pairs * (2 + 2 * n)


class _Reader:
    """Takes tables off a buffer, front to back, checking as it goes."""

    def __init__(self, wire: bytes) -> None:
        if not isinstance(wire, bytes):
            raise MessageError(f"reach tables: expected bytes, got {type(wire).__name__}")
        self._wire = wire
        self._at = 0

    def tables(self) -> ReachTables:
        magic, n, m, length, arrivals = HEADER.unpack(self._take(HEADER.size, "header"))
        if magic != MAGIC:
            raise MessageError(f"reach tables: unknown version {magic!r}, only {MAGIC!r}")
        if not 1 <= n <= MAX_WIRE_AGENTS:
            raise MessageError(f"reach tables: {n} agents, allowed are 1 to {MAX_WIRE_AGENTS}")
        workload = self._take(length, "workload").decode()
        agents = tuple(self._take(self._take(1, "agents")[0], "agents").decode() for _ in range(n))
        if len(set(agents)) != n or agents[-1] != OTHER:
            raise MessageError(f"reach tables: agents must be unique and end with {OTHER!r}")
        pairs = self._array("u1", (m, 2), "second_pairs").astype(np.int16)
        if m and (pairs[:, 0].max() > n or pairs[:, 1].max() >= n):
            raise MessageError("reach tables: second_pairs names an agent that isn't there")
        gap_s = self._array("<f4", (n,), "gap_s")
        end = self._array("<f2", (n,), "end_probability")
        first = self._array("<f2", (n + 1, n), "first")
        second = self._array("<f2", (m, n), "second")
        if self._at != len(self._wire):
            raise MessageError(f"reach tables: {len(self._wire) - self._at} bytes too many")
        for name, values in (("end_probability", end), ("first", first), ("second", second)):
            if not ((values >= 0.0) & (values <= 1.0)).all():
                raise MessageError(f"reach tables: {name} must be within [0, 1]")
        if not (gap_s >= 0.0).all() or not 0.0 <= arrivals <= 1.0:
            raise MessageError("reach tables: gap_s or arrivals_per_request out of range")
        return ReachTables(workload, agents, first, pairs, second, arrivals, gap_s, end)

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
