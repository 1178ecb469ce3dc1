"""How well agents and sessions are told apart without any hint: `python -m benchmarks.identity SOURCE`.

Recorded conversations are sent as plain chat requests through the gateway's own identity code: `--concurrency`
sessions are live and any of them may speak next; when one ends the next begins. A pair of requests counts as
found if both got the same id, and as right if both have the same recorded label. "By prompt" takes the recorded
system prompt as the agent's label: what a text can tell where a role has several prompts, or several roles one.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.identity_source import Call, Talk, load_talks
from benchmarks.trace_format import TraceError
from replicas.garbage import freeze_what_stays
from serve_app.identity import IdentityResolver, Resolved

SECRET = b"benchmark"
SENTENCE_WORDS = 12
LONG_TURNS = 64
"""Turns of the long conversation: 2 KB each, 128 KB or about 32k tokens in all."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairwise agreement of ids with labels."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    sessions: int
    requests: int
    agents_found: int
    agents: Pairs
    agents_by_prompt: Pairs
    sessions_found: int
    session_pairs: Pairs
    mean_us: float
    median_us: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds a request for a 32k-token conversation with 64 tools.

    `prose_us`: the first sight of one whose texts have sentences and lines, each of which is compared.
    """

    first_us: float
    prose_us: float
    retry_us: float
    turn_us: float


def pairwise(found: Sequence[Hashable], labels: Sequence[Hashable]) -> Pairs:
    """Precision and recall over pairs; 1.0 where there is no pair to be wrong about."""
    both = _pairs(Counter(zip(found, labels, strict=True)))
    of_found, of_labels = _pairs(Counter(found)), _pairs(Counter(labels))
    precision = both / of_found if of_found else 1.0
    recall = both / of_labels if of_labels else 1.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return Pairs(precision, recall, f1)


def _pairs(counts: Counter[Any]) -> int:
    return sum(count * (count - 1) // 2 for count in counts.values())


def interleaved(talks: Sequence[Talk], concurrency: int, seed: int) -> list[tuple[str, Call, bool]]:
    """(session, request, whether it is the session's last) in order of arrival; equal seeds, equal order."""
    rng = random.Random(seed)
    waiting = list(talks)
    rng.shuffle(waiting)
    live: list[tuple[Talk, int]] = []
    order = []
    while live or waiting:
        while waiting and len(live) < concurrency:
            live.append((waiting.pop(), 0))
        pick = rng.randrange(len(live))
        talk, at = live[pick]
        last = at + 1 == len(talk.calls)
        order.append((talk.session, talk.calls[at], last))
        if last:
            live.pop(pick)
        else:
            live[pick] = (talk, at + 1)
    return order


def run_set(name: str, talks: Sequence[Talk], concurrency: int, seed: int) -> Result:
    resolver = IdentityResolver(SECRET)
    agents, sessions, times_us = [], [], []
    labels: list[tuple[str, str, str]] = []
    unanswered: dict[str, tuple[Resolved, str]] = {}
    for session, call, _ in interleaved(talks, concurrency, seed):
        if session in unanswered:
            resolver.answered(*unanswered.pop(session))
        started_ns = time.perf_counter_ns()
        resolved = resolver.resolve("tenant", {}, call.body)
        resolver.accept(resolved)
        times_us.append((time.perf_counter_ns() - started_ns) / 1e3)
        unanswered[session] = resolved, call.answer
        agents.append(resolved.identity.agent)
        sessions.append(resolved.identity.session)
        labels.append((call.agent, call.prompt, session))
    by_agent, by_prompt, by_session = zip(*labels, strict=True)
    return Result(
        name=name,
        sessions=len(talks),
        requests=len(agents),
        agents_found=len(set(agents)),
        agents=pairwise(agents, by_agent),
        agents_by_prompt=pairwise(agents, by_prompt),
        sessions_found=len(set(sessions)),
        session_pairs=pairwise(sessions, by_session),
        mean_us=statistics.fmean(times_us),
        median_us=statistics.median(times_us),
    )


def long_conversation(is_prose: bool = False) -> dict[str, Any]:
    """About 32k tokens in 64 turns, and 64 tools of about 700 characters each."""
    rng = random.Random(1)
    words = [f"word{n}" for n in range(500)]

    def text(size: int) -> str:
        return " ".join(rng.choice(words) for _ in range(size))

    def prose(size: int) -> str:
        ends = (". ", ". ", ".\n", ":\n- ")
        return "".join(text(SENTENCE_WORDS) + rng.choice(ends) for _ in range(size // SENTENCE_WORDS))

    properties = {f"p{n}": {"type": "string", "description": text(8)} for n in range(6)}
    tools = [
        {
            "type": "function",
            "function": {
                "name": f"tool_{n}",
                "description": text(20),
                "parameters": {"type": "object", "properties": properties, "required": ["p0"]},
            },
        }
        for n in range(64)
    ]
    write = prose if is_prose else text
    turns = [{"role": "assistant" if n % 2 else "user", "content": write(280)} for n in range(LONG_TURNS - 1)]
    return {"messages": [{"role": "system", "content": write(600)}, *turns], "tools": tools}


def measure_cost(repeats: int = 50) -> Cost:
    """The first sight of it, the same again, and each turn of it; bodies are decoded anew as a gateway's are."""
    raw, prose = (json.dumps(long_conversation(is_prose)).encode() for is_prose in (False, True))
    first, first_prose, retry, turn = [], [], [], []
    for _ in range(repeats):
        resolver = IdentityResolver(SECRET)
        first.append(_timed_us(resolver, msgspec.json.decode(raw)))
        retry.append(_timed_us(resolver, msgspec.json.decode(raw)))
        first_prose.append(_timed_us(IdentityResolver(SECRET), msgspec.json.decode(prose)))
    resolver = IdentityResolver(SECRET)
    whole = msgspec.json.decode(raw)
    for _ in range(repeats):
        whole["messages"] += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Go on."}]
        turn.append(_timed_us(resolver, msgspec.json.decode(msgspec.json.encode(whole))))
    return Cost(*(statistics.median(values) for values in (first, first_prose, retry, turn)))


def _timed_us(resolver: IdentityResolver, body: dict[str, Any]) -> float:
    started_ns = time.perf_counter_ns()
    resolver.accept(resolver.resolve("tenant", {}, body))
    return (time.perf_counter_ns() - started_ns) / 1e3


def render(results: Sequence[Result], cost: Cost) -> str:
    head = "set | sessions | requests | agents P R F1 (ids) | F1 by prompt | sessions P R F1 (ids) | us mean, median"
    lines = [head]
    for r in results:
        a, s = r.agents, r.session_pairs
        lines.append(
            f"{r.name} | {r.sessions} | {r.requests} | {a.precision:.3f} {a.recall:.3f} {a.f1:.3f} ({r.agents_found})"
            f" | {r.agents_by_prompt.f1:.3f}"
            f" | {s.precision:.3f} {s.recall:.3f} {s.f1:.3f} ({r.sessions_found}) | {r.mean_us:.0f}, {r.median_us:.0f}"
        )
    lines.append(
        f"32k tokens, 64 tools: {cost.first_us:.0f} us at first sight ({cost.prose_us:.0f} of prose),"
        f" {cost.retry_us:.0f} us again, {cost.turn_us:.0f} us a further turn (medians)"
    )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder of recorded sessions")
    parser.add_argument("--set", action="append", default=[], dest="sets", help="default: every set with text")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.concurrency < 1:
        parser.error("--concurrency: at least 1")
    try:
        sets = load_talks(options.source, options.sets)
    except TraceError as error:
        print(error, file=sys.stderr)
        return 2
    results = [run_set(name, talks, options.concurrency, options.seed) for name, talks in sets.items()]
    freeze_what_stays()  # As a gateway does.
    cost = measure_cost()
    if options.json:
        print(json.dumps({"sets": [asdict(r) for r in results], "cost": asdict(cost)}, indent=1))
    else:
        print(render(results, cost))
    return 0


if __name__ == "__main__":
    sys.exit(main())
