"""Recorded agent sessions -> a replay trace: `python -m benchmarks.traces SOURCE_DIR --set NAME ...`.

`--concurrency` sessions run at a time; when one ends the next begins. The pause before a session's next
request is the recorded one where there is one; else half a second, 20 ms per output token of the request
before and one second per tool step between, times a log-normal factor. Prompts are anchor + history:

- `history`: append-only; a session's calls of one agent each begin with the call before;
- `fresh`: what follows the anchor is never seen again.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.trace_format import Request, TraceError
from benchmarks.trace_source import Recording, Step, load_set

VARIANTS = ("history", "fresh")
CLOCKS = ("paced", "random")


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """clock `random`: any live session may speak next and no time is given.

    anchor_tokens: (low, high) gives each agent one anchor, of a length of its own in that range,
    instead of the recorded ones. requests: start sessions over, as new ones, until there are so many; None: one pass.
    """

    concurrency: int
    seed: int
    variant: str = "history"
    clock: str = "paced"
    block_tokens: int = 32
    anchor_tokens: tuple[int, int] | None = None
    requests: int | None = None


def build_trace(recordings: Sequence[Recording], settings: TraceSettings) -> list[Request]:
    """Interleave sessions; equal arguments give equal traces."""
    rng = random.Random(settings.seed)
    queue = _session_order(recordings, settings, rng)
    live: list[tuple[float, int, str, Recording, int]] = []
    requests: list[Request] = []
    serial = 0

    def admit(t_s: float) -> None:
        nonlocal serial
        following = next(queue, None)
        if following is not None:
            name, recording = following
            heapq.heappush(live, (t_s + rng.random(), serial, name, recording, 0))
            serial += 1

    for _ in range(settings.concurrency):
        admit(0.0)
    while live:
        if settings.clock == "random":
            pick = rng.randrange(len(live))
            live[0], live[pick] = live[pick], live[0]
            t_s, order, name, recording, at = live.pop(0)
        else:
            t_s, order, name, recording, at = heapq.heappop(live)
        step, final = recording.steps[at], at + 1 == len(recording.steps)
        blocks, anchor_blocks = _blocks(name, at, step, settings)
        shown_s = round(t_s, 3) if settings.clock == "paced" else None
        requests.append(Request(name, step.agent, blocks, anchor_blocks, final, shown_s))
        if final:
            admit(t_s)
        else:
            pause_s = _pause_s(step, recording.steps[at + 1], rng)
            heapq.heappush(live, (t_s + pause_s, order, name, recording, at + 1))
    return requests


def _session_order(
    recordings: Sequence[Recording], settings: TraceSettings, rng: random.Random
) -> Iterator[tuple[str, Recording]]:
    """Every recording once in random order, or over and over up to `settings.requests`."""
    given = 0
    round_number = 0
    while round_number == 0 or given < (settings.requests or 0):
        order = list(recordings)
        rng.shuffle(order)
        for recording in order:
            if settings.requests is not None and given >= settings.requests:
                return
            given += len(recording.steps)
            yield f"{recording.session}#{round_number}", recording
        round_number += 1


def _pause_s(step: Step, following: Step, rng: random.Random) -> float:
    if following.pause_s is not None:
        return following.pause_s
    expected_s = 0.5 + 0.02 * step.output_tokens + following.tool_steps
    return expected_s * rng.lognormvariate(0.0, 0.5)


def _blocks(session: str, at: int, step: Step, settings: TraceSettings) -> tuple[tuple[str, ...], int]:
    """Block ids of a prompt and how many of them are its anchor; whole blocks only, at least one."""
    size = settings.block_tokens
    anchor_tokens, name = step.anchor_tokens, step.anchor
    if settings.anchor_tokens is not None:
        name = step.agent
        anchor_tokens = random.Random(f"anchor {name}").randint(*settings.anchor_tokens)
    history_tokens = step.input_tokens - step.anchor_tokens
    anchor_blocks = anchor_tokens // size
    total = max((anchor_tokens + history_tokens) // size, anchor_blocks, 1)
    stem = f"{session}/{step.thread}" if settings.variant == "history" else f"{session}/{at}"
    anchor = tuple(f"{name}/{k}" for k in range(anchor_blocks))
    return anchor + tuple(f"{stem}:{k}" for k in range(anchor_blocks, total)), anchor_blocks


def token_range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    try:
        bounds = int(low), int(high or low)
    except ValueError:
        bounds = (1, 0)
    if not 0 <= bounds[0] <= bounds[1]:
        raise argparse.ArgumentTypeError(f"expected TOKENS or LOW-HIGH, got {text!r}")
    return bounds


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer from 1 up, got {text!r}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.traces", description=__doc__)
    arguments.add_argument("source", type=Path, help="folder of recorded sessions, or one above such")
    arguments.add_argument("--set", required=True, help="folder name, or folder/framework-benchmark")
    arguments.add_argument("--concurrency", type=_positive, required=True)
    arguments.add_argument("--seed", type=int, required=True)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--variant", choices=VARIANTS, default="history")
    arguments.add_argument("--clock", choices=CLOCKS, default="paced")
    arguments.add_argument("--block-tokens", type=_positive, default=32)
    arguments.add_argument("--anchor-tokens", type=token_range, default=None, metavar="LOW-HIGH")
    arguments.add_argument("--requests", type=_positive, default=None)
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    given = parser().parse_args(argv)
    settings = TraceSettings(
        given.concurrency,
        given.seed,
        given.variant,
        given.clock,
        given.block_tokens,
        given.anchor_tokens,
        given.requests,
    )
    try:
        trace = build_trace(load_set(given.source, given.set), settings)
        given.out.write_text("".join(f"{request.to_line()}\n" for request in trace), encoding="utf-8")
    except (TraceError, OSError) as error:
        print(f"traces: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
