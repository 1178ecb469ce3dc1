"""A directory of owners in a test: its clock, tables of a few agents, prompts and requests."""

from __future__ import annotations

import hashlib

import numpy as np

from replicas.cache.claim import Claim
from replicas.cache.ownership import OwnerDirectory
from runtime_actor.messages import OwnerTag
from runtime_actor.tables import OTHER, WAIT_POINTS, ReachTables, Waits

NO_PAIRS = np.zeros((0, 2), np.int16)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def tables(
    first: list[list[float]], agents: tuple[str, ...], workload: str = "w", arrivals: float = 0.0
) -> ReachTables:
    n = len(agents)
    return ReachTables(
        workload=workload,
        agents=agents,
        first=np.array(first, np.float32),
        contexts=NO_PAIRS,
        context_values=np.zeros((0, n), np.float32),
        arrivals_per_request=arrivals,
        gap_s=np.full(n, 10.0, np.float32),
        end_probability=np.full(n, 0.1, np.float32),
        waits=waits(n),
    )


def waits(n: int, gap_s: float = 10.0) -> Waits:
    """Gaps of heavy tail, ends that nobody declares, and no urgency."""
    first_s = gap_s / 32.0
    silent_s = np.concatenate([[0.0], first_s * 2.0 ** (np.arange(WAIT_POINTS - 1) / 2.0)])
    going = np.tile((1.0 + silent_s / gap_s) ** -2, (n, 1)).astype(np.float32)
    ones = np.ones_like(going)
    return Waits(first_s=first_s, going=going, silent_ends=ones, discount=ones)


CYCLE = tables([[0.0, 0.9, 0.0], [0.5, 0.0, 0.0], [0, 0, 0], [0.8, 0.4, 0.0]], ("a", "b", OTHER))


def hashes(*parts: tuple[str, int]) -> list[bytes]:
    """Chained digests: equal leading parts give equal leading hashes."""
    out: list[bytes] = []
    prefix = b""
    for name, count in parts:
        for i in range(count):
            prefix = hashlib.sha256(prefix + f"{name}{i}".encode()).digest()
            out.append(prefix)
    return out


def tag(agent: str, session: str, kind: str = "demand", workload: str = "w") -> OwnerTag:
    return OwnerTag(workload, agent, session, kind)


def one_request(
    directory: OwnerDirectory, name: str, agent: str, session: str, *parts: tuple[str, int], workload: str = "w"
) -> Claim:
    """It arrives, runs and ends."""
    claim = directory.arrive(name, tag(agent, session, workload=workload), hashes(*parts))
    directory.started(name)
    directory.finished(name)
    return claim
