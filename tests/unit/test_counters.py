"""How far a run has come makes no other agent; a limit, an agent's number and a part of a plan do."""

from __future__ import annotations

import pytest

from serve_app.recognition.canonical import canonical_text

SAME = [
    ("Step 1 of 20", "Step 2 of 20"),
    ("Step 9/20.", "Step 10/20."),
    ("[step 3]", "[step 4]"),
    ("Current step: 3", "Current step: 4"),
    ("You are now on step 3 of 20.", "You are now on step 4 of 20."),
    ('{"step": 3, "of": 20}', '{"step": 4, "of": 20}'),
    ("Iteration 3", "Iteration 4"),
    ("## Iteration #3", "## Iteration #4"),
    ("This is turn 3 of 9.", "This is turn 4 of 9."),
    ("Attempt 1/3", "Attempt 2/3"),
    ("You have 9 turns left.", "You have 8 turns left."),
    ("You have 9 tool calls remaining.", "You have 10 tool calls remaining."),
    ("<total_tokens>4999000 tokens left</total_tokens>", "<total_tokens>4998200 tokens left</total_tokens>"),
    ("Budget: 312 of 200,000 tokens used", "Budget: 1,312 of 200,000 tokens used"),
    ("Remaining budget: 5000 tokens", "Remaining budget: 4300 tokens"),
    ("The remaining budget is 5000 tokens", "The remaining budget is 4300 tokens"),
    ("Tokens used: 312/200000", "Tokens used: 1502/200000"),
    ("tokens_used=312", "tokens_used=1502"),
    ("<turns_left>9</turns_left>", "<turns_left>8</turns_left>"),
    ("Total cost so far: $0.04", "Total cost so far: $0.11"),
    ("Time elapsed: 12.5 s", "Time elapsed: 31.25 s"),
    ("PID: 4001", "PID: 4002"),
    ("pid 31337", "pid 31338"),
    ("Uptime: 3 days", "Uptime: 4 days"),
    ("Minutes remaining: 5", "Minutes remaining: 4"),
    ("Free memory: 7999 MB", "Free memory: 8003 MB"),
    ("HEAD: 3f2a9b1", "HEAD: 9c1b07e"),
    ("commit 3f2a9b1c", "commit 9c1b07e4"),
    ("HEAD is now at 3f2a9b1 Mend it", "HEAD is now at 9c1b07e Mend it"),
    ("Current week: 2026-W11", "Current week: 2026-W12"),
    ("The time is 6.01 p.m.", "The time is 7.15 p.m."),
    ("Sandbox: sbx-7f3d9a1c", "Sandbox: sbx-0a2b4c6d"),
    ("Today is ٢٠٢٦-٠٣-٠٩.", "Today is ٢٠٢٦-٠٣-١٠."),
    ("التاريخ: ٢٠٢٦/٠٣/٠٩", "التاريخ: ٢٠٢٦/٠٣/١٠"),
    ("امروز ۲۰۲۶-۰۳-۰۹ است", "امروز ۲۰۲۶-۰۳-۱۰ است"),
]
DIFFERENT = [
    ("You are Agent 1 of 3.", "You are Agent 2 of 3."),
    ("Reviewer 2", "Reviewer 3"),
    ("Worker 2/5", "Worker 3/5"),
    ("Do step 3 of the plan", "Do step 4 of the plan"),
    ("Step 3 of the plan is yours", "Step 4 of the plan is yours"),
    ("Step 1: read the list", "Step 2: read the list"),
    ("You do step 3.", "You do step 4."),
    ("Max steps: 20", "Max steps: 30"),
    ("Max step: 20", "Max step: 30"),
    ("Round 2 decimals", "Round 3 decimals"),
    ("Round 2.5 up", "Round 2.7 up"),
    ("Turn 90 degrees", "Turn 45 degrees"),
    ("Minimum tokens left: 100", "Minimum tokens left: 200"),
    ("Turns per side: 3", "Turns per side: 5"),
    ("Maximum tokens used: 4096", "Maximum tokens used: 8192"),
    ("Stop when tokens left: 100", "Stop when tokens left: 200"),
    ("Use 3 tools", "Use 4 tools"),
    ("Put 2 messages left of the line", "Put 3 messages left of the line"),
    ("Answer in 3 steps", "Answer in 4 steps"),
    ("Budget: 5000 tokens", "Budget: 4300 tokens"),
    ("Memory: 7999 MB", "Memory: 8003 MB"),
    ("Price: $0.04", "Price: $0.11"),
    ("Phase 2 of 3", "Phase 3 of 3"),
    ("Rated 6.01 by all", "Rated 7.15 by all"),
    ("Rule ٢", "Rule ٣"),
    ("Commit 3 changes", "Commit 4 changes"),
]


def prompt(text: str) -> str:
    return f"You are the planner of a team. Be brief.\n{text}\nBe kind to all."


@pytest.mark.parametrize(("one", "other"), SAME)
def test_how_far_a_run_has_come_is_no_content(one: str, other: str) -> None:
    assert canonical_text(prompt(one)) == canonical_text(prompt(other))
    assert canonical_text(one) == canonical_text(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_only_looks_like_a_counter_is_content(one: str, other: str) -> None:
    assert canonical_text(prompt(one)) != canonical_text(prompt(other))
    assert canonical_text(one) != canonical_text(other)
