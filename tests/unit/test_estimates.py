"""What a request is taken to cost before it is tokenized."""

from __future__ import annotations

import pytest

from serve_app.policies.estimates import MAX_AGENTS, MAX_FACTOR, MIN_FACTOR, PrefillEstimates, prompt_tokens

TOOL = {"type": "function", "function": {"name": "read", "description": "Reads a file. " * 40, "parameters": {}}}


def test_tools_are_part_of_a_prompt() -> None:
    fields = {"messages": [{"role": "user", "content": "hi"}]}
    alone = prompt_tokens(fields)
    assert prompt_tokens({**fields, "tools": [TOOL]}) - alone == pytest.approx(40 * 14 / 4, rel=0.2)
    assert prompt_tokens({**fields, "tools": []}) == prompt_tokens({**fields, "tools": None}) == alone


def test_an_agents_prompts_correct_the_estimate() -> None:
    estimates = PrefillEstimates()
    assert estimates.expected("t", "a", 1000) == 1000
    estimates.note("t", "a", 1000, 200)
    assert estimates.expected("t", "a", 1000) == 200 and estimates.expected("t", "b", 1000) == 1000
    assert estimates.expected("other", "a", 1000) == 1000, "tenants learn nothing of each other"
    for _ in range(40):
        estimates.note("t", "a", 1000, 1500)
    assert estimates.expected("t", "a", 100) == pytest.approx(150, abs=2)


def test_a_correction_has_limits() -> None:
    estimates = PrefillEstimates()
    estimates.note("t", "cached", 1000, 0)
    estimates.note("t", "dense", 1, 100_000)
    assert estimates.expected("t", "cached", 1600) == 1600 * MIN_FACTOR
    assert estimates.expected("t", "dense", 10) == 10 * MAX_FACTOR
    assert estimates.expected("t", "cached", 1) == 1


def test_a_tenant_with_many_agents_pushes_out_its_own() -> None:
    estimates = PrefillEstimates()
    estimates.note("small", "a", 1000, 500)
    for number in range(MAX_AGENTS + 10):
        estimates.note("big", f"a{number}", 1000, 100)
    assert estimates.expected("small", "a", 1000) == 500
    assert estimates.expected("big", "a0", 1000) == 1000 and estimates.expected("big", "a4000", 1000) == 100
