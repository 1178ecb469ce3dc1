"""What one request claims: the owners of the blocks it fills, front to back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from replicas.cache.block_owner import BlockOwner
from replicas.cache.sharing import AgentKey
from replicas.cache.workload_values import Session
from runtime_actor.messages import WARMUP, OwnerTag


class Claim:
    """Who gets the blocks that one request fills: runs of (end token, owner), then the session.

    reads_rest: it begins with blocks of the session's own, or has computed some, so that those are needed
    next while it waits; what a harness wrote anew leaves the old ones useless.
    block_hashes: the engine's own list, which grows as the request does.
    """

    __slots__ = (
        "agent",
        "anchor_tokens",
        "block_hashes",
        "is_waiting",
        "is_warmup",
        "moved",
        "reads_rest",
        "request_id",
        "rest",
        "runs",
        "sequence",
        "session",
        "tag",
    )

    def __init__(self, request_id: str, tag: OwnerTag | None, rest: BlockOwner) -> None:
        self.request_id = request_id
        self.tag = tag
        self.is_warmup = tag is not None and tag.request_kind == WARMUP
        self.is_waiting = False
        self.block_hashes: Sequence[bytes] = ()
        self.rest = rest
        self.runs: tuple[tuple[int, BlockOwner], ...] = ()
        self.anchor_tokens = 0
        self.moved: tuple[int, ...] = ()
        self.session: Session | None = None
        self.agent: AgentKey | None = None
        self.sequence = 0
        self.reads_rest = True

    def of_another_choice(self, request_id: str) -> Claim:
        """As this one, for another choice of the same client's request: no further step of its session."""
        other = Claim(request_id, self.tag, self.rest)
        other.set_runs(self.runs)
        other.reads_rest = self.reads_rest
        other.agent, other.session = self.agent, self.session
        if other.session is not None:
            other.session.active += 1
        return other

    @property
    def owners(self) -> Iterator[BlockOwner]:
        """Those whose blocks it needs."""
        yield from (owner for _, owner in self.runs)
        if self.reads_rest:
            yield self.rest

    def set_runs(self, runs: tuple[tuple[int, BlockOwner], ...]) -> None:
        self.runs = runs
        self.anchor_tokens = runs[-1][0] if runs else 0

    def spans(self, start: int, stop: int, block_size: int) -> list[tuple[int, int, BlockOwner]]:
        """Owners of the blocks start..stop of `block_size` tokens, as (start, stop, owner)."""
        spans = []
        for end_token, owner in self.runs:
            end = min(end_token // block_size, stop)
            if start < end:
                spans.append((start, end, owner))
                start = end
        if start < stop:
            spans.append((start, stop, self.rest))
        return spans
