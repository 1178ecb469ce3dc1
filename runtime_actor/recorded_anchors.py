"""Token ids of agents' shared prefixes that replicas have recorded, so that others can warm them."""

from __future__ import annotations

from dataclasses import dataclass

from runtime_actor.errors import MessageError
from runtime_actor.fair_map import FairMap
from runtime_actor.messages import TOKEN_BYTES, AnchorRecorded


@dataclass(frozen=True, slots=True)
class RecordedAnchor:
    """Token ids of an agent's shared prefix, as an engine recorded them."""

    digest: str
    tokens: int
    token_ids: bytes
    cache_salt: str | None
    lora_name: str | None


class RecordedAnchors:
    """Newest anchor of each (workload, agent), bounded in number and bytes; the least used goes first, of a workload
    that has more than its share before others'.

    Token ids are a client's text: they stay in memory and never go into a checkpoint.
    """

    def __init__(self, max_anchors: int, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._anchors: FairMap[str, RecordedAnchor] = FairMap(max_anchors)
        self.num_bytes = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._anchors)

    def resize(self, max_anchors: int, max_bytes: int) -> None:
        """Other bounds, at once."""
        self._anchors.cap, self._max_bytes = max_anchors, max_bytes
        self._trim("")

    def _trim(self, owner: str) -> None:
        """`owner`: the workload that added."""
        while len(self._anchors) > self._anchors.cap or self.num_bytes > self._max_bytes:
            self._remove(*self._anchors.oldest(owner))
            self.dropped += 1

    def record(self, event: AnchorRecorded) -> None:
        """Raises MessageError for token ids that aren't whole int32 values."""
        if not event.token_ids or len(event.token_ids) % TOKEN_BYTES:
            raise MessageError(f"anchor_recorded: token_ids of {len(event.token_ids)} bytes aren't int32 values")
        self._remove(event.workload, event.agent)
        tokens = len(event.token_ids) // TOKEN_BYTES
        kept = RecordedAnchor(event.digest, tokens, event.token_ids, event.cache_salt, event.lora_name)
        self._anchors.part(event.workload)[event.agent] = kept
        self.num_bytes += len(event.token_ids)
        self._trim(event.workload)

    def get(self, workload: str, agent: str) -> RecordedAnchor | None:
        anchor = self._anchors.get(workload, agent)
        if anchor is not None:
            self._anchors.part(workload).move_to_end(agent)
        return anchor

    def forget_workload(self, workload: str) -> None:
        self.num_bytes -= sum(len(anchor.token_ids) for anchor in self._anchors.drop(workload))

    def _remove(self, workload: str, agent: str) -> None:
        anchor = self._anchors.pop(workload, agent)
        if anchor is not None:
            self.num_bytes -= len(anchor.token_ids)

    def check_invariants(self) -> None:
        assert self.num_bytes == sum(len(a.token_ids) for _, part in self._anchors for a in part.values())
        assert len(self._anchors) <= self._anchors.cap and self.num_bytes <= self._max_bytes
