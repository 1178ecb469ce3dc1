"""Which leading blocks of a prompt are common to sessions: the boundary of an agent's anchor.

Found from block hashes alone (each hash stands for its whole prefix), not from what a client says, and
remembered apart from what is resident: an anchor that was evicted and computed again is still an anchor.
Kept as a radix tree: blocks that the same prompts have in common are one node, so a prompt costs a look at
a few nodes, not at each of its blocks. Each node counts for one tenant, and tenants share the room in fair parts.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from replicas.cache.runs import common_blocks

AgentKey = tuple[str, str]
"""(workload, agent)."""

MAX_PREFIXES = 65_536
"""Blocks remembered; of a tenant with more than others the ends of prompts not seen for longest are forgotten first."""

MAX_BLOCKS = 512
"""Leading blocks of a prompt that are looked at; what comes after counts as the session's own."""

MAX_SHARERS = 4
"""Agents kept for one block; a fifth doesn't change what the block is worth."""

SESSION_BITS = 64

LEAST_SHARE = 8
"""A prefix is an agent's anchor if at least 1 in 8 of its sessions (2 at least) have it: what two runs of
one task have in common is no anchor once many sessions have been seen."""

MAX_SESSIONS_COUNTED = 128


class _Part:
    """What counts for one tenant: `order` are its nodes, longest unseen first, and each after those of them that
    are below it; `blocks` are in them."""

    __slots__ = ("blocks", "name", "order")

    def __init__(self, name: str) -> None:
        self.name = name
        self.order: OrderedDict[_Node, None] = OrderedDict()
        self.blocks = 0


class _Node:
    """Blocks that the same prompts had: who sent them first, a bit for each other session's hash, the agents.

    `births`: how many sessions each of the agents had had when it first sent this prefix. A prompt that is
    new to an old agent is measured against the sessions since. `told`: the agents when last looked at.
    """

    __slots__ = ("agents", "births", "children", "first_session", "hashes", "others", "parent", "part", "told")

    def __init__(
        self, part: _Part, parent: _Node | None, hashes: list[bytes], session: str, agent: AgentKey, births: int
    ) -> None:
        self.part = part
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

    def split(self, blocks: int) -> _Node:
        """Put a node of the first `blocks` blocks above this one; returns that node."""
        assert self.parent is not None
        upper = _Node(self.part, self.parent, self.hashes[:blocks], self.first_session, self.agents[0], 0)
        upper.others, upper.agents, upper.births, upper.told = self.others, self.agents, self.births, self.told
        self.parent.children[self.hashes[0]] = upper
        self.hashes = self.hashes[blocks:]
        self.parent = upper
        upper.children[self.hashes[0]] = self
        self.part.order[upper] = None
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
    """Bounded memory of prefixes and of the sessions that sent them.

    A node counts for the tenant that began it, or for one with less that sent it later. At the bound the tenant
    that adds forgets its own if it has more than an equal share (and than one prompt), else the one that has most.
    """

    def __init__(self, max_prefixes: int = MAX_PREFIXES, max_blocks: int = MAX_BLOCKS) -> None:
        self._root = _Node(_Part(""), None, [], "", ("", ""), 0)
        self._parts: dict[str, _Part] = {}
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
        part = self._parts.get(agent[0]) or _Part(agent[0])
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
            parent = path[-1] if path else self._root
            leaf = _Node(part, parent, list(hashes[known:seen]), session, agent, agent_sessions)
            parent.children[hashes[known]] = leaf
            self._join(leaf, part)
            self._size += seen - known
            path.append(leaf)
        self._remember(path, part)
        return SharedPrefix(tuple(runs), tuple(moved), known, seen)

    def _walk(self, hashes: Sequence[bytes], seen: int) -> tuple[list[_Node], int]:
        """(nodes that the prompt passes, blocks in them); where it leaves a node half-way, that is split."""
        path: list[_Node] = []
        node, known = self._root, 0
        while known < seen:
            child = node.children.get(hashes[known])
            if child is None:
                break
            common = min(common_blocks(child.hashes, hashes, known), seen - known)
            if common < len(child.hashes):
                child = child.split(common)
            path.append(child)
            known += common
            node = child
        return path, known

    def _remember(self, path: list[_Node], part: _Part) -> None:
        """These were seen last, by the tenant of `part`; forget leaves until the bound holds."""
        for node in reversed(path):
            if node.part is not part and part.blocks < node.part.blocks:
                self._pass_on(node, part)
            else:
                node.part.order.move_to_end(node)
        while self._size > self._max_prefixes:
            self._forget_of(self._fullest(part))

    def _fullest(self, part: _Part) -> _Part:
        """Whose nodes have to go when the tenant of `part` has added."""
        if part.blocks > max(self._max_blocks, self._max_prefixes // len(self._parts)):
            return part
        return max(self._parts.values(), key=lambda held: held.blocks)

    def _forget_of(self, part: _Part) -> None:
        """Forget the node of a tenant that was unseen for longest. If others still have nodes below it, it counts for
        one of them instead, with all of that one's above it seen as late."""
        oldest = next(iter(part.order))
        leaf = oldest
        while leaf.children:
            leaf = next(iter(leaf.children.values()))
        if leaf is oldest:
            self._forget(leaf)
            return
        heir = leaf.part
        self._pass_on(oldest, heir)
        above = oldest.parent
        while above is not None and above is not self._root:
            if above.part is heir:
                heir.order.move_to_end(above)
            above = above.parent

    def _forget(self, leaf: _Node) -> None:
        assert leaf.parent is not None and not leaf.children
        del leaf.parent.children[leaf.hashes[0]]
        leaf.parent = None
        self._leave(leaf)
        self._size -= len(leaf.hashes)

    def _pass_on(self, node: _Node, part: _Part) -> None:
        self._leave(node)
        self._join(node, part)

    def _join(self, node: _Node, part: _Part) -> None:
        """The node counts for the tenant of `part`, as seen last."""
        node.part = part
        part.order[node] = None
        part.blocks += len(node.hashes)
        self._parts.setdefault(part.name, part)

    def _leave(self, node: _Node) -> None:
        part = node.part
        del part.order[node]
        part.blocks -= len(node.hashes)
        if not part.order:
            del self._parts[part.name]

    def check_invariants(self) -> None:
        """Raises AssertionError unless sizes, orders and links hold; for tests."""
        size = 0
        for name, part in self._parts.items():
            order = {node: i for i, node in enumerate(part.order)}
            assert order and part.name == name
            assert part.blocks == sum(len(node.hashes) for node in order)
            size += part.blocks
            for node, i in order.items():
                assert node.part is part and node.hashes and node.parent is not None
                assert node.parent.children[node.hashes[0]] is node
                assert all(child.parent is node and child in child.part.order for child in node.children.values())
                above = node.parent
                while above is not self._root:
                    assert above.parent is not None
                    assert above.part is not part or order[above] > i
                    above = above.parent
        assert self._size == size <= self._max_prefixes
