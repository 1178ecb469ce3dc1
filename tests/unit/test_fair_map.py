"""Nobody within an equal share loses anything to others, and the cap holds."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_actor.event_buffer import EventBuffer
from runtime_actor.fair_map import FairMap
from runtime_actor.messages import SessionEnded

OWNERS = ("a", "b", "c")


@settings(deadline=None)
@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.sampled_from(OWNERS), st.integers(0, 15), st.booleans()), max_size=120),
)
def test_against_a_model(cap: int, steps: list[tuple[str, int, bool]]) -> None:
    """Each step adds or touches an entry, or takes one out."""
    fair: FairMap[int, str] = FairMap(cap)
    for owner, key, adds in steps:
        before = {name: dict(part) for name, part in fair}
        if not adds:
            fair.pop(owner, key)
            continue
        part = fair.part(owner)
        part[key] = f"{owner}{key}"
        part.move_to_end(key)
        share = cap // len(dict(fair))
        gone = fair.trim(owner)
        assert len(fair) <= cap and len(gone) <= 1
        assert fair.get(owner, key) == f"{owner}{key}" or cap < len(before) + 1
        for other, entries in before.items():
            if other != owner and len(entries) <= share:
                assert dict(dict(fair).get(other, {})) == entries
    assert all(part for _, part in fair) or not len(fair)


@settings(deadline=None)
@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.sampled_from("abcdef"), st.sets(st.integers(0, 9), max_size=4), st.booleans()), max_size=60),
)
def test_many_added_at_once_are_within_the_cap_and_no_more_go_than_must(
    cap: int, steps: list[tuple[str, set[int], bool]]
) -> None:
    fair: FairMap[int, int] = FairMap(cap)
    for owner, keys, drops in steps:
        if drops:
            fair.drop(owner)
        fair.part(owner).update(dict.fromkeys(keys, 0))
        there = len(fair)
        assert len(fair.trim(owner)) == max(0, there - cap)
        assert len(fair) == min(there, cap)


def test_one_alone_may_have_all_and_gives_way_to_a_second() -> None:
    fair: FairMap[int, int] = FairMap(10)
    for number in range(25):
        fair.part("a")[number] = number
        fair.trim("a")
    assert [number for _, part in fair for number in part] == list(range(15, 25))
    for number in range(100):
        fair.part("b")[number] = number
        fair.trim("b")
    assert Counter({owner: len(part) for owner, part in fair}) == {"a": 5, "b": 5}
    assert list(fair.part("b")) == list(range(95, 100))


def test_drop_forgets_an_owner() -> None:
    fair: FairMap[int, int] = FairMap(4)
    fair.part("a")[1] = 7
    assert fair.drop("a") == [7] and fair.drop("a") == [] and len(fair) == 0


def ended(tenant: str, number: int) -> SessionEnded:
    return SessionEnded(f"{tenant}{number}", float(number), tenant, tenant, "s")


def test_a_flood_of_events_pushes_out_its_own_only() -> None:
    buffer = EventBuffer(max_events=10, max_bytes=1 << 20)
    for number in range(3):
        buffer.add(ended("quiet", number))
    for number in range(1000):
        buffer.add(ended("loud", number))
    kept = buffer.take(100)
    assert [event.event_id for event in kept if event.tenant == "quiet"] == ["quiet0", "quiet1", "quiet2"]
    assert len(kept) == 10 and buffer.dropped == 993


@settings(deadline=None)
@given(st.lists(st.sampled_from(["add", "add", "take", "back"]), max_size=60))
def test_the_buffer_keeps_the_order_over_tenants(steps: list[str]) -> None:
    buffer = EventBuffer(max_events=1000, max_bytes=1 << 20)
    model: list[str] = []
    taken: list[SessionEnded] = []
    for number, step in enumerate(steps):
        if step == "add":
            event = ended("xyz"[number % 3], number)
            buffer.add(event)
            model.append(event.event_id)
        elif step == "take":
            taken = buffer.take(3)
            assert [event.event_id for event in taken] == model[:3]
            del model[:3]
        else:
            buffer.put_back(list(taken))
            model[:0] = [event.event_id for event in taken]
            taken = []
        assert len(buffer) == len(model) and buffer.size_bytes == 512 * len(model)
