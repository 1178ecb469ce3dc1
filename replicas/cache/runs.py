"""Runs of block hashes, of which each stands for its whole prefix."""

from __future__ import annotations

from collections.abc import Sequence


def common_blocks(run: Sequence[bytes], hashes: Sequence[bytes], start: int) -> int:
    """How many of a run's blocks `hashes[start:]` begins with; the first is known to be the same.

    Equal hashes have equal prefixes, so the end of what is common is found by halving.
    """
    end = min(len(run), len(hashes) - start)
    if run[end - 1] == hashes[start + end - 1]:
        return end
    same, differs = 1, end - 1
    while same < differs:
        middle = (same + differs) // 2
        if run[middle] == hashes[start + middle]:
            same = middle + 1
        else:
            differs = middle
    return same
