"""Whose the blocks of one replica are: boundaries, sessions and their bounds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.cache.block_owner import WAITING_VALUE
from replicas.cache.ownership import OwnerDirectory
from replicas.cache.settings import ValueSettings
from replicas.cache.sharing import SharedPrefixes
from replicas.free_queue import OwnerFreeQueue
from runtime_actor.messages import WARMUP, OwnerTag
from runtime_actor.tables import OTHER
from tests.unit.ownership_kit import CYCLE, Clock, hashes, one_request, tables, tag


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def directory(clock: Clock) -> OwnerDirectory:
    return OwnerDirectory(ValueSettings(), hash_block_tokens=16, clock=clock)


def test_what_two_sessions_have_in_common_is_the_anchor(directory: OwnerDirectory) -> None:
    first = one_request(directory, "r1", "a", "s1", ("anchor", 5), ("task1", 3))
    assert first.anchor_tokens == 0
    second = one_request(directory, "r2", "a", "s2", ("anchor", 5), ("task2", 3))
    assert second.anchor_tokens == 5 * 16
    assert second.moved == (0, 1, 2, 3, 4)
    spans = [(start, stop, owner.kind) for start, stop, owner in second.spans(0, 8, 16)]
    assert [(start, stop) for start, stop, _ in spans] == [(0, 5), (5, 8)]
    wider = [(start, stop) for start, stop, _ in second.spans(0, 4, 32)]
    assert wider == [(0, 2), (2, 4)]


def test_a_preamble_of_two_agents_belongs_to_both(directory: OwnerDirectory) -> None:
    for i in range(2):
        one_request(directory, f"a{i}", "a", f"s{i}", ("common", 2), ("a", 2), (f"t{i}", 1))
    one_request(directory, "b0", "b", "s0", ("common", 2), ("b", 2), ("t", 1))
    claim = one_request(directory, "b1", "b", "s1", ("common", 2), ("b", 2), ("u", 1))
    assert [(end, len(owner.agents)) for end, owner in claim.runs] == [(32, 2), (64, 1)]


def test_one_task_run_twice_is_no_anchor_once_many_sessions_are_known(directory: OwnerDirectory) -> None:
    for i in range(40):
        one_request(directory, f"x{i}", "a", f"s{i}", ("anchor", 4), (f"t{i}", 2))
    again = one_request(directory, "y", "a", "other", ("anchor", 4), ("t7", 2))
    assert again.anchor_tokens == 4 * 16


def test_an_ended_session_is_worth_nothing_and_so_is_what_it_frees_later(directory: OwnerDirectory) -> None:
    directory.set_tables(CYCLE)
    directory.arrive("r1", tag("b", "s1"), [])
    claim = directory.arrive("r2", tag("b", "s1"), [])
    directory.started("r2")
    directory.end("w", "s1")
    directory.changed()
    assert claim.rest.value == 0.0 and not claim.rest.listed
    directory.finished("r2")
    directory.finished("r1")
    directory.changed()
    directory.check_invariants()


def test_warm_ups_touch_neither_sessions_nor_boundaries(directory: OwnerDirectory) -> None:
    prompt = hashes(("anchor", 4))
    directory.arrive("w1", tag("a", "action-1", WARMUP), prompt)
    directory.finished("w1")
    assert directory.sessions(0.0) == []
    claim = directory.arrive("r1", tag("a", "s1"), prompt)
    assert claim.anchor_tokens == 0


def test_choices_of_one_request_are_one_step_of_their_session(directory: OwnerDirectory) -> None:
    """The engine runs each choice as a request of its own; the actor learns of one."""
    one_request(directory, "before", "b", "s")
    prompt = hashes(("x", 3))
    first = directory.arrive("0_r", tag("a", "s"), prompt)
    others = [directory.arrive(f"{i}_r", tag("a", "s"), prompt, first=first) for i in (1, 2)]
    session = first.session
    assert session is not None and (session.previous, session.current) == ("b", "a")
    assert session.visits == {"a": 1, "b": 1} and session.active == 3
    assert {other.rest for other in others} == {first.rest} and all(other.session is session for other in others)
    for name in ("0_r", "1_r", "2_r"):
        directory.started(name)
        directory.finished(name)
    assert session.active == 0
    directory.check_invariants()


def test_a_tenant_at_work_loses_nothing_to_tables_of_others(directory: OwnerDirectory) -> None:
    """A cluster may have more tenants than an engine has room for; all their tables come to every engine."""
    cap = directory.settings.max_workloads
    for i in range(cap // 2):
        one_request(directory, f"r{i}", "a", "s", workload=f"at work {i}")
    for _ in range(2):
        for i in range(2 * cap):
            directory.set_tables(tables(CYCLE.first.tolist(), ("a", "b", OTHER), f"elsewhere {i}"))
    directory.check_invariants()
    assert {row[0] for row in directory.sessions(0.0)} == {f"at work {i}" for i in range(cap // 2)}
    for i in range(cap):
        one_request(directory, f"q{i}", "a", "s", workload=f"here {i}")
    directory.set_tables(tables(CYCLE.first.tolist(), ("a", "b", OTHER), "elsewhere"))
    assert len(directory.sessions(0.0)) == cap, "nor where all are at work"
    for i in range(cap):
        directory.end(f"here {i}", "s")
    directory.set_tables(tables(CYCLE.first.tolist(), ("a", "b", OTHER), "elsewhere"))
    learnt = [directory._workloads.get(f"here {i}") for i in range(cap)]
    assert all(known is not None and known.sessions_of for known in learnt), "nor what was learnt, between two sessions"
    directory.check_invariants()


def test_a_session_too_many_is_the_crowds_not_the_neighbours(clock: Clock) -> None:
    """Tables of tenants that aren't here make nobody's part of the sessions smaller."""
    directory = OwnerDirectory(ValueSettings(max_sessions=40), clock=clock)
    for i in range(20):
        directory.set_tables(tables(CYCLE.first.tolist(), ("a", "b", OTHER), f"elsewhere {i}"))
    for i in range(10):
        one_request(directory, f"few{i}", "a", f"s{i}", workload="few")
    for i in range(200):
        one_request(directory, f"many{i}", "a", f"s{i}", workload="many")
    for i in range(10, 15):
        one_request(directory, f"few{i}", "a", f"s{i}", workload="few")
    told = [row[0] for row in directory.sessions(0.0)]
    assert (told.count("few"), told.count("many")) == (15, 25)


def test_sessions_are_told_in_the_time_of_who_asks(directory: OwnerDirectory, clock: Clock) -> None:
    """The directory's clock may be any that only goes forward; other processes know the wall's."""
    one_request(directory, "r", "a", "s")
    clock.now += 7.0
    assert directory.sessions(wall_s=1e9) == [["w", "s", "", "a", 1e9 - 7.0]]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["arrive", "start", "wait", "finish", "end", "tick", "tables", "warm"]),
            st.integers(0, 30),
            st.sampled_from(["a", "b", "c", "d"]),
        ),
        max_size=200,
    )
)
def test_caps_and_values_hold_whatever_happens(steps: list[tuple[str, int, str]]) -> None:
    clock = Clock()
    bounds = ValueSettings(max_workloads=2, max_sessions=5, max_agents_per_session=2, max_shared_owners=3)
    directory = OwnerDirectory(bounds, 16, clock, SharedPrefixes(max_prefixes=20))
    for i, (what, which, agent) in enumerate(steps):
        name, session = f"r{which}", f"s{which % 9}"
        match what:
            case "arrive" | "warm":
                kind = WARMUP if what == "warm" else "demand"
                if directory.claims.get(name) is None:
                    owner = OwnerTag(f"w{which % 3}", agent, session, kind)
                    directory.arrive(name, owner, hashes((agent, 3), (str(i), 4)))
            case "start":
                directory.started(name)
            case "wait":
                directory.waits(name)
            case "finish":
                directory.finished(name)
            case "end":
                directory.end(f"w{which % 3}", session)
            case "tick":
                clock.now += which
            case "tables":
                directory.set_tables(tables(CYCLE.first.tolist(), ("a", "b", OTHER), f"w{which % 3}", 0.1))
        for owner in directory.changed():
            assert 0.0 <= owner.value <= WAITING_VALUE
        directory.check_invariants()


def test_the_directory_is_the_queues_callback(directory: OwnerDirectory) -> None:
    directory.set_tables(CYCLE)
    kept = one_request(directory, "r1", "b", "kept")
    lost = one_request(directory, "r2", "b", "lost")
    blocks = [SimpleNamespace(block_id=i, prev_free_block=None, next_free_block=None) for i in range(8)]
    owner_of = [None] * 8
    queue = OwnerFreeQueue(blocks, owner_of, directory.changed)
    queue.popleft_n(8)
    owner_of[:] = [kept.rest] * 4 + [lost.rest] * 4
    queue.append_n(blocks)
    one_request(directory, "r3", "a", "kept")
    directory.end("w", "lost")
    assert [block.block_id for block in queue.popleft_n(4)] == [4, 5, 6, 7]
