"""Of several gateways one serves, and every proxy agrees which."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from serve_app.leader import PATIENCE_S, STARTED, OldestFirst


def gateway(name: str, metadata: Any) -> Any:
    return SimpleNamespace(replica_id=SimpleNamespace(unique_id=name), replica_metadata=metadata)


def pending(waited_s: float = 0.0) -> Any:
    return SimpleNamespace(created_at=time.time() - waited_s, routing_context=SimpleNamespace(should_backoff=False))


def order(candidates: list[Any], request: Any) -> list[str]:
    router = OldestFirst.__new__(OldestFirst)
    ranks = asyncio.run(router.choose_replicas(candidates, request))
    assert all(len(rank) == 1 for rank in ranks)
    return [rank[0].replica_id.unique_id for rank in ranks]


OLD, YOUNG = gateway("z", {STARTED: 10.0}), gateway("a", {STARTED: 20.0})


def test_the_oldest_alone_is_asked_at_first_and_backoff_is_asked_for() -> None:
    request = pending()
    assert order([YOUNG, OLD], request) == ["z"] and request.routing_context.should_backoff


def test_the_next_takes_over_when_it_is_gone() -> None:
    assert order([YOUNG], pending()) == ["a"]
    assert order([], pending()) == []


def test_one_that_comes_later_does_not_take_over() -> None:
    assert order([YOUNG, gateway("0", {STARTED: 30.0}), gateway("1", {})], pending()) == ["a"]


def test_a_request_that_has_waited_goes_to_the_others_too() -> None:
    assert order([YOUNG, OLD], pending(PATIENCE_S + 1.0)) == ["z", "a"]


metadata = st.one_of(st.none(), st.fixed_dictionaries({}, optional={STARTED: st.one_of(st.text(), st.floats(0, 1e10))}))


@given(st.dictionaries(st.text(min_size=1), metadata, min_size=1, max_size=6), st.randoms())
def test_all_proxies_agree_whatever_the_order_in_which_they_heard(found: dict[str, Any], random: Any) -> None:
    candidates = [gateway(name, of) for name, of in found.items()]
    shuffled = random.sample(candidates, len(candidates))
    late = pending(PATIENCE_S + 1.0)
    assert order(candidates, pending()) == order(shuffled, pending()) == order(shuffled, late)[:1]
    assert sorted(order(shuffled, late)) == sorted(found)
