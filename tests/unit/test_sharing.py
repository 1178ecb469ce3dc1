"""The boundary of an agent's anchor, from block hashes alone."""

from __future__ import annotations

import hashlib
import itertools

from replicas.cache.sharing import SharedPrefixes

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
