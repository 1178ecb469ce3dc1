"""What the blocks of one replica are worth, and when that is found out."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from replicas.cache.arrivals import Arrivals
from replicas.cache.block_owner import WAITING_VALUE, BlockOwner, worth_of
from replicas.cache.ownership import OwnerDirectory
from replicas.cache.settings import ValueSettings
from replicas.cache.threads import MAX_THREADS
from replicas.cache.workload_values import MAX_AT_ONCE, Session
from runtime_actor.messages import OwnerTag
from runtime_actor.tables import OTHER, ReachTables
from tests.unit.ownership_kit import CYCLE, Clock, hashes, one_request, tables, tag


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def directory(clock: Clock) -> OwnerDirectory:
    return OwnerDirectory(ValueSettings(), hash_block_tokens=16, clock=clock)


def test_moves_of_known_sessions_are_valued_together(directory: OwnerDirectory, clock: Clock) -> None:
    directory.set_tables(CYCLE)
    one_request(directory, "r1", "a", "s1")
    one_request(directory, "r2", "b", "s1")
    one_request(directory, "r3", "a", "s1")
    directory.changed()
    before = {owner: owner.value for session in directory._sessions for owner in session.owners}
    one_request(directory, "r4", "b", "s1")
    directory.changed()
    assert {owner: owner.value for owner in before} == before
    clock.now += directory.settings.refresh_s
    assert directory.changed()
    assert {owner: owner.value for owner in before} != before
    one_request(directory, "r5", "a", "s1")
    one_request(directory, "new", "a", "s2")
    assert directory.changed(), "a new session's blocks are worth something before the next refresh"
    clock.now -= 60.0
    one_request(directory, "r6", "b", "s1")
    assert directory.changed(), "nor does a clock that stepped back put values off"


def test_values_follow_the_session_and_the_tables(directory: OwnerDirectory) -> None:
    directory.set_tables(CYCLE)
    directory.arrive("r1", tag("a", "s1"), [])
    owner = directory.claims.get("r1").rest
    directory.started("r1")
    directory.changed()
    assert owner.value == 0.0
    directory.finished("r1")
    one_request(directory, "r2", "b", "s1")
    assert owner in directory.changed()
    assert worth_of(owner.value) == pytest.approx(0.5, abs=1e-2)


def test_an_anchor_is_worth_what_any_session_makes_of_it(directory: OwnerDirectory) -> None:
    directory.set_tables(CYCLE)
    for i in range(3):
        one_request(directory, f"r{i}", "b", f"s{i}")
    assert directory.anchor_value("w", "a") == pytest.approx(1 - 0.5**3, abs=1e-5)
    directory.end("w", "s0")
    assert directory.anchor_value("w", "a") == pytest.approx(1 - 0.5**2, abs=1e-5)


def test_arrivals_keep_an_anchor_when_no_session_lives(directory: OwnerDirectory) -> None:
    directory.set_tables(tables(CYCLE.first.tolist(), ("a", "b", OTHER), arrivals=0.2))
    value = directory.anchor_value("w", "a")
    assert 0.3 < value < 0.8


def test_a_workload_that_has_stopped_leaves_its_place_to_one_that_goes_on(
    directory: OwnerDirectory, clock: Clock
) -> None:
    """Both have learnt alike; only what is still asked for keeps its anchors."""

    def requests(workload: str, count: int) -> None:
        for _ in range(count):
            clock.now += 1.0
            request = f"{workload}{clock.now}"
            directory.arrive(request, tag("a", request, workload=workload), hashes(("p", 2), (request, 1)))
            directory.finished(request)
            directory.end(workload, request)

    for workload in ("stopped", "going"):
        directory.set_tables(tables(CYCLE.first.tolist(), ("a", "b", OTHER), workload, arrivals=0.5))
        requests(workload, 40)
    before = directory.anchor_value("stopped", "a")
    assert directory.anchor_value("going", "a") > before > 0.0
    requests("going", 600)
    assert directory.anchor_value("stopped", "a") < 0.2 * before
    assert directory.anchor_value("going", "a") > before


def test_arrivals_share_falls_with_silence_alone() -> None:
    arrivals = Arrivals()
    assert arrivals.share(1e9) == 1.0
    for i in range(200):
        arrivals.seen(i * 2.0)
    shares = [arrivals.share(398.0 + s) for s in (0.0, 2.0, 32.0, 3200.0)]
    assert shares == pytest.approx([1.0, 16 / 17, 0.5, 1 / 101], rel=0.05)
    assert arrivals.share(0.0) == 1.0


def test_silence_decays_a_session_by_its_own_pace(directory: OwnerDirectory, clock: Clock) -> None:
    directory.set_tables(CYCLE)
    slow = one_request(directory, "a1", "b", "slow").rest
    for i in range(6):
        clock.now += 100.0
        one_request(directory, f"a{i + 2}", "a" if i % 2 else "b", "slow")
    quick = one_request(directory, "b1", "b", "quick").rest
    for i in range(6):
        clock.now += 0.1
        one_request(directory, f"c{i}", "a" if i % 2 else "b", "quick")
    one_request(directory, "d", "a", "slow")
    one_request(directory, "e", "a", "quick")
    directory.changed()
    assert slow.value == quick.value
    assert worth_of(quick.value) == pytest.approx(0.9, abs=1e-2)
    clock.now += 30.0
    directory.changed()
    assert 0.6 < worth_of(slow.value) < 0.9
    assert quick.value < slow.value
    clock.now += 1e6
    directory.changed()
    assert slow.value < 0.05


def test_a_waiting_requests_owners_are_worth_most_earliest_first(directory: OwnerDirectory) -> None:
    directory.set_tables(CYCLE)
    for session in ("s1", "s2"):
        one_request(directory, f"before {session}", "a", session, (session, 2))
    early = directory.arrive("r1", tag("a", "s1"), hashes(("s1", 3)))
    late = directory.arrive("r2", tag("a", "s2"), hashes(("s2", 3)))
    directory.changed()
    assert WAITING_VALUE > early.rest.value > late.rest.value > 1.0
    directory.started("r1")
    directory.changed()
    assert early.rest.value < 1.0
    directory.waits("r1")
    directory.changed()
    assert early.rest.value > late.rest.value


def test_anchors_that_many_sessions_need_are_still_told_apart(directory: OwnerDirectory) -> None:
    """24 sessions reach b, 12 of them a as well: both worths are nearly 1."""
    directory.set_tables(tables([[0.0, 0.9, 0.0], [0.6, 0.6, 0.0], [0, 0, 0], [0.1, 0.1, 0.0]], ("a", "b", OTHER)))
    for i in range(24):
        agent = "ab"[i % 2]
        one_request(directory, f"r{i}", agent, f"s{i}", (f"anchor {agent}", 4), (f"task{i}", 1))
    a, b = (one_request(directory, x, x, x, (f"anchor {x}", 4)).runs[0][1] for x in "ab")
    directory.changed()
    assert worth_of(a.value) > 0.999 and worth_of(b.value) > 0.999
    assert b.value > a.value + 0.01


def test_what_a_harness_rewrites_each_time_is_not_kept_for_it(directory: OwnerDirectory) -> None:
    """Same agents, same turns; one session appends to its prompt, the other's is new each time."""
    directory.set_tables(CYCLE)
    for turn in range(1, 30):
        agent = "ab"[turn % 2]
        kept = one_request(directory, f"h{turn}", agent, "history", (f"h{agent}", turn + 1))
    directory.end("w", "history")
    assert kept.session is not None and kept.session.workload.thread_factors("a", 0.5)[0] > 0.9
    for turn in range(1, 200):
        agent = "ab"[turn % 2]
        waiting = directory.arrive(f"f{turn}", tag(agent, "fresh"), hashes((f"f{turn}", 5)))
        assert not waiting.reads_rest
        directory.started(f"f{turn}")
        directory.finished(f"f{turn}")
    directory.changed()
    assert waiting.session is not None and waiting.session.workload.thread_factors("a", 0.5)[0] < 0.2
    assert max(owner.value for owner in waiting.session.owners) < 0.2


def test_without_tables_nothing_is_worth_anything(directory: OwnerDirectory) -> None:
    claim = directory.arrive("r1", tag("a", "s1"), [])
    assert list(directory.changed()) == []
    assert claim.rest.value == 0.0 and not directory.is_active


def test_weight_zero_and_lru_value_nothing(directory: OwnerDirectory) -> None:
    directory.set_tables(CYCLE)
    owner = one_request(directory, "r1", "a", "s1").rest
    directory.arrive("r2", tag("b", "s1"), [])
    directory.changed()
    assert owner.value > 0.0 or directory.claims.get("r2").rest.value > 0.0
    directory.configure(ValueSettings(weight=0.0))
    directory.changed()
    assert owner.value == 0.0 and directory.claims.get("r2").rest.value == 0.0


def test_anchors_policy_protects_the_shared_part_alone(directory: OwnerDirectory) -> None:
    directory.configure(ValueSettings(policy="anchors"))
    one_request(directory, "r1", "a", "s1", ("x", 2), ("p", 1))
    claim = one_request(directory, "r2", "a", "s2", ("x", 2), ("q", 1))
    directory.changed()
    assert worth_of(claim.runs[0][1].value) > 0.999999 and claim.rest.value == 0.0


def test_asking_for_an_anchors_value_does_not_hide_changes_from_the_queue(directory: OwnerDirectory) -> None:
    directory.set_tables(CYCLE)
    owner = one_request(directory, "r1", "b", "s1").rest
    one_request(directory, "r2", "a", "s1")
    directory.anchor_value("w", "a")
    assert owner in directory.changed()


def test_a_low_priority_holds_its_cache_less() -> None:
    def value_of(priority: int, share: float = 0.5) -> float:
        directory = OwnerDirectory(ValueSettings(priority_share=share), hash_block_tokens=16, clock=Clock())
        directory.set_tables(tables([[0.8, 0.0], [0, 0], [0.8, 0.0]], ("a", OTHER)))
        hashes = [hashlib.sha256(bytes([n])).digest() for n in range(4)]
        claim = directory.arrive("r", OwnerTag("w", "a", "s"), hashes, priority)
        directory.started("r")
        directory.finished("r")
        directory.changed()
        return float(claim.rest.value)

    normal = value_of(0)
    assert normal > value_of(1) > value_of(3) > 0.0
    assert value_of(-5) == normal, "earlier than normal holds no more than normal"
    assert value_of(11) == normal, "started ahead of its client: its priority is nobody's wish"
    assert value_of(3, share=1.0) == normal, "stock: no attention to priorities"


def test_silence_is_looked_at_also_after_the_clock_stepped_back(directory: OwnerDirectory, clock: Clock) -> None:
    directory.set_tables(CYCLE)
    owner = one_request(directory, "r1", "b", "s1").rest
    one_request(directory, "r2", "a", "s1")
    directory.changed()
    clock.now -= 0.9 * clock.now
    one_request(directory, "r3", "b", "s1")
    one_request(directory, "r4", "a", "s1")
    directory.changed()
    fresh = owner.value
    clock.now += 60.0
    directory.changed()
    assert 0.0 < owner.value < fresh


@pytest.mark.parametrize("requests", [1, 10**9, 10**12])
def test_what_waits_is_above_all_else_after_any_number_of_requests(requests: int) -> None:
    early, late = BlockOwner(2), BlockOwner(2)
    early.waiting[requests], late.waiting[requests + 1] = None, None
    assert WAITING_VALUE >= early.settled(1.0) > late.settled(1.0) > 2.0


@pytest.mark.parametrize("weight", [0.1, 0.5, 1.0])
def test_what_an_owner_is_worth_to_a_warm_up_does_not_depend_on_the_weight(
    directory: OwnerDirectory, weight: float
) -> None:
    """A warm-up's own worth is no share of anything: it may take only from what is worth less."""
    directory.configure(ValueSettings(weight=weight))
    directory.set_tables(CYCLE)
    owner = one_request(directory, "r1", "b", "s1").rest
    one_request(directory, "r2", "a", "s1")
    directory.changed()
    assert 0.0 < owner.value <= weight
    assert owner.forecast == pytest.approx(0.9, abs=1e-2)
    directory.arrive("r3", tag("b", "s1"), [])
    directory.started("r3")
    directory.waits("r3")
    directory.changed()
    assert directory.claims["r3"].rest.forecast == 1.0


def test_of_many_calls_at_once_none_loses_its_blocks_while_it_waits(directory: OwnerDirectory) -> None:
    """An agent that is called for more files at a time than conversations of it are remembered."""
    directory.set_tables(CYCLE)
    claims = [directory.arrive(f"r{i}", tag("a", "s"), hashes((f"file{i}", 3))) for i in range(3 * MAX_THREADS)]
    for claim in claims:
        directory.started(claim.request_id)
        directory.waits(claim.request_id)
    directory.changed()
    assert min(claim.rest.value for claim in claims) > 2.0
    directory.check_invariants()
    for claim in claims:
        directory.finished(claim.request_id)
    assert sum(1 for claim in claims if claim.rest.listed) <= MAX_THREADS
    directory.check_invariants()


def crowded(clock: Clock, sessions: int) -> OwnerDirectory:
    directory = OwnerDirectory(ValueSettings(), hash_block_tokens=16, clock=clock)
    directory.set_tables(CYCLE)
    for i in range(sessions):
        clock.now += 0.001
        one_request(directory, f"a{i}", "ab"[i % 2], f"s{i}", (f"x{i}", 1))
        one_request(directory, f"b{i}", "ba"[i % 2], f"s{i}", (f"y{i}", 1))
    directory.changed()
    return directory


def values_of(directory: OwnerDirectory) -> dict[tuple[str, str], float]:
    return {(s.id, owner.agents[0][1]): owner.value for s in directory._sessions for owner in s.owners}


def test_many_sessions_have_their_turn_and_no_look_is_at_all_of_them(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = 3 * MAX_AT_ONCE
    directory = crowded(clock, sessions)
    looked: list[Session] = []
    standing = Session.standing

    def counted(session: Session, of_tables: ReachTables, now_s: float) -> tuple[Any, float]:
        looked.append(session)
        return standing(session, of_tables, now_s)

    monkeypatch.setattr(Session, "standing", counted)
    others = tables((0.5 * CYCLE.first).tolist(), ("a", "b", OTHER))
    for _ in range(3):
        looked.clear()
        clock.now += 30.0
        directory.set_tables(others)
        directory.changed()
        assert 0 < len(looked) <= MAX_AT_ONCE
    for _ in range(3):
        clock.now += directory.settings.tick_s
        directory.changed()
    in_turn, anchor = values_of(directory), directory.anchor_value("w", "a")
    directory.valuation.all_due()
    directory.changed()
    at_once = values_of(directory)
    assert in_turn.keys() == at_once.keys() and len(in_turn) == 2 * sessions
    assert all(abs(in_turn[key] - at_once[key]) < 0.02 for key in in_turn)
    assert directory.anchor_value("w", "a") == pytest.approx(anchor, abs=1e-6)


def test_tables_of_other_agents_are_of_all_sessions_at_once(clock: Clock) -> None:
    """What a session adds to the sum has a number for each agent."""
    directory = crowded(clock, 2 * MAX_AT_ONCE)
    directory.set_tables(tables([[0.0, 0.9], [0, 0], [0.8, 0.4]], ("b", OTHER)))
    directory.changed()
    one_request(directory, "new", "b", "s1")
    clock.now += 1.0
    directory.changed()
    assert 0.0 <= directory.anchor_value("w", "b") <= 1.0
    directory.check_invariants()
