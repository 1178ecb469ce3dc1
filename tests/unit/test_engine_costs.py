"""The fit of an engine's cost model, and the file that simulated engines read."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.engine.costs import fit, read_simulated, write
from benchmarks.engine.drive import Sample
from benchmarks.trace_format import TraceError
from replicas.simulation.engine import CostModel
from runtime_actor.settings import from_dict


def sample(tokens: int, cached: int, noise: float = 1.0, error: str = "") -> Sample:
    ttft_s = (0.05 + 0.0015 * (tokens - cached)) * noise
    return Sample(0, "a", 0.0, ttft_s, ttft_s + 16 * 0.03, tokens, cached, 17, "", error)


def test_a_line_is_found_again_with_no_error() -> None:
    costs = fit([sample(64, 0), sample(512, 0), sample(2048, 1024), sample(9, 9, error="500")], "here")
    assert costs.overhead_s == pytest.approx(0.05, abs=1e-5)
    assert costs.prefill_s_per_token == pytest.approx(0.0015, rel=1e-4)
    assert costs.decode_s_per_token == pytest.approx(0.03)
    assert costs.prefill_error == costs.decode_error == 0.0


def test_the_error_is_relative_and_long_prompts_do_not_decide_alone() -> None:
    samples = [sample(n, 0, noise) for n in (64, 512, 1024, 2048) for noise in (0.9, 1.1)]
    costs = fit(samples, "here")
    assert costs.prefill_error == pytest.approx(0.1, abs=0.02)
    assert costs.prefill_s_per_token == pytest.approx(0.0015, rel=0.05)


def test_too_few_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="three lengths"):
        fit([sample(64, 0), sample(64, 0), sample(128, 0)], "here")


def test_a_file_of_costs_makes_a_cost_model(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    write(fit([sample(n, 0) for n in (64, 512, 1024)], "here"), path)
    model = from_dict(CostModel, read_simulated(path), "simulated")
    assert model.prefill_s_per_token == pytest.approx(0.0015, rel=1e-4)
    path.write_text('{"simulated": {"prefill_s_per_token": -1}}')
    with pytest.raises(TraceError, match="prefill_s_per_token"):
        read_simulated(path)
