"""Policies by the name that a replay is asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.cache import Policy
from benchmarks.policies.anchors import AnchorsPolicy
from benchmarks.policies.lru import LruPolicy
from benchmarks.policies.reach import ReachPolicy, without_contexts, without_waits
from replicas.cache.peers import PEERS
from replicas.cache.settings import ValueSettings
from runtime_actor.reach import ReachSettings

MIN = "min"
"""Needs the future, so it is computed apart (benchmarks/optimum.py)."""

ONLINE: dict[str, Callable[[], Policy]] = {
    "lru": LruPolicy,
    **{name: partial(ReachPolicy, values=ValueSettings(policy=name)) for name in PEERS},
    "anchors": AnchorsPolicy,
    "reach": ReachPolicy,
}

NAMES = (*ONLINE, MIN)

ABLATIONS: dict[str, Callable[[], Policy]] = {
    "reach-without-stages": lambda: ReachPolicy(ReachSettings(max_stages=0)),
    "reach-without-order2": lambda: ReachPolicy(trim=without_contexts),
    "reach-without-silence": lambda: ReachPolicy(trim=without_waits),
    "reach-without-reuse": lambda: ReachPolicy(values=ValueSettings(learn_reuse=False)),
    "reach-without-guard": lambda: ReachPolicy(guarded=False),
    "reach-gamma-0.4": lambda: ReachPolicy(ReachSettings(gamma=0.4)),
    "reach-gamma-0.8": lambda: ReachPolicy(ReachSettings(gamma=0.8)),
    "reach-gamma-0.9": lambda: ReachPolicy(ReachSettings(gamma=0.9)),
}
"""Variants of reach that only `benchmarks.gap` offers, to see what each part is worth."""


def make(name: str) -> Policy:
    """Raises KeyError for a name that is in neither list."""
    return (ONLINE.get(name) or ABLATIONS[name])()
