"""What a session's next request finds useful of its own blocks."""

from __future__ import annotations

REUSE_PRIOR = 2.0
REUSE_MEMORY = 256.0
"""Observations after which what was seen of reuse counts half."""


class Reuse:
    """How much of what a session left behind its next request of the same agent finds useful.

    A harness that rewrites its prompts each time never reads its own KV again, however soon it is back.
    """

    __slots__ = ("count", "total")

    def __init__(self) -> None:
        self.total = 0.0
        self.count = 0.0

    def observe(self, share: float) -> None:
        if self.count >= REUSE_MEMORY:
            self.total *= 0.5
            self.count *= 0.5
        self.total += share
        self.count += 1.0

    def share(self, prior: float) -> float:
        return (self.total + REUSE_PRIOR * prior) / (self.count + REUSE_PRIOR)
