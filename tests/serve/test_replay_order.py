"""The replay's `lru` against vLLM's own free queue, request by request."""

from __future__ import annotations

import random
from collections.abc import Sequence

from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue

from benchmarks.cache import Block, FreeQueue, PrefixCache
from benchmarks.policies.base import PassivePolicy
from benchmarks.policies.lru import LruPolicy
from benchmarks.trace_format import Request


class StockPolicy(PassivePolicy):
    def start(self, blocks: Sequence[Block]) -> FreeQueue:
        return FreeKVCacheBlockQueue(list(blocks))


def random_request(rng: random.Random) -> Request:
    """A path in a small tree, so that prefixes are shared and broken often."""
    path = "".join(rng.choice("xyz") for _ in range(rng.randint(1, 6)))
    blocks = tuple(path[: i + 1] for i in range(len(path)))
    return Request(f"s{rng.randrange(3)}", "a", blocks, 0, False, None)


def test_lru_is_the_order_of_vllm() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        capacity = rng.randint(6, 20)
        ours = PrefixCache(capacity, LruPolicy())
        stock = PrefixCache(capacity, StockPolicy())
        for index in range(300):
            request = random_request(rng)
            assert ours.play(request, index, 0.0) == stock.play(request, index, 0.0)
            assert set(ours.resident()) == set(stock.resident())
