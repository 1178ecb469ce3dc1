"""The boundary of an agent's anchor, from block hashes alone."""

from __future__ import annotations

import hashlib
import itertools
import zlib

from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.cache.sharing import LEAST_SHARE, MAX_SHARERS, SharedPrefixes

AGENT = ("w", "coder")


def blocks(*names: str) -> list[bytes]:
    return [hashlib.sha256(name.encode()).digest() for name in itertools.accumulate(names, "{}/{}".format)]


def test_two_sessions_make_an_anchor_of_what_they_share() -> None:
    prefixes = SharedPrefixes()
    assert prefixes.see(blocks("a1", "a2", "x"), AGENT, "s1", 0).num_blocks == 0
    assert prefixes.see(blocks("a1", "a2", "y"), AGENT, "s2", 1).num_blocks == 2


def test_what_two_of_many_sessions_share_is_no_anchor() -> None:
    prefixes = SharedPrefixes()
    for i in range(40):
        prefixes.see(blocks("a1", f"task {i // 2}"), AGENT, f"s{i}", i)
    seen = prefixes.see(blocks("a1", "task 0"), AGENT, "s40", 40)
    assert seen.num_blocks == 1


def test_a_new_prompt_of_an_old_agent_is_found_as_soon_as_a_new_agents() -> None:
    """Somebody edits the system prompt: the sessions that came before it don't count against it."""
    prefixes = SharedPrefixes()
    for i in range(200):
        prefixes.see(blocks("old", f"task {i}"), AGENT, f"s{i}", i)
    assert prefixes.see(blocks("new", "task a"), AGENT, "n1", 200).num_blocks == 0
    assert prefixes.see(blocks("new", "task b"), AGENT, "n2", 201).num_blocks == 1


def test_an_agent_that_joins_an_anchor_late_shares_it() -> None:
    prefixes = SharedPrefixes()
    for i in range(100):
        prefixes.see(blocks("common", "coder's", f"task {i}"), AGENT, f"s{i}", i)
    prefixes.see(blocks("common", "tester's", "x"), ("w", "tester"), "s0", 90)
    seen = prefixes.see(blocks("common", "tester's", "y"), ("w", "tester"), "s1", 91)
    assert [end for end, _ in seen.runs] == [1, 2]
    assert seen.runs[0][1] == (AGENT, ("w", "tester"))


class BlockByBlock:
    """The same, kept for each block by itself and for ever."""

    def __init__(self) -> None:
        self.first: dict[bytes, str] = {}
        self.bits: dict[bytes, set[int]] = {}
        self.agents: dict[bytes, dict[tuple[str, str], int]] = {}
        self.told: dict[bytes, list[tuple[str, str]]] = {}

    def see(self, hashes: list[bytes], agent: tuple[str, str], session: str, sessions: int) -> tuple:
        shared: list[tuple[bytes, list]] = []
        moved = []
        leading, known = True, 0
        for i, block in enumerate(hashes):
            if block not in self.first:
                self.first[block], self.bits[block], self.agents[block] = session, set(), {agent: sessions}
                leading = False
                continue
            known = i + 1
            if session != self.first[block]:
                self.bits[block].add(zlib.crc32(session.encode()) % 64)
            agents = self.agents[block]
            if agent in agents or len(agents) < MAX_SHARERS:
                agents.setdefault(agent, sessions)
            since = min(sessions - agents.get(agent, 0), 128)
            leading = leading and len(self.bits[block]) + 1 >= max(2, since // LEAST_SHARE)
            if leading:
                shared.append((block, sorted(agents)))
                if self.told.get(block) != sorted(agents):
                    self.told[block] = sorted(agents)
                    moved.append(i)
        return [agents for _, agents in shared], moved, known


PROMPT = st.tuples(st.integers(0, 5), st.lists(st.integers(0, 2), min_size=1, max_size=8), st.integers(0, 5))


@given(st.lists(PROMPT, max_size=40))
@settings(deadline=None)
def test_equals_looking_at_each_block(prompts: list[tuple[int, list[int], int]]) -> None:
    prefixes, naive = SharedPrefixes(), BlockByBlock()
    seen_sessions: set[tuple[int, int]] = set()
    for agent, names, session in prompts:
        hashes = blocks(*(str(name) for name in names))
        before = len({s for a, s in seen_sessions if a == agent})
        seen = prefixes.see(hashes, ("w", f"agent {agent}"), f"s{session}", before)
        agents, moved, known = naive.see(hashes, ("w", f"agent {agent}"), f"s{session}", before)
        seen_sessions.add((agent, session))
        starts = [0, *(end for end, _ in seen.runs)]
        by_block = [list(a) for start, (end, a) in zip(starts, seen.runs, strict=False) for _ in range(start, end)]
        assert by_block == agents
        assert list(seen.moved) == moved
        assert (seen.known_blocks, seen.seen_blocks) == (known, len(hashes))
        prefixes.check_invariants()
        assert len(prefixes) == len(naive.first)


@given(st.lists(PROMPT, max_size=60), st.integers(8, 20))
@settings(deadline=None)
def test_a_full_memory_forgets_ends_of_prompts_and_stays_right(prompts: list, bound: int) -> None:
    prefixes = SharedPrefixes(max_prefixes=bound)
    for agent, names, session in prompts:
        hashes = blocks(*(str(name) for name in names))
        prefixes.see(hashes, ("w", f"agent {agent}"), f"s{session}")
        prefixes.check_invariants()
        again = prefixes.see(hashes, ("w", f"agent {agent}"), f"s{session}")
        assert again.known_blocks == len(hashes), "what was just seen is never what is forgotten"


def test_what_follows_the_looked_at_blocks_is_the_sessions_own() -> None:
    prefixes = SharedPrefixes(max_blocks=3)
    prompt = blocks("a", "b", "c", "d", "e")
    prefixes.see(prompt, AGENT, "s1", 0)
    seen = prefixes.see(prompt, AGENT, "s2", 1)
    assert (seen.num_blocks, seen.known_blocks, seen.seen_blocks, len(prefixes)) == (3, 3, 3, 3)


TENANT_CAP = 36
TENANTS = 3
QUIET = st.tuples(st.sampled_from(["a", "b"]), st.lists(st.integers(0, 1), min_size=1, max_size=2))
FLOOD = st.tuples(st.just("flood"), st.lists(st.integers(0, 9), min_size=1, max_size=6))
"""The two quiet tenants have at most 6 prefixes each, the third has up to a million."""


@given(st.lists(st.one_of(QUIET, FLOOD), max_size=120))
@settings(deadline=None)
def test_a_tenant_within_its_part_loses_nothing_to_one_that_floods(prompts: list[tuple[str, list[int]]]) -> None:
    prefixes = SharedPrefixes(max_prefixes=TENANT_CAP, max_blocks=8)
    sent: dict[str, set[bytes]] = {"a": set(), "b": set(), "flood": set()}
    for number, (tenant, names) in enumerate(prompts):
        hashes = blocks(tenant, *map(str, names))
        seen = prefixes.see(hashes, (tenant, "agent"), f"s{number}")
        prefixes.check_invariants()
        known = sum(block in sent[tenant] for block in hashes)
        if tenant != "flood":
            assert seen.known_blocks == known
        sent[tenant].update(hashes)
    assert all(len(sent[name]) <= TENANT_CAP // TENANTS for name in ("a", "b")), "else nothing was promised"


@given(st.lists(st.one_of(QUIET, FLOOD), max_size=120), st.integers(14, 40))
@settings(deadline=None)
def test_tenants_with_prefixes_in_common_keep_the_memory_right(prompts: list, bound: int) -> None:
    prefixes = SharedPrefixes(max_prefixes=bound, max_blocks=8)
    for number, (tenant, names) in enumerate(prompts):
        hashes = blocks(*map(str, names))
        prefixes.see(hashes, (tenant, "agent"), f"s{number}")
        prefixes.check_invariants()
        again = prefixes.see(hashes, (tenant, "agent"), f"s{number}")
        assert again.known_blocks == len(hashes), "what was just seen is never what is forgotten"


def test_a_flood_of_new_prompts_leaves_another_tenants_anchor() -> None:
    prefixes = SharedPrefixes(max_prefixes=1024, max_blocks=64)
    anchor = [f"a{i}" for i in range(32)]
    for session in ("s1", "s2"):
        prefixes.see(blocks("quiet", *anchor, session), ("quiet", "coder"), session, 0)
    for number in range(500):
        prefixes.see(blocks("loud", f"prompt {number}", *anchor), ("loud", f"agent {number}"), f"f{number}", 0)
    assert len(prefixes) > 1024 - 64, "the flood has all that the quiet one leaves"
    assert prefixes.see(blocks("quiet", *anchor, "new"), ("quiet", "coder"), "s3", 2).num_blocks == 33


def test_prefixes_in_common_are_kept_for_the_one_with_least() -> None:
    """The loud tenant began the anchor; that the quiet one sends it too keeps it through the flood."""
    prefixes = SharedPrefixes(max_prefixes=1024, max_blocks=64)
    anchor = [f"a{i}" for i in range(32)]
    prefixes.see(blocks(*anchor, "loud"), ("loud", "coder"), "l", 0)
    prefixes.see(blocks(*anchor, "quiet"), ("quiet", "coder"), "q", 0)
    for number in range(500):
        prefixes.see(blocks(f"prompt {number}", *anchor), ("loud", f"agent {number}"), f"f{number}", 0)
    assert prefixes.see(blocks(*anchor, "new"), ("quiet", "coder"), "q2", 1).num_blocks == 32
    prefixes.check_invariants()
