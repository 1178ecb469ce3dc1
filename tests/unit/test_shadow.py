"""The shadow of stock order: hit for hit what a cache in that order has."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cache import PrefixCache
from benchmarks.policies.known import make
from benchmarks.trace_format import Request
from replicas.cache.shadow import ShadowLru

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=60)


def chained(prompt: Sequence[object], serial: int) -> list[bytes]:
    """Hashes that stand for their whole prefix, as vLLM's do; the last block is this request's alone."""
    return [*(repr(prompt[: i + 1]).encode() for i in range(len(prompt))), f"own {serial}".encode()]


@given(PROMPTS, st.integers(7, 24))
def test_it_has_what_stock_order_has(prompts: list[list[int]], capacity: int) -> None:
    cache = PrefixCache(capacity, make("lru"))
    shadow = ShadowLru(capacity)
    for serial, prompt in enumerate(prompts):
        hashes = chained(prompt, serial)
        blocks = tuple(block_hash.decode() for block_hash in hashes)
        request = Request(session=f"s{serial}", agent="a", blocks=blocks, anchor_blocks=0, final=False, t_s=None)
        expected = cache.play(request, serial, float(serial))
        assert shadow.use(hashes) == expected
        shadow.keep(hashes)
        assert len(shadow) <= capacity
        shadow.check_invariants()


def test_a_prompt_longer_than_the_cache_leaves_its_head() -> None:
    shadow = ShadowLru(4)
    hashes = chained("abcdef", 0)
    shadow.keep(hashes)
    assert len(shadow) == 4
    assert shadow.use(hashes) == 4


def test_a_reset_empties_it() -> None:
    shadow = ShadowLru(4)
    shadow.keep(chained("abc", 0))
    shadow.clear()
    assert len(shadow) == 0
    assert shadow.use(chained("abc", 1)) == 0
    shadow.check_invariants()


def test_no_blocks_no_shadow() -> None:
    with pytest.raises(ValueError, match="capacity must be at least 1 block, got 0"):
        ShadowLru(0)
