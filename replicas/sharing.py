"""Which leading blocks of a prompt are common to sessions: the boundary of an agent's anchor.

Found from block hashes alone (each hash stands for its whole prefix), not from what a client says, and
remembered apart from what is resident: an anchor that was evicted and computed again is still an anchor.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

AgentKey = tuple[str, str]
"""(workload, agent)."""

MAX_DIGESTS = 65_536
"""Prefixes remembered; the one not seen for longest is forgotten first."""

MAX_BLOCKS = 512
"""Leading blocks of a prompt that are looked at; what comes after counts as the session's own."""

MAX_SHARERS = 4
"""Agents kept for one block; a fifth doesn't change what the block is worth."""

DIGEST_BYTES = 8
SESSION_BITS = 64


class _Prefix:
    """One prefix: who sent it first, a bit for each other session's hash, the agents, what was said."""

    __slots__ = ("agents", "first_session", "others", "told")

    def __init__(self, session: str, agent: AgentKey) -> None:
        self.first_session = session
        self.others = 0
        self.agents: tuple[AgentKey, ...] = (agent,)
        self.told: tuple[AgentKey, ...] = ()


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """The shared part of one prompt.

    `runs` are (end block, agents that share the blocks up to there), ascending; `moved` are the blocks
    whose agents are others than when the same block was last looked at. `known_blocks` leading blocks had
    been sent before, by whomever; `seen_blocks` were looked at.
    """

    runs: tuple[tuple[int, tuple[AgentKey, ...]], ...]
    moved: tuple[int, ...]
    known_blocks: int = 0
    seen_blocks: int = 0

    @property
    def num_blocks(self) -> int:
        return self.runs[-1][0] if self.runs else 0


class SharedPrefixes:
    """Bounded memory of prefixes and of the sessions that sent them."""

    def __init__(self, max_digests: int = MAX_DIGESTS, max_blocks: int = MAX_BLOCKS) -> None:
        self._prefixes: OrderedDict[bytes, _Prefix] = OrderedDict()
        self._max_digests = max_digests
        self._max_blocks = max_blocks

    def __len__(self) -> int:
        return len(self._prefixes)

    def see(self, hashes: Sequence[bytes], agent: AgentKey, session: str, least_sessions: int = 2) -> SharedPrefix:
        """Note a prompt; its shared part is the leading run seen from at least `least_sessions`.

        Sessions are told apart exactly up to two and by a 64-bit sketch beyond, which counts low.
        """
        prefixes = self._prefixes
        bit = 1 << (zlib.crc32(session.encode()) % SESSION_BITS)
        runs: list[tuple[int, tuple[AgentKey, ...]]] = []
        moved: list[int] = []
        leading = True
        known = 0
        for i, block_hash in enumerate(hashes[: self._max_blocks]):
            digest = block_hash[:DIGEST_BYTES]
            prefix = prefixes.get(digest)
            if prefix is None:
                prefixes[digest] = _Prefix(session, agent)
                leading = False
                continue
            known = i + 1
            prefixes.move_to_end(digest)
            if session != prefix.first_session:
                prefix.others |= bit
            if agent not in prefix.agents and len(prefix.agents) < MAX_SHARERS:
                prefix.agents = tuple(sorted((*prefix.agents, agent)))
            leading = leading and prefix.others.bit_count() + 1 >= least_sessions
            if not leading:
                continue
            if runs and runs[-1][1] == prefix.agents:
                runs[-1] = (i + 1, prefix.agents)
            else:
                runs.append((i + 1, prefix.agents))
            if prefix.told != prefix.agents:
                prefix.told = prefix.agents
                moved.append(i)
        while len(prefixes) > self._max_digests:
            prefixes.popitem(last=False)
        seen = min(len(hashes), self._max_blocks)
        return SharedPrefix(tuple(runs), tuple(moved), known, seen)
