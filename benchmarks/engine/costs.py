"""Seconds of an engine against tokens, measured on one request at a time, as a cost model for simulated engines."""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine.drive import Endpoint, Sample, drive
from benchmarks.engine.schedule import Prompt, Schedule
from benchmarks.engine.text import ModelText
from benchmarks.trace_format import TraceError
from replicas.simulation.engine import CostModel
from runtime_actor.errors import ConfigurationError
from runtime_actor.settings import from_dict

PROMPT_TOKENS = (64, 256, 512, 1024, 1536, 2048)
ANSWER_TOKENS = 17
ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Costs:
    """Least squares of TTFT = overhead_s + prefill_s_per_token * uncached tokens, and the mean time between tokens.

    Errors are mean absolute ones, relative to what was measured. `source` says where the figures come from.
    """

    overhead_s: float
    prefill_s_per_token: float
    decode_s_per_token: float
    prefill_error: float
    decode_error: float
    source: str

    def simulated(self) -> dict[str, float]:
        """The `simulated` section of a configuration."""
        return {
            "prefill_s_per_token": self.prefill_s_per_token,
            "decode_s_per_token": self.decode_s_per_token,
        }


def fit(samples: Sequence[Sample], source: str) -> Costs:
    """Raises ValueError with fewer than three answered samples of different lengths."""
    good = [s for s in samples if not s.error and s.completion_tokens > 1]
    uncached = np.array([s.prompt_tokens - s.cached_tokens for s in good], dtype=float)
    if len(set(uncached.tolist())) < 3:
        raise ValueError(f"a fit needs answers to prompts of three lengths, got {sorted(set(uncached.tolist()))}")
    measured = np.array([s.ttft_s for s in good])
    # Relative errors are made small, so that long prompts don't decide alone.
    matrix = np.stack([np.ones_like(uncached), uncached], axis=1) / measured[:, None]
    (overhead_s, per_token), *_ = np.linalg.lstsq(matrix, np.ones_like(measured), rcond=None)
    fitted = overhead_s + per_token * uncached
    between = [(s.e2e_s - s.ttft_s) / (s.completion_tokens - 1) for s in good]
    decode_s = statistics.fmean(between)
    return Costs(
        overhead_s=round(float(overhead_s), 6),
        prefill_s_per_token=round(float(per_token), 9),
        decode_s_per_token=round(decode_s, 6),
        prefill_error=round(float(np.mean(np.abs(fitted - measured) / measured)), 4),
        decode_error=round(statistics.fmean(abs(b - decode_s) / decode_s for b in between), 4),
        source=source,
    )


def measure(endpoint: Endpoint, text: ModelText, salt: str) -> list[Sample]:
    """Prompts that nobody has sent before, one at a time; the very first isn't counted."""
    lengths = [PROMPT_TOKENS[0], *(PROMPT_TOKENS * ROUNDS)]
    prompts = []
    for position, tokens in enumerate(lengths):
        content = text.filler(f"costs {salt} {position}", tokens)
        messages = ({"role": "user", "content": f"{position} {salt} {content}"},)
        ids = tuple(text.prompt_ids(messages))
        prompts.append(
            Prompt(position, f"costs-{salt}-{position}", "costs", messages, ANSWER_TOKENS, ids, 0, None, True)
        )
    samples = asyncio.run(drive(endpoint, Schedule(tuple(prompts), 0), 1, None, lambda: None))
    return samples[1:]


def write(costs: Costs, path: Path) -> None:
    path.write_text(json.dumps({**asdict(costs), "simulated": costs.simulated()}, indent=2) + "\n", encoding="utf-8")


def read_simulated(path: Path) -> dict[str, Any]:
    """The `simulated` section of a file of costs. Raises TraceError unless it makes a CostModel."""
    try:
        section = json.loads(path.read_text(encoding="utf-8"))["simulated"]
        from_dict(CostModel, section, "simulated")
    except (OSError, ValueError, KeyError, TypeError, ConfigurationError) as error:
        raise TraceError(f"{path}: no cost model with a section `simulated` in it: {error}") from error
    return dict(section)
