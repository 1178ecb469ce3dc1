"""What a replica keeps for later is bounded, and says what it dropped."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.anchors import Anchor, AnchorStore, decode_token_ids
from replicas.settings import ReplicaSettings
from runtime_actor.errors import ConfigurationError, MessageError
from runtime_actor.event_buffer import EventBuffer
from runtime_actor.messages import SessionEnded


def event(number: int) -> SessionEnded:
    return SessionEnded(str(number), 0.0, "t", "w", "s")


def anchor(digest: str, tokens: int = 10, agent: str = "a") -> Anchor:
    return Anchor("w", agent, digest, bytes(4 * tokens), None, None)


@given(st.lists(st.one_of(st.just("add"), st.integers(1, 5), st.just("fail"))))
def test_no_event_is_lost_uncounted_or_out_of_order(steps: list) -> None:
    buffer = EventBuffer(max_events=8, max_bytes=1 << 20)
    added, sent = 0, []
    for step in steps:
        if step == "add":
            buffer.add(event(added))
            added += 1
        elif step == "fail":
            buffer.put_back(buffer.take(4))
        else:
            sent += buffer.take(step)
        assert len(buffer) <= 8
        assert buffer.filled.is_set() == bool(len(buffer))
    sent += buffer.take(100)
    assert len(sent) + buffer.dropped == added
    assert sent == sorted(sent, key=lambda e: int(e.event_id))
    assert buffer.size_bytes == 0


def test_the_oldest_is_dropped_at_the_cap_of_bytes() -> None:
    buffer = EventBuffer(max_events=100, max_bytes=2048)
    for number in range(5):
        buffer.add(event(number))
    assert [e.event_id for e in buffer.take(10)] == ["1", "2", "3", "4"]
    assert buffer.dropped == 1


def test_a_waiter_wakes_with_the_first_event() -> None:
    async def scenario() -> None:
        buffer = EventBuffer(max_events=2, max_bytes=1 << 20)
        waiter = asyncio.ensure_future(buffer.filled.wait())
        await asyncio.sleep(0)
        assert not waiter.done()
        buffer.add(event(0))
        assert await waiter

    asyncio.run(scenario())


def test_anchors_are_announced_once_an_epoch() -> None:
    store = AnchorStore(cap_bytes=1 << 20, max_anchors=10)
    store.add(anchor("x"))
    store.add(anchor("from actor"), announced=True)
    assert [a.digest for a in store.unannounced(10)] == ["x"]
    assert store.unannounced(10) == []
    store.forget_announcements()
    assert {a.digest for a in store.unannounced(10)} == {"x", "from actor"}


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 60))))
def test_the_anchor_store_stays_within_its_caps(additions: list[tuple[str, int]]) -> None:
    store = AnchorStore(cap_bytes=400, max_anchors=5)
    for digest, tokens in additions:
        store.add(anchor(digest, tokens))
        assert store.size_bytes <= 400 and len(store) <= 5
    listed = store.listing().get("w", {})
    assert bool(listed) == bool(len(store))


def test_the_least_recently_used_anchor_goes_first() -> None:
    store = AnchorStore(cap_bytes=1 << 20, max_anchors=2)
    store.add(anchor("x"))
    store.add(anchor("y"))
    assert store.get("w", "a", "x") is not None
    store.add(anchor("z"))
    assert store.get("w", "a", "y") is None and store.get("w", "a", "x") is not None


def test_token_ids_are_checked() -> None:
    assert decode_token_ids((5).to_bytes(4, "little") * 2) == [5, 5]
    with pytest.raises(MessageError, match="multiple"):
        decode_token_ids(b"abc")
    with pytest.raises(MessageError, match="negative"):
        decode_token_ids(b"\xff" * 4)


def test_settings_name_a_bad_key() -> None:
    assert ReplicaSettings.from_dict(None) == ReplicaSettings()
    with pytest.raises(ConfigurationError, match=r"replica\.prefetch\.slices"):
        ReplicaSettings.from_dict({"prefetch": {"slices": 1}})
    with pytest.raises(ConfigurationError, match=r"replica\.watchdog\.poll_s: -1"):
        ReplicaSettings.from_dict({"watchdog": {"poll_s": -1}})
