"""The usual shared prefix of each agent, with its token ids, once it is known."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from replicas.cache.sharing import AgentKey
from runtime_actor.fair_map import FairMap

MAX_AGENTS = 1024
MAX_CANDIDATES = 8
"""Boundaries counted for one agent; the least seen one makes room."""

MEMORY = 64
"""Requests with one boundary after which what was counted of the agent counts half: an agent that gets other
instructions gets another anchor, however long it had the one before."""

MAX_PENDING = 64
"""Anchors not fetched yet; beyond it the oldest is dropped and found again when it is next used."""

MAX_ANCHOR_TOKENS = 32_768
DIGEST_CHARS = 32


@dataclass(frozen=True, slots=True)
class FoundAnchor:
    """`token_ids` are little-endian int32; salt and adapter are those of the request it was seen in."""

    workload: str
    agent: str
    digest: str
    token_ids: bytes
    cache_salt: str | None
    lora_name: str | None


@dataclass(slots=True)
class _Boundaries:
    """How often each boundary's digest was seen, and which one was told last."""

    counts: dict[str, int]
    told: str = ""


class AnchorFinder:
    """Counts the boundaries of each agent's requests; the most frequent one is the agent's anchor."""

    def __init__(self) -> None:
        self._agents: FairMap[AgentKey, _Boundaries] = FairMap(MAX_AGENTS)
        self._pending: OrderedDict[tuple[AgentKey, str], FoundAnchor] = OrderedDict()
        """By agent and digest: agents with the same instructions have the same digest."""

    def note(
        self,
        agent: AgentKey,
        boundary_hash: bytes,
        prompt_token_ids: Sequence[int],
        num_tokens: int,
        cache_salt: str | None,
        lora_name: str | None,
    ) -> None:
        """A request's shared part is its first `num_tokens` tokens and ends in `boundary_hash`."""
        if not 0 < num_tokens <= MAX_ANCHOR_TOKENS:
            return
        digest = boundary_hash.hex()[:DIGEST_CHARS]
        of_workload = self._agents.part(agent[0])
        known = of_workload.setdefault(agent, _Boundaries({}))
        of_workload.move_to_end(agent)
        self._agents.trim(agent[0])
        counts = known.counts
        if digest not in counts and len(counts) >= MAX_CANDIDATES:
            del counts[min((d for d in counts if d != known.told), key=counts.__getitem__)]
        counts[digest] = counts.get(digest, 0) + 1
        if counts[digest] >= MEMORY:
            known.counts = counts = {boundary: count // 2 for boundary, count in counts.items()}
        if digest == known.told or counts[digest] <= counts.get(known.told, 0):
            return
        known.told = digest
        ids = array("i", prompt_token_ids[:num_tokens])
        self._pending[agent, digest] = FoundAnchor(*agent, digest, ids.tobytes(), cache_salt, lora_name)
        if len(self._pending) > MAX_PENDING:
            _, dropped = self._pending.popitem(last=False)
            forgotten = self._agents.get(dropped.workload, (dropped.workload, dropped.agent))
            if forgotten is not None and forgotten.told == dropped.digest:
                forgotten.told = ""

    def take(self, most: int = 16) -> list[FoundAnchor]:
        """New anchors since the last call, oldest first."""
        oldest = list(self._pending)[:most]
        return [self._pending.pop(key) for key in oldest]

    def forget_told(self) -> None:
        """Whoever was told is gone: say everything again as it is next used."""
        for _, of_workload in self._agents:
            for known in of_workload.values():
                known.told = ""
