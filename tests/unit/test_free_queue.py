"""The free queue against a naive model of its order, and against the order of a plain LRU queue."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from replicas.cache.owner import Owner
from replicas.free_queue import OwnerFreeQueue

BLOCKS = 24
VALUES = (0.0, 0.25, 0.5, 0.5, 1.0)


@dataclass(eq=False)
class Block:
    block_id: int
    prev_free_block: Any = None
    next_free_block: Any = None


class QueueMachine(RuleBasedStateMachine):
    """Model: one list of (kind, owner, stamp) tuples that is sorted whenever an order is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [Block(i) for i in range(BLOCKS)]
        self.owners = [Owner(value) for value in VALUES]
        self.owner_of: list[Owner | None] = [None] * BLOCKS
        self.changes: set[Owner] = set()
        self.queue = OwnerFreeQueue(self.blocks, self.owner_of, self.take_changes)
        self.empty = list(range(BLOCKS))
        self.doubles: list[int] = []
        self.cached: dict[int, tuple[int, Owner | None]] = {}
        self.used: list[int] = []
        self.stamp = 0

    def take_changes(self) -> list[Owner]:
        changes = list(self.changes)
        self.changes.clear()
        return changes

    def order(self) -> list[int]:
        def rank(block_id: int) -> tuple[float, int]:
            stamp, owner = self.cached[block_id]
            return (owner.value if owner else 0.0, stamp)

        return [*self.empty, *self.doubles, *sorted(self.cached, key=rank)]

    def forget(self, block_id: int) -> None:
        for kind in (self.empty, self.doubles, self.cached):
            if block_id in kind:
                kind.remove(block_id) if isinstance(kind, list) else kind.pop(block_id)
        self.used.append(block_id)
        self.queue.duplicates.discard(block_id)

    @rule(n=st.integers(0, BLOCKS))
    def take(self, n: int) -> None:
        if n > self.queue.num_free_blocks:
            with pytest.raises(ValueError):
                self.queue.popleft_n(n)
            return
        expected = self.order()[:n]
        assert [block.block_id for block in self.queue.popleft_n(n)] == expected
        for block_id in expected:
            self.forget(block_id)

    @rule()
    def take_one(self) -> None:
        if not self.queue.num_free_blocks:
            with pytest.raises(ValueError, match="No free blocks"):
                self.queue.popleft()
            return
        expected = self.order()[0]
        assert self.queue.popleft().block_id == expected
        self.forget(expected)

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.used), unique=True, max_size=6))
        hashed = data.draw(st.sampled_from(["none", "cached", "double", "mixed"]))
        self.used = [block_id for block_id in self.used if block_id not in chosen]
        if hashed == "none":
            self.queue.prepend_n([self.blocks[i] for i in chosen])
            self.empty = chosen + self.empty
            return
        for block_id in chosen:
            owner = data.draw(st.sampled_from([None, *self.owners]))
            self.owner_of[block_id] = owner
            if hashed == "double" or (hashed == "mixed" and data.draw(st.booleans())):
                self.queue.duplicates.add(block_id)
                self.doubles.append(block_id)
            else:
                self.cached[block_id] = (self.stamp, owner)
            self.stamp += 1
        self.queue.append_n([self.blocks[i] for i in chosen])

    @precondition(lambda self: len(self.used) < BLOCKS)
    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(self.order()))
        self.queue.remove(self.blocks[block_id])
        self.forget(block_id)
        with pytest.raises(RuntimeError):
            self.queue.remove(self.blocks[block_id])

    @rule(data=st.data(), value=st.sampled_from(VALUES))
    def revalue(self, data: st.DataObject, value: float) -> None:
        owner = data.draw(st.sampled_from(self.owners))
        owner.value = value
        self.changes.add(owner)

    @precondition(lambda self: self.cached)
    @rule(data=st.data())
    def reassign(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.cached)))
        owner = data.draw(st.sampled_from([None, *self.owners]))
        self.owner_of[block_id] = owner
        self.cached[block_id] = (self.cached[block_id][0], owner)
        self.queue.reassigned(self.blocks[block_id])

    @precondition(lambda self: self.cached)
    @rule(data=st.data())
    def lose_content(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.cached)))
        owner = self.cached[block_id][1]
        self.queue.emptied(self.blocks[block_id])
        self.owner_of[block_id] = None
        if owner is not None and owner.value > 0.0:
            del self.cached[block_id]
            self.empty.insert(0, block_id)
        elif owner is not None:
            self.owner_of[block_id] = owner

    @rule(data=st.data())
    def walk(self, data: st.DataObject) -> None:
        order = self.order()
        assert [block.block_id for block in self.queue.iter_blocks_after(None)] == order
        if order:
            at = data.draw(st.integers(0, len(order) - 1))
            after = self.queue.iter_blocks_after(self.blocks[order[at]])
            assert [block.block_id for block in after] == order[at + 1 :]

    @rule()
    def replace_queue(self) -> None:
        """As on a switch of policy; what nobody owns at the front counts as holding nothing."""
        expected = self.order()
        owner_of, duplicates = self.owner_of, self.queue.duplicates
        for block_id in self.empty:
            owner_of[block_id] = None
        drained = self.queue.drain()
        assert [block.block_id for block in drained] == expected
        assert self.queue.num_free_blocks == 0
        self.queue = OwnerFreeQueue((), owner_of, self.take_changes)
        self.queue.duplicates = duplicates
        self.queue.prepend_n([b for b in drained if b.block_id in self.empty])
        self.queue.append_n([b for b in drained if b.block_id not in self.empty])
        for block_id in expected[len(self.empty) + len(self.doubles) :]:
            self.cached[block_id] = (self.stamp, self.cached[block_id][1])
            self.stamp += 1

    @invariant()
    def agrees(self) -> None:
        self.queue.check_invariants()
        free = [block.block_id for block in self.queue.get_all_free_blocks()]
        assert free == self.order()
        assert self.queue.num_free_blocks == len(free)


QueueMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestQueue = QueueMachine.TestCase


def filled(owners: list[Owner], per_owner: int, max_lists: int = 2048) -> tuple[OwnerFreeQueue, list[Block]]:
    """A queue whose blocks were freed round robin by the owners."""
    blocks = [Block(i) for i in range(len(owners) * per_owner)]
    owner_of: list[Owner | None] = [None] * len(blocks)
    queue = OwnerFreeQueue(blocks, owner_of, max_lists=max_lists)
    taken = queue.popleft_n(len(blocks))
    for i, block in enumerate(taken):
        owner_of[i] = owners[i % len(owners)]
        queue.append(block)
    return queue, blocks


def test_owners_with_lists_are_bounded_and_the_least_valued_share_one() -> None:
    owners = [Owner(value=(i % 50) / 50) for i in range(200)]
    queue, _ = filled(owners, 5, max_lists=40)
    queue.check_invariants()
    assert queue.num_folds > 0
    assert queue.num_free_blocks == 1000
    assert len({block.block_id for block in queue.popleft_n(1000)}) == 1000


def test_folding_keeps_the_order_of_equal_values() -> None:
    owners = [Owner() for _ in range(64)]
    queue, _ = filled(owners, 8, max_lists=16)
    assert queue.num_folds > 0
    assert [block.block_id for block in queue.popleft_n(512)] == list(range(512))


def test_a_worthless_owners_blocks_leave_first_even_if_freed_last() -> None:
    kept, ended = Owner(0.5), Owner(0.4)
    changes: list[Owner] = []
    blocks = [Block(i) for i in range(8)]
    owner_of: list[Owner | None] = [None] * 8
    queue = OwnerFreeQueue(blocks, owner_of, lambda: changes)
    queue.popleft_n(8)
    owner_of[:] = [kept] * 4 + [ended] * 4
    queue.append_n(blocks)
    ended.value, ended.listed = 0.0, False
    changes.append(ended)
    assert [block.block_id for block in queue.popleft_n(5)] == [4, 5, 6, 7, 0]


def test_the_walk_finds_what_was_freed_in_front_of_the_cursor() -> None:
    low, high = Owner(0.1), Owner(0.9)
    queue, blocks = filled([low, high], 4)
    seen = [block.block_id for block in queue.iter_blocks_after(None)]
    assert seen == [0, 2, 4, 6, 1, 3, 5, 7]
    queue.remove(blocks[2])
    queue.append(blocks[2])
    assert [block.block_id for block in queue.iter_blocks_after(blocks[7])] == [2]
    assert [block.block_id for block in queue.iter_blocks_after(blocks[7])] == []
    queue.remove(blocks[7])
    assert list(queue.iter_blocks_after(blocks[7])) == []


def test_lowest_names_the_owners_that_would_lose_blocks() -> None:
    low, high = Owner(0.1), Owner(0.9)
    queue, _ = filled([high, low], 4)
    assert queue.lowest(6) == [(low, 4), (high, 2)]


@pytest.mark.parametrize("seed", range(5))
def test_many_owners_churn_without_losing_a_block(seed: int) -> None:
    rng = random.Random(seed)
    owners = [Owner(rng.choice(VALUES)) for _ in range(100)]
    changes: set[Owner] = set()
    blocks = [Block(i) for i in range(500)]
    owner_of: list[Owner | None] = [None] * 500

    def take_changes() -> list[Owner]:
        taken = list(changes)
        changes.clear()
        return taken

    queue = OwnerFreeQueue(blocks, owner_of, take_changes, max_lists=32)
    for _ in range(2000):
        taken = queue.popleft_n(rng.randrange(1, 30))
        owner = rng.choice(owners)
        owner.value = rng.choice(VALUES)
        changes.add(owner)
        for block in taken:
            owner_of[block.block_id] = owner
        queue.append_n(taken)
    queue.check_invariants()
    assert queue.num_free_blocks == 500


def test_an_entry_may_still_be_of_a_block_that_moved_to_the_owner_ahead() -> None:
    first, second = Owner(0.5), Owner(0.5)
    blocks = [Block(i) for i in range(4)]
    owner_of: list[Owner | None] = [None] * 4
    queue = OwnerFreeQueue(blocks, owner_of)
    queue.popleft_n(4)
    owner_of[:] = [first] * 4
    queue.append_n(blocks)
    owner_of[0] = second
    queue.reassigned(blocks[0])
    queue.check_invariants()
    assert [block.block_id for block in queue.popleft_n(4)] == [0, 1, 2, 3]
