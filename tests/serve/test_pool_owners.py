"""What owners around vLLM's pool note of its blocks: faults stay there, and what moves is followed."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.core.block_pool import BlockPool

from replicas.cache.block_pool import PoolOwners
from replicas.cache.cache_keeper import Arrival, CacheKeeper, CacheShape
from replicas.cache.ownership import OwnerDirectory
from replicas.cache.settings import ValueSettings
from replicas.cache.warm_ledger import WarmLedger
from replicas.engine.messages import EngineSettings, EngineTables
from runtime_actor.messages import OWNER_XARG, WARMUP, OwnerTag

TOKENS = 4


class Bench:
    def __init__(self, hash_tokens: int = TOKENS) -> None:
        self.pool: Any = BlockPool(16, True, hash_tokens)
        # A policy whose values order at once: with reach they do when there are tables.
        self.directory = OwnerDirectory(ValueSettings(policy="anchors"), hash_block_tokens=hash_tokens)
        self.warm = WarmLedger()
        self.owners = PoolOwners(self.pool, self.directory, self.warm)
        self.owners.use_value_order()

    def filled(self, text: str, count: int = 2, request_id: str = "r") -> list[Any]:
        blocks = self.pool.get_new_blocks(count)
        request = a_request(text, count, request_id)
        self.pool.cache_full_blocks(request, blocks, 0, count, TOKENS, 0)
        return blocks


def a_request(text: str, count: int, request_id: str = "r") -> Any:
    hashes = [hashlib.sha256(f"{text}/{i}".encode()).digest() for i in range(count)]
    return SimpleNamespace(request_id=request_id, block_hashes=hashes, all_token_ids=[0] * 64)


def failing(*_: object) -> Any:
    raise KeyError("bookkeeping")


@pytest.mark.parametrize("call", ["get_new_blocks", "evict_blocks", "move_block_hashes", "reset_prefix_cache"])
def test_a_fault_of_the_bookkeeping_does_not_rise_into_the_engine(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    blocks = bench.filled("x")
    bench.warm.block_actions[blocks[0].block_id] = "an action that nobody knows"
    monkeypatch.setattr(bench.owners, "_forget_twin", failing)
    if call == "get_new_blocks":
        assert len(bench.pool.get_new_blocks(2)) == 2
        assert bench.owners.failed
        return
    if call == "evict_blocks":
        bench.pool.evict_blocks({blocks[0].block_id})
        assert blocks[0].block_hash is None
    elif call == "move_block_hashes":
        (target,) = bench.pool.get_new_blocks(1)
        bench.owners.failed = False
        bench.pool.move_block_hashes(blocks[0], target)
        assert target.block_hash is not None
    else:
        bench.pool.free_blocks(blocks)
        assert bench.pool.reset_prefix_cache()
    assert bench.owners.failed


def test_a_fault_in_tagging_a_part_does_not_rise_into_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(hash_tokens=2)
    (block,) = bench.pool.get_new_blocks(1)
    monkeypatch.setattr(bench.owners, "_note_duplicates", failing)
    key = bench.pool.cache_partial_block(a_request("x", 1), block, num_tokens=2, kv_cache_group_id=0, block_size=4)
    assert key is not None and bench.owners.failed


def test_when_a_served_hash_moves_its_twin_serves() -> None:
    bench = Bench()
    (served,), (twin,) = bench.filled("x", 1), bench.filled("x", 1)
    assert bench.owners.duplicates == {twin.block_id}
    (target,) = bench.pool.get_new_blocks(1)
    bench.pool.move_block_hashes(served, target)
    assert bench.owners.duplicates == {target.block_id}
    bench.pool.free_blocks([twin, target])
    bench.pool.get_new_blocks(bench.pool.get_num_free_blocks() - 1)
    assert twin.block_hash is not None and target.block_hash is None, "the copy that nobody would find went first"


def test_a_warmed_block_that_moves_is_still_warm() -> None:
    bench = Bench()
    tag = OwnerTag("w", "a", "action", WARMUP)
    bench.directory.arrive("r", tag, [])
    bench.warm.begin("action", ("w", "a"), 1e9)
    (block,) = bench.filled("x", 1)
    (target,) = bench.pool.get_new_blocks(1)
    bench.pool.move_block_hashes(block, target)
    bench.pool.free_blocks([block])
    bench.pool.get_new_blocks(bench.pool.get_num_free_blocks())
    assert bench.warm.take_outcomes() == []
    bench.warm.hit(("w", "a"), [target.block_id])
    assert [(o.outcome, o.reason) for o in bench.warm.take_outcomes()] == [("useful", "hit")]


def test_a_copy_that_is_filled_further_is_no_copy_any_more() -> None:
    """A part of a block that another block serves; full, it is the only one."""
    bench = Bench(hash_tokens=2)
    request = a_request("x", 2)
    blocks = bench.pool.get_new_blocks(2)
    for block in blocks:
        bench.pool.cache_partial_block(request, block, num_tokens=2, kv_cache_group_id=0, block_size=4)
    assert bench.owners.duplicates == {blocks[1].block_id}
    bench.pool.cache_full_blocks(request, [blocks[1]], 0, 1, 4, 0)
    assert bench.owners.duplicates == set()


def test_under_stock_order_nothing_piles_up_of_sessions_that_ended() -> None:
    """vLLM's own queue asks for no values, so nobody would take away what changed."""
    settings = EngineSettings(values=ValueSettings(policy="lru"))
    keeper = CacheKeeper(BlockPool(16, True, TOKENS), settings, CacheShape(TOKENS, (TOKENS,)))
    for number in range(500):
        tag = OwnerTag("w", "a", f"s{number}").encode()
        keeper.arrived(Arrival(f"r{number}", {OWNER_XARG: tag}, [], None, None, None))
        keeper.finished(f"r{number}", 0)
        keeper.exchange(EngineTables(ended=[("w", f"s{number}")]), 0, 0)
    assert len(keeper.directory.valuation._touched) <= 1 and not keeper.directory.valuation._news
