"""Which leading blocks of a prompt are common to sessions: the boundary of an agent's anchor.

Found from block hashes alone (each hash stands for its whole prefix), not from what a client says, and
remembered apart from what is resident: an anchor that was evicted and computed again is still an anchor.
Kept as a radix tree: blocks that the same prompts have in common are one node, so a prompt costs a look at
a few nodes, not at each of its blocks.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

AgentKey = tuple[str, str]
"""(workload, agent)."""

MAX_PREFIXES = 65_536
"""Blocks remembered; the ends of prompts not seen for longest are forgotten first."""

MAX_BLOCKS = 512
"""Leading blocks of a prompt that are looked at; what comes after counts as the session's own."""

MAX_SHARERS = 4
"""Agents kept for one block; a fifth doesn't change what the block is worth."""

SESSION_BITS = 64

LEAST_SHARE = 8
"""A prefix is an agent's anchor if at least 1 in 8 of its sessions (2 at least) have it: what two runs of
one task have in common is no anchor once many sessions have been seen."""

MAX_SESSIONS_COUNTED = 128


class _Node:
    """Blocks that the same prompts had: who sent them first, a bit for each other session's hash, the agents.

    `births`: how many sessions each of the agents had had when it first sent this prefix. A prompt that is
    new to an old agent is measured against the sessions since. `told`: the agents when last looked at.
    """

    __slots__ = ("agents", "births", "children", "first_session", "hashes", "others", "parent", "told")

    def __init__(self, parent: _Node | None, hashes: list[bytes], session: str, agent: AgentKey, births: int) -> None:
        self.parent = parent
        self.hashes = hashes
        self.children: dict[bytes, _Node] = {}
        self.first_session = session
        self.others = 0
        self.agents: tuple[AgentKey, ...] = (agent,)
        self.births: tuple[int, ...] = (births,)
        self.told: tuple[AgentKey, ...] = ()

    def join(self, session: str, session_bit: int, agent: AgentKey, agent_sessions: int) -> None:
        if session != self.first_session:
            self.others |= session_bit
        if agent not in self.agents and len(self.agents) < MAX_SHARERS:
            joined = sorted([*zip(self.agents, self.births, strict=True), (agent, agent_sessions)])
            self.agents = tuple(member for member, _ in joined)
            self.births = tuple(birth for _, birth in joined)

    def is_shared(self, agent: AgentKey, agent_sessions: int) -> bool:
        born = self.births[self.agents.index(agent)] if agent in self.agents else 0
        since = min(agent_sessions - born, MAX_SESSIONS_COUNTED)
        return self.others.bit_count() + 1 >= max(2, since // LEAST_SHARE)

    def common(self, hashes: Sequence[bytes], start: int) -> int:
        """How many of the node's blocks `hashes[start:]` begins with; the first is known to be the same.

        Equal hashes have equal prefixes, so the end of what is common is found by halving.
        """
        mine = self.hashes
        end = min(len(mine), len(hashes) - start)
        if mine[end - 1] == hashes[start + end - 1]:
            return end
        same, differs = 1, end - 1
        while same < differs:
            middle = (same + differs) // 2
            if mine[middle] == hashes[start + middle]:
                same = middle + 1
            else:
                differs = middle
        return same

    def split(self, blocks: int) -> _Node:
        """Put a node of the first `blocks` blocks above this one; returns that node."""
        assert self.parent is not None
        upper = _Node(self.parent, self.hashes[:blocks], self.first_session, self.agents[0], 0)
        upper.others, upper.agents, upper.births, upper.told = self.others, self.agents, self.births, self.told
        self.parent.children[self.hashes[0]] = upper
        self.hashes = self.hashes[blocks:]
        self.parent = upper
        upper.children[self.hashes[0]] = self
        return upper


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

    def __init__(self, max_prefixes: int = MAX_PREFIXES, max_blocks: int = MAX_BLOCKS) -> None:
        self._root = _Node(None, [], "", ("", ""), 0)
        self._nodes: OrderedDict[_Node, None] = OrderedDict()
        """Longest unseen first, and each node after all that are below it: the first one is a leaf."""
        self._size = 0
        self._max_prefixes = max_prefixes
        self._max_blocks = max_blocks

    def __len__(self) -> int:
        return self._size

    def see(self, hashes: Sequence[bytes], agent: AgentKey, session: str, agent_sessions: int = 0) -> SharedPrefix:
        """Note a prompt; its shared part is the leading run seen from enough sessions (LEAST_SHARE).

        `agent_sessions`: sessions of this agent so far, never fewer than before. Sessions with a prefix are
        told apart exactly up to two and by a 64-bit sketch beyond, which counts low.
        """
        seen = min(len(hashes), self._max_blocks)
        path, known = self._walk(hashes, seen)
        session_bit = 1 << (zlib.crc32(session.encode()) % SESSION_BITS)
        runs: list[tuple[int, tuple[AgentKey, ...]]] = []
        moved: list[int] = []
        leading = True
        end = 0
        for node in path:
            start, end = end, end + len(node.hashes)
            node.join(session, session_bit, agent, agent_sessions)
            leading = leading and node.is_shared(agent, agent_sessions)
            if not leading:
                continue
            if runs and runs[-1][1] == node.agents:
                runs[-1] = (end, node.agents)
            else:
                runs.append((end, node.agents))
            if node.told != node.agents:
                node.told = node.agents
                moved.extend(range(start, end))
        if known < seen:
            path.append(self._grow(path, list(hashes[known:seen]), session, agent, agent_sessions))
        self._remember(path)
        return SharedPrefix(tuple(runs), tuple(moved), known, seen)

    def _walk(self, hashes: Sequence[bytes], seen: int) -> tuple[list[_Node], int]:
        """(nodes that the prompt passes, blocks in them); where it leaves a node half-way, that is split."""
        path: list[_Node] = []
        node, known = self._root, 0
        while known < seen:
            child = node.children.get(hashes[known])
            if child is None:
                break
            common = min(child.common(hashes, known), seen - known)
            if common < len(child.hashes):
                child = child.split(common)
                self._nodes[child] = None
            path.append(child)
            known += common
            node = child
        return path, known

    def _grow(
        self, path: list[_Node], hashes: list[bytes], session: str, agent: AgentKey, agent_sessions: int
    ) -> _Node:
        parent = path[-1] if path else self._root
        leaf = _Node(parent, hashes, session, agent, agent_sessions)
        parent.children[hashes[0]] = leaf
        self._nodes[leaf] = None
        self._size += len(hashes)
        return leaf

    def _remember(self, path: list[_Node]) -> None:
        """These were seen last; forget leaves until the bound holds."""
        for node in reversed(path):
            self._nodes.move_to_end(node)
        while self._size > self._max_prefixes:
            leaf, _ = self._nodes.popitem(last=False)
            assert leaf.parent is not None and not leaf.children
            del leaf.parent.children[leaf.hashes[0]]
            leaf.parent = None
            self._size -= len(leaf.hashes)

    def check_invariants(self) -> None:
        """Raises AssertionError unless size, order and links hold; for tests."""
        order = {node: i for i, node in enumerate(self._nodes)}
        assert self._size == sum(len(node.hashes) for node in order) <= self._max_prefixes
        for node, i in order.items():
            assert node.hashes and node.parent is not None
            assert node.parent.children[node.hashes[0]] is node
            assert node.parent is self._root or order[node.parent] > i
            assert all(child in order for child in node.children.values())
