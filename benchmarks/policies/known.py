"""Policies by the name that a replay is asked for."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.cache import Policy
from benchmarks.policies.anchors import AnchorsPolicy
from benchmarks.policies.hops import CacheSagePolicy, CacheScoutPolicy
from benchmarks.policies.lru import LruPolicy
from benchmarks.policies.reach import ReachPolicy
from benchmarks.policies.ttl import TtlPolicy

MIN = "min"
"""Needs the future, so it is computed apart (benchmarks/optimum.py)."""

ONLINE: dict[str, Callable[[], Policy]] = {
    "lru": LruPolicy,
    "cachesage": CacheSagePolicy,
    "cachescout": CacheScoutPolicy,
    "ttl": TtlPolicy,
    "anchors": AnchorsPolicy,
    "reach": ReachPolicy,
}

NAMES = (*ONLINE, MIN)
