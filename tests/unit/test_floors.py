"""A flood by one tenant takes nothing of what another keeps by its floor."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.cache.floors import SLACK, blocks_of_tenants, within_floor
from replicas.cache.settings import MAX_FLOOR, ValueSettings
from replicas.engine.messages import EngineSettings
from replicas.simulation.cache import Prompt, SimulatedCache
from runtime_actor.errors import ConfigurationError
from runtime_actor.messages import OwnerTag

BLOCKS = 64
SIZE = 4


class Cache:
    """One request after the other, each of new words behind `preamble` blocks that its tenant's others have too."""

    def __init__(self, floor: float, policy: str = "reach") -> None:
        self.now_s = 0.0
        values = ValueSettings(policy=policy, tenant_floor=floor)
        self.cache = SimulatedCache(num_blocks=BLOCKS, block_size=SIZE, values=values, clock=lambda: self.now_s)
        self._words = itertools.count(1000)

    def ask(self, tenant: str, session: str, blocks: int, preamble: int = 0) -> None:
        self.now_s += 1.0
        common = [hash(tenant) % 1000] * (preamble * SIZE)
        ids = (*common, *(next(self._words) for _ in range(blocks * SIZE)))
        tag = OwnerTag(tenant, "a", session)
        claim, hashes = self.cache.arrive(f"r{ids[-1]}", tag, Prompt(ids))
        held = self.cache.allocate(claim, hashes, len(ids), len(ids) + 1)
        assert held is not None
        self.cache.fill(held, len(ids))
        self.cache.directory.finished(claim.request_id)
        self.cache.free(held)
        self.cache.check_invariants()

    def held(self, tenant: str) -> int:
        return blocks_of_tenants(self.cache._owner_of)[tenant]


def flooded(floor: float) -> int:
    """What a quiet tenant's 12 blocks have become after a flood by another one."""
    cache = Cache(floor)
    for i in range(3):
        cache.ask("quiet", f"s{i}", 4)
    for i in range(60):
        cache.ask("flood", f"s{i}", 5)
    return cache.held("quiet")


def test_without_floors_a_flood_takes_all() -> None:
    assert flooded(0.0) == 0


def test_with_one_it_takes_nothing() -> None:
    assert flooded(0.5) == 12


def test_above_its_floor_a_tenant_has_no_more_right_than_others() -> None:
    cache = Cache(0.25)
    for i in range(8):
        cache.ask("large", f"s{i}", 5)
    for i in range(60):
        cache.ask("flood", f"s{i}", 5)
    floor = 0.25 * BLOCKS / 2
    assert floor <= cache.held("large") <= floor * SLACK


def test_one_tenant_alone_is_ordered_as_without_floors() -> None:
    def order(floor: float) -> list[int]:
        cache = Cache(floor, "anchors")
        for i in range(40):
            cache.ask("one", f"s{i % 7}", 1 + i % 5, preamble=2)
        return [block.block_id for block in cache.cache._queue.get_all_free_blocks()]

    assert order(0.5) == order(0.0)


request = st.tuples(st.sampled_from(["b", "c", "d"]), st.integers(0, 5), st.integers(1, 6), st.integers(0, 3))


@settings(max_examples=50, deadline=None)
@given(
    floor=st.sampled_from([0.3, 0.5, MAX_FLOOR]),
    policy=st.sampled_from(["reach", "anchors"]),
    flood=st.lists(request, min_size=20, max_size=80),
)
def test_nobody_falls_below_its_floor_by_what_others_do(floor: float, policy: str, flood: list) -> None:
    """Four tenants at most, so that a quarter of the room is what each surely keeps."""
    cache = Cache(floor, policy)
    kept = int(floor * BLOCKS / 4)
    cache.ask("quiet", "s", kept)
    for tenant, session, blocks, preamble in flood:
        cache.ask(tenant, f"s{session}", blocks, preamble)
        assert cache.held("quiet") == kept


@given(st.dictionaries(st.text(min_size=1), st.integers(1, 1000), max_size=8), st.floats(0, 1e5), st.randoms())
def test_who_is_protected(held: dict[str, int], room: float, random) -> None:
    before = frozenset(random.sample(sorted(held), random.randint(0, len(held))))
    chosen = within_floor(held, room, before)
    assert within_floor(held, room, frozenset()) <= chosen
    assert len(held) > 1 or not chosen
    assert all(held[name] * len(held) <= room * SLACK + 1e-6 for name in chosen)


def test_a_floor_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="tenant_floor must be within"):
        ValueSettings(tenant_floor=0.9)


@pytest.mark.parametrize("cap", ["max_workloads", "max_sessions", "max_agents_per_session", "max_shared_owners"])
def test_a_cap_that_leaves_room_for_nothing_is_refused(cap: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{cap} must be at least 1, got 0"):
        EngineSettings.from_config({cap: 0})
