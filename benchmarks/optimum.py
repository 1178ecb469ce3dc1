"""The best any policy could do on a trace: Belady's MIN for prefix caches, from the whole future.

Why it is a bound: a request's blocks must all be in the cache while it runs, so between two uses of a
block it costs one place at each request that doesn't use it, and at request r there are capacity -
len(blocks) places for such. Keeping as many of these intervals as possible is interval packing with one
capacity a point, which dropping the interval that ends last solves exactly (Belady 1966 is the case of
one block a request). A use that can't count as a hit (the last block of a request, or a request before
`count_from`) isn't worth keeping a block for: the request brings it in anyway.

Why it is reached: a block's head is used whenever the block is, so its next counted use is no later; with
ties broken deepest first no block outlasts its own prefix.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from benchmarks.trace_format import Request

NEVER = 1 << 60


def optimal_hits(requests: Sequence[Request], capacity: int, count_from: int) -> list[int]:
    """Blocks found in the cache by each request: its leading resident blocks, the last one left out.

    `capacity` must hold the longest request. Requests before `count_from` are played but not aimed at.
    """
    futures = _next_counted_uses(requests, count_from)
    cached: dict[str, tuple[int, int]] = {}
    heap: list[tuple[int, int, str]] = []
    hits = []
    for request, uses in zip(requests, futures, strict=True):
        found = 0
        while found < len(request.blocks) - 1 and request.blocks[found] in cached:
            found += 1
        hits.append(found)
        held = set(request.blocks)
        for depth, (block, use) in enumerate(zip(request.blocks, uses, strict=True)):
            cached[block] = (use, depth)
        _shrink(cached, heap, held, capacity)
        for depth, (block, use) in enumerate(zip(request.blocks, uses, strict=True)):
            heapq.heappush(heap, (-use, -depth, block))
    return hits


def _shrink(
    cached: dict[str, tuple[int, int]],
    heap: list[tuple[int, int, str]],
    held: set[str],
    capacity: int,
) -> None:
    """Drop the blocks used latest, deepest first, until `capacity` is kept; never one of `held`.

    Heap entries that say something else than `cached` are old and void, those of `held` always are.
    """
    while len(cached) > capacity:
        use, depth, block = heapq.heappop(heap)
        if block not in held and cached.get(block) == (-use, -depth):
            del cached[block]


def _next_counted_uses(requests: Sequence[Request], count_from: int) -> list[list[int]]:
    """For each block of each request the index of its next use, NEVER if that can't be a hit."""
    following: dict[str, int] = {}
    futures: list[list[int]] = []
    for index in range(len(requests) - 1, -1, -1):
        blocks = requests[index].blocks
        futures.append([following.get(block, NEVER) for block in blocks])
        for block in blocks:
            following[block] = index if index >= count_from else NEVER
        following[blocks[-1]] = NEVER
    futures.reverse()
    return futures
