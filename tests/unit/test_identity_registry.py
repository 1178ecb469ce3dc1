from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runtime_actor.identity import Registry, SessionRecord


def registry(cap: int) -> Registry[SessionRecord]:
    return Registry(cap, SessionRecord, "session")


@given(cap=st.integers(1, 5), keys=st.lists(st.sampled_from("abcdefgh"), max_size=60))
def test_holds_the_most_recently_used(cap: int, keys: list[str]) -> None:
    subject = registry(cap)
    recent: list[str] = []
    dropped = 0
    for key in keys:
        record, gone = subject.touch(key)
        assert record.session == key
        if key in recent:
            recent.remove(key)
        recent.append(key)
        expected_gone = recent[:-cap]
        recent = recent[-cap:]
        dropped += len(expected_gone)
        assert [r.session for r in gone] == expected_gone
    assert [r.session for r in subject] == recent
    assert subject.dropped == dropped
    subject.check_invariants()


def test_dump_and_restore_into_a_smaller_one_keeps_the_newest() -> None:
    subject = registry(4)
    for key in "abcd":
        subject.touch(key)[0].requests = ord(key)
    smaller = registry(2)
    smaller.restore(subject.dump())
    assert [(r.session, r.requests) for r in smaller] == [("c", 99), ("d", 100)]
