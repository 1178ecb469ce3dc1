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

LEAST_SHARE = 8
"""A prefix is an agent's anchor if at least 1 in 8 of its sessions (2 at least) have it: what two runs of
one task have in common is no anchor once many sessions have been seen."""

MAX_SESSIONS_COUNTED = 128


class _Prefix:
    """One prefix: who sent it first, a bit for each other session's hash, the agents, what was said.

    `births`: how many sessions each of the agents had had when it first sent this prefix. A prompt that is
    new to an old agent is measured against the sessions since.
    """

    __slots__ = ("agents", "births", "first_session", "others", "told")

    def __init__(self, session: str, agent: AgentKey, agent_sessions: int) -> None:
        self.first_session = session
        self.others = 0
        self.agents: tuple[AgentKey, ...] = (agent,)
        self.births: tuple[int, ...] = (agent_sessions,)
        self.told: tuple[AgentKey, ...] = ()

    def join(self, session: str, agent: AgentKey, agent_sessions: int) -> None:
        if session != self.first_session:
            self.others |= 1 << (zlib.crc32(session.encode()) % SESSION_BITS)
        if agent not in self.agents and len(self.agents) < MAX_SHARERS:
            joined = sorted([*zip(self.agents, self.births, strict=True), (agent, agent_sessions)])
            self.agents = tuple(member for member, _ in joined)
            self.births = tuple(birth for _, birth in joined)

    def is_shared(self, agent: AgentKey, agent_sessions: int) -> bool:
        born = self.births[self.agents.index(agent)] if agent in self.agents else 0
        since = min(agent_sessions - born, MAX_SESSIONS_COUNTED)
        return self.others.bit_count() + 1 >= max(2, since // LEAST_SHARE)


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

    def see(self, hashes: Sequence[bytes], agent: AgentKey, session: str, agent_sessions: int = 0) -> SharedPrefix:
        """Note a prompt; its shared part is the leading run seen from enough sessions (LEAST_SHARE).

        `agent_sessions`: sessions of this agent so far, never fewer than before. Sessions with a prefix are
        told apart exactly up to two and by a 64-bit sketch beyond, which counts low.
        """
        prefixes = self._prefixes
        runs: list[tuple[int, tuple[AgentKey, ...]]] = []
        moved: list[int] = []
        leading = True
        known = 0
        for i, block_hash in enumerate(hashes[: self._max_blocks]):
            digest = block_hash[:DIGEST_BYTES]
            prefix = prefixes.get(digest)
            if prefix is None:
                prefixes[digest] = _Prefix(session, agent, agent_sessions)
                leading = False
                continue
            known = i + 1
            prefixes.move_to_end(digest)
            prefix.join(session, agent, agent_sessions)
            leading = leading and prefix.is_shared(agent, agent_sessions)
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
