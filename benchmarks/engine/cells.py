"""What is measured: cells, the order in which they run, and the file that they are kept in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.trace_format import TraceError

STOCK = "stock"
REACH_ALONE = "reach-no-prefetch"
SHAPED = "reach-shaped"
FAIR = "reach-fair"
CLOSED = "closed"
POISSON = "poisson"
RECORDED = "recorded"
LOOPS = (CLOSED, POISSON, RECORDED)


@dataclass(frozen=True, slots=True)
class Mode:
    """What of this project's is on: the order of eviction, warm-ups ahead of need, the order of an engine's queue
    and that of the gateway's."""

    order: str
    prefetch: bool = False
    shaped: bool = False
    fair: bool = False

    @property
    def kv_cache(self) -> dict[str, Any]:
        """For POST /runtime/policy."""
        return {"mode": self.order, "prefetch": self.prefetch}


MODES: dict[str, Mode | None] = {
    STOCK: None,
    "lru": Mode("lru"),
    "ttl": Mode("ttl"),
    "cachesage": Mode("cachesage"),
    "cachescout": Mode("cachescout"),
    "anchors": Mode("anchors"),
    REACH_ALONE: Mode("reach"),
    "reach": Mode("reach", prefetch=True),
    SHAPED: Mode("reach", prefetch=True, shaped=True),
    FAIR: Mode("reach", prefetch=True, fair=True),
}
"""Policy -> how it is served; None: `ray.serve.llm` as shipped, without this project's layer."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy on one schedule. `load`: offered, as a share of stock's saturation; 0 in a closed loop."""

    workload: str
    anchors: str
    loop: str
    load: float
    seed: int
    policy: str

    @property
    def name(self) -> str:
        load = f" {self.load:g}" if self.load else ""
        return f"{self.workload} {self.anchors} {self.loop}{load} seed {self.seed} {self.policy}"


@dataclass(frozen=True, slots=True)
class Grid:
    workloads: tuple[str, ...]
    anchors: tuple[str, ...]
    loops: tuple[str, ...]
    loads: tuple[float, ...]
    seeds: tuple[int, ...]
    policies: tuple[str, ...]

    def cells(self) -> Iterator[Cell]:
        """Policies innermost, beginning with another one for each block of cells: none always comes first.

        Closed loops before open ones, which need the saturation that those find.
        """
        turn = 0
        for workload in self.workloads:
            for anchors in self.anchors:
                for loop in sorted(self.loops, key=LOOPS.index):
                    for load in (0.0,) if loop == CLOSED else self.loads:
                        for seed in self.seeds:
                            shift = turn % len(self.policies)
                            turn += 1
                            for policy in (*self.policies[shift:], *self.policies[:shift]):
                                yield Cell(workload, anchors, loop, load, seed, policy)


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Of what must be equal for two results to stand in one table."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


class Results:
    """One JSON line a finished cell; a second run with equal settings goes on where the first one ended."""

    def __init__(self, path: Path, settings: str) -> None:
        """Raises TraceError for a file that isn't such a record."""
        self._path = path
        self._settings = settings
        self.rows: dict[Cell, Row] = {}
        for row in read_rows([path]) if path.exists() else ():
            if row["settings"] == settings:
                self.rows[cell_of(row)] = row

    def add(self, cell: Cell, result: Row) -> Row:
        row = {**asdict(cell), "settings": self._settings, **result}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
        self.rows[cell] = row
        return row

    def saturation(self, cell: Cell, policies: Sequence[str]) -> float | None:
        """Requests a second in the closed loop of the first of `policies` that has one, over all its seeds."""
        for policy in policies:
            found = [
                float(row["requests_per_s"])
                for known, row in self.rows.items()
                if (known.workload, known.anchors, known.loop) == (cell.workload, cell.anchors, CLOSED)
                and known.policy == policy
            ]
            if found:
                return sum(found) / len(found)
        return None


def cell_of(row: Row) -> Cell:
    return Cell(row["workload"], row["anchors"], row["loop"], row["load"], row["seed"], row["policy"])


def read_rows(paths: Iterable[Path]) -> list[Row]:
    """Raises TraceError naming file and line."""
    rows = []
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                row = json.loads(line)
                cell_of(row)
            except (ValueError, TypeError, KeyError) as error:
                raise TraceError(f"{path}, line {number}: not a cell's result: {error!r}") from error
            rows.append(row)
    return rows
