"""Other systems' orders: their rules, and the engine's owners against the same rules block by block."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cache import Block, PrefixCache
from benchmarks.policies.base import PassivePolicy, ScoredQueue
from benchmarks.policies.known import make
from benchmarks.trace_format import Request
from replicas.cache.ownership import OwnerDirectory
from replicas.cache.peer_owners import MAX_USES
from replicas.cache.peers import PEERS, WINDOW, CacheScoutOrder, PinOrder, Use, peer_order
from replicas.cache.settings import POLICIES, ValueSettings
from runtime_actor.messages import OwnerTag
from runtime_actor.settings import KV_CACHE_MODES


class BlockByBlock(PassivePolicy):
    """The rule applied to each block's last use, with no owners and no queue of owners in between."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._used: dict[int, Use] = {}
        self._of: dict[str, Block] = {}

    def start(self, blocks: list[Block]) -> ScoredQueue:  # type: ignore[override]
        self._order = peer_order(self._name, len(blocks))
        return ScoredQueue(blocks, lambda block: self._order.value(self._used[block.block_id]))

    def arrive(self, request: Request, index: int, now_s: float) -> None:
        self._use = self._order.arrived("w", request.agent, request.session, request.blocks, now_s)
        self._order.settle(now_s)

    def gained(self, block: Block, request: Request, position: int, duplicate: bool) -> None:
        assert not duplicate
        self._of[request.blocks[position]] = block

    def lost(self, block: Block, successor: Block | None) -> None:
        del self._of[block.content or ""]

    def finish(self, request: Request, now_s: float) -> None:
        for content in request.blocks:
            self._used[self._of[content].block_id] = self._use
        self._order.finished(self._use, now_s)
        if request.final:
            self._order.ended("w", request.session)


def requests_of(steps: list[tuple[int, int, int, bool]]) -> list[Request]:
    """(agent, session, length, final) -> prompts of an agent's anchor and what is each request's own."""
    found = []
    for index, (agent, session, length, final) in enumerate(steps):
        anchor = tuple(f"a{agent}.{k}" for k in range(2))
        own = tuple(f"s{session}.{agent}.{k}" for k in range(length))
        # A last block of its own, so that none is computed twice: copies leave first in an engine.
        blocks = (*anchor, *own, f"r{index}")
        found.append(Request(f"s{session}", f"a{agent}", blocks, 2, final, float(index)))
    return found


STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 4), st.booleans()), min_size=1, max_size=60
)


@pytest.mark.parametrize("name", PEERS)
@given(steps=STEPS, capacity=st.integers(8, 20))
@settings(max_examples=60, deadline=None)
def test_owners_evict_as_the_rule_does_block_by_block(
    name: str, steps: list[tuple[int, int, int, bool]], capacity: int
) -> None:
    requests = requests_of(steps)
    naive, owners = PrefixCache(capacity, BlockByBlock(name)), PrefixCache(capacity, make(name))
    for index, request in enumerate(requests):
        hits = [cache.play(request, index, float(index)) for cache in (naive, owners)]
        assert hits[0] == hits[1], (index, request)
        assert set(naive.resident()) == set(owners.resident()), (index, request)


def test_every_mode_that_can_be_configured_is_one_that_engines_have() -> None:
    assert set(KV_CACHE_MODES) == set(POLICIES)


def test_cachescout_prefers_agents_that_are_few_hops_away() -> None:
    order = CacheScoutOrder()
    uses = {}
    for agent in "abcabcabc":
        uses[agent] = order.arrived("w", agent, "s", (), 0.0)
    far = order.arrived("w", "d", "s", (), 0.0)
    uses["c"] = order.arrived("w", "c", "s", (), 0.0)
    # c -> a -> b by what was seen; d was heard of more lately than b, and nothing leads to it but c.
    assert order.value(uses["a"]) > order.value(uses["b"])
    assert order.value(uses["c"]) > order.value(far)
    other = order.arrived("x", "a", "s", (), 0.0)
    assert order.value(other) > order.value(uses["a"]), "workloads' transitions are apart"


def test_pins_end_with_time_with_the_session_and_at_half_of_the_cache() -> None:
    order = PinOrder(limit_blocks=3)
    first = order.arrived("w", "a", "s", ("1", "2"), 0.0)
    order.finished(first, 1.0)
    order.settle(1.0)
    assert order.value(first) == 0.0, "no pause seen yet: nothing to pin for"
    second = order.arrived("w", "a", "s", ("1", "2", "3"), 4.0)
    order.finished(second, 5.0)
    order.settle(5.0)
    assert (order.value(first), order.value(second)) == (0.0, 1.0)
    assert order.next_change_s() == 9.0
    other = order.arrived("w", "a", "t", ("4",), 6.0)
    order.finished(other, 6.0)
    order.settle(6.0)
    assert (order.value(second), order.value(other)) == (0.0, 1.0), "four blocks are too many: the oldest goes"
    order.ended("w", "t")
    order.settle(6.0)
    assert order.value(other) == 0.0


def directory(policy: str) -> OwnerDirectory:
    return OwnerDirectory(ValueSettings(policy=policy), clock=lambda: 0.0, cache_blocks=100)


def test_a_switch_of_policy_leaves_no_value_behind() -> None:
    owners = directory("cachesage")
    claim = owners.arrive("r1", OwnerTag("w", "a", "s"), [b"1", b"2"])
    owners.started("r1")
    assert claim.rest in set(owners.changed()) and claim.rest.value == pytest.approx(2.0)
    owners.configure(ValueSettings(policy="reach"))
    assert claim.rest in set(owners.changed())
    assert (claim.rest.value, claim.rest.listed) == (0.0, False)
    owners.finished("r1")
    again = owners.arrive("r2", OwnerTag("w", "a", "s"), [b"1", b"2"])
    assert again.rest is not claim.rest and again.rest.listed
    owners.check_invariants()


def test_the_oldest_use_ends_at_the_cap() -> None:
    owners = directory("cachescout")
    claims = [owners.arrive(f"r{i}", OwnerTag("w", "a", f"s{i}"), [b"%d" % i]) for i in range(MAX_USES + 1)]
    list(owners.changed())
    assert not claims[0].rest.listed and claims[0].rest.value == 0.0
    assert claims[1].rest.listed and claims[1].rest.value > 0.0


def test_agents_that_never_come_back_leave_nothing_behind() -> None:
    order = peer_order("cachesage", 100)
    for number in range(3 * WINDOW):
        order.arrived("w", f"a{number}", "s", (), 0.0)
    (steps,) = order._steps.values()  # type: ignore[attr-defined]
    assert len(steps._counts) <= WINDOW
