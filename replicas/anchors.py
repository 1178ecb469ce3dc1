"""Token ids of agents' shared prefixes: what a warm-up needs and a matrix can't carry."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from replicas.cache.anchor_finder import FoundAnchor
from runtime_actor.errors import MessageError
from runtime_actor.messages import MAX_REPORTED_AGENTS, TOKEN_BYTES

AnchorKey = tuple[str, str, str]
"""(workload, agent, digest)."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A shared prefix as an engine saw it; salt and adapter are those of the real requests."""

    workload: str
    agent: str
    digest: str
    token_ids: bytes
    cache_salt: str | None
    lora_name: str | None

    @property
    def key(self) -> AnchorKey:
        return self.workload, self.agent, self.digest

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) // TOKEN_BYTES


def anchor_from(found: FoundAnchor) -> Anchor:
    """An anchor as an engine found it."""
    return Anchor(found.workload, found.agent, found.digest, found.token_ids, found.cache_salt, found.lora_name)


def decode_token_ids(token_ids: bytes) -> list[int]:
    """Raises MessageError for a ragged buffer or a negative id."""
    if len(token_ids) % TOKEN_BYTES:
        raise MessageError(f"token_ids: {len(token_ids)} bytes is no multiple of {TOKEN_BYTES}")
    ids = np.frombuffer(token_ids, dtype="<i4")
    if ids.size and ids.min() < 0:
        raise MessageError("token_ids: negative id")
    return ids.tolist()


class AnchorStore:
    """Anchors by agent and digest (agents with the same instructions have the same), least recently used out first at
    a cap of bytes and of entries.

    Each is announced to the actor once an epoch: `unannounced` hands each one out once, and
    `forget_announcements` (a new epoch: a new actor that may know nothing) starts that again.
    """

    def __init__(self, *, cap_bytes: int, max_anchors: int) -> None:
        self._cap_bytes = cap_bytes
        self._max_anchors = max_anchors
        self._anchors: OrderedDict[AnchorKey, Anchor] = OrderedDict()
        self._announced: set[AnchorKey] = set()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._anchors)

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def add(self, anchor: Anchor, *, announced: bool = False) -> bool:
        """Keep an anchor; False if it is known, empty or larger than the whole store.

        `announced`: it came from the actor, which needn't be told.
        """
        size, key = len(anchor.token_ids), anchor.key
        if key in self._anchors:
            self._anchors.move_to_end(key)
            return False
        if not size or size > self._cap_bytes:
            return False
        self._anchors[key] = anchor
        self._bytes += size
        if announced:
            self._announced.add(key)
        while self._bytes > self._cap_bytes or len(self._anchors) > self._max_anchors:
            forgotten, old = self._anchors.popitem(last=False)
            self._announced.discard(forgotten)
            self._bytes -= len(old.token_ids)
        return True

    def get(self, workload: str, agent: str, digest: str) -> Anchor | None:
        anchor = self._anchors.get((workload, agent, digest))
        if anchor is not None:
            self._anchors.move_to_end(anchor.key)
        return anchor

    def unannounced(self, max_anchors: int) -> list[Anchor]:
        """Anchors the actor hasn't been told of in this epoch, now taken as told."""
        new = [anchor for key, anchor in self._anchors.items() if key not in self._announced][:max_anchors]
        self._announced.update(anchor.key for anchor in new)
        return new

    def forget_announcements(self) -> None:
        self._announced.clear()

    def listing(self) -> dict[str, dict[str, list]]:
        """workload -> agent -> [digest, tokens] of the most recently used anchor of each agent; of a workload's agents
        those `MAX_REPORTED_AGENTS` that were used last."""
        listing: dict[str, dict[str, list]] = {}
        for anchor in reversed(self._anchors.values()):
            of_workload = listing.setdefault(anchor.workload, {})
            if len(of_workload) < MAX_REPORTED_AGENTS:
                of_workload.setdefault(anchor.agent, [anchor.digest, anchor.num_tokens])
        return listing
