"""What a cache in stock order would have had: a prefix cache of block hashes without blocks.

Held as a radix tree whose nodes are runs of blocks that were last used together, so that a request costs a look
at a few nodes. Least recently used leaves, and of these a request's tail before its head: vLLM's own order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from replicas.cache.runs import common_blocks


class _Run:
    """Blocks that follow each other and were last used by the same requests."""

    __slots__ = ("children", "hashes", "parent")

    def __init__(self, parent: _Run | None, hashes: list[bytes]) -> None:
        self.parent = parent
        self.hashes = hashes
        self.children: dict[bytes, _Run] = {}


class ShadowLru:
    """Prefix hits of a cache of `capacity` blocks from which the least recently used one is evicted.

    Without what only blocks have: those in use can be evicted, and a block that two requests compute at once is
    one.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1 block, got {capacity}")
        self.capacity = capacity
        self._root = _Run(None, [])
        self._runs: OrderedDict[_Run, None] = OrderedDict()
        """Least recently used first, and each run after all that are below it: the first is a leaf."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def clear(self) -> None:
        self._root.children.clear()
        self._runs.clear()
        self._size = 0

    def use(self, hashes: Sequence[bytes]) -> int:
        """Read a prompt's leading blocks; returns how many were here."""
        path, known = self._walk(hashes)
        for run in reversed(path):
            self._runs.move_to_end(run)
        return known

    def keep(self, hashes: Sequence[bytes]) -> None:
        """All of a request's blocks are here from now on, as used last; others go."""
        path, known = self._walk(hashes)
        if known < len(hashes):
            parent = path[-1] if path else self._root
            run = _Run(parent, list(hashes[known:]))
            parent.children[run.hashes[0]] = run
            self._runs[run] = None
            self._size += len(run.hashes)
            path.append(run)
        for run in reversed(path):
            self._runs.move_to_end(run)
        while self._size > self.capacity:
            self._evict(self._size - self.capacity)

    def _walk(self, hashes: Sequence[bytes]) -> tuple[list[_Run], int]:
        """(runs that the prompt passes, blocks in them); where it leaves one half-way, that is split."""
        path: list[_Run] = []
        run, known = self._root, 0
        while known < len(hashes):
            child = run.children.get(hashes[known])
            if child is None:
                break
            common = common_blocks(child.hashes, hashes, known)
            if common < len(child.hashes):
                child = self._split(child, common)
            path.append(child)
            known += common
            run = child
        return path, known

    def _split(self, run: _Run, blocks: int) -> _Run:
        """Put a run of the first `blocks` blocks above this one, which keeps its age; returns it, as used last."""
        assert run.parent is not None
        upper = _Run(run.parent, run.hashes[:blocks])
        run.parent.children[run.hashes[0]] = upper
        run.hashes = run.hashes[blocks:]
        run.parent = upper
        upper.children[run.hashes[0]] = run
        self._runs[upper] = None
        return upper

    def _evict(self, blocks: int) -> None:
        """Give up at most so many blocks of the least recently used run, from its end."""
        run = next(iter(self._runs))
        gone = min(blocks, len(run.hashes))
        self._size -= gone
        if gone < len(run.hashes):
            del run.hashes[-gone:]
            return
        del self._runs[run]
        assert run.parent is not None and not run.children
        del run.parent.children[run.hashes[0]]

    def check_invariants(self) -> None:
        """Raises AssertionError unless size, order and links hold; for tests."""
        order = {run: i for i, run in enumerate(self._runs)}
        assert self._size == sum(len(run.hashes) for run in order) <= self.capacity
        for run, i in order.items():
            assert run.hashes and run.parent is not None
            assert run.parent.children[run.hashes[0]] is run
            assert run.parent is self._root or order[run.parent] > i
