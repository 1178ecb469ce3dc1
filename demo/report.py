"""The table at the end, and the same as JSON."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Any

from demo.compare import PolicyRun
from demo.stats import rows
from demo.team import role

TOP_TRANSITIONS = 10
TELLING_REQUESTS = 150
"""With fewer requests a policy's figures change by several points from run to run."""


def as_json(runs: dict[str, PolicyRun], members: list[str], state: dict[str, Any]) -> dict[str, Any]:
    return {
        "policies": {
            policy: {
                "rows": [dataclasses.asdict(row) for row in rows(run.turns, members)],
                "requests_per_s": run.requests_per_s,
                "seconds": run.seconds,
                "prefetch": run.prefetch,
            }
            for policy, run in runs.items()
        },
        "transitions": learnt_transitions(state, members),
    }


def as_text(runs: dict[str, PolicyRun], members: list[str], state: dict[str, Any]) -> str:
    lines = [
        "",
        f"{'agent':10} {'policy':8} {'requests':>8} {'errors':>6} {'cached':>7} "
        f"{'TTFT mean':>10} {'p50':>8} {'p99':>8}",
    ]
    tables = {policy: {row.member: row for row in rows(run.turns, members)} for policy, run in runs.items()}
    for member in [*members, "team"]:
        for policy, table in tables.items():
            row = table[member]
            lines.append(
                f"{member:10} {policy:8} {row.requests:8d} {row.errors:6d} {row.cached_share:7.1%} "
                f"{row.ttft_mean_s:8.3f} s {row.ttft_p50_s:6.3f} s {row.ttft_p99_s:6.3f} s"
            )
    lines.append("")
    for policy, run in runs.items():
        outcome = ", ".join(f"{count} {name}" for name, count in run.prefetch.items())
        lines.append(f"{policy:8} {run.requests_per_s:.2f} requests/s; prefetches: {outcome}")
    lines += ["", "transitions learnt (from -> to: count, probability)"]
    lines += [
        f"  {t['from']:>10} -> {t['to']:10} {t['count']:6d}  {t['probability']:.2f}"
        for t in learnt_transitions(state, members)[:TOP_TRANSITIONS]
    ]
    lines += ["", *notes(runs)]
    return "\n".join(lines)


def notes(runs: dict[str, PolicyRun]) -> list[str]:
    lines = [
        "cached = share of prompt tokens found in the prefix cache. Every policy ran the same problems in",
        "the same way; a fresh first line in each system prompt keeps the runs' caches apart, and the order",
        "of the policies alternates from round to round. What was learnt stays between rounds. The model's",
        "chat template prints no tools, so the definitions are part of the system prompts as well.",
    ]
    fewest = min((len(run.turns) for run in runs.values()), default=0)
    if fewest < TELLING_REQUESTS:
        lines += [
            f"So few requests ({fewest} a policy, fewer than {TELLING_REQUESTS}) tell little: differences of several",
            "points are noise. To compare policies: --problems 24 or --rounds 2.",
        ]
    return lines


def learnt_transitions(state: dict[str, Any], members: Iterable[str]) -> list[dict[str, Any]]:
    """The state's transitions between members, the teams taken together, most frequent first."""
    labels = {agent["agent"]: agent.get("label") or agent["agent"] for agent in state.get("agents", [])}
    known = set(members)
    counts: Counter[tuple[str, str]] = Counter()
    for row in state.get("transitions", []):
        source, target = (role(labels.get(row[end], row[end])) for end in ("from", "to"))
        if source in known or target in known:
            counts[source, target] += row["count"]
    leaving: Counter[str] = Counter()
    for (source, _), count in counts.items():
        leaving[source] += count
    return [
        {"from": source, "to": target, "count": count, "probability": count / leaving[source]}
        for (source, target), count in counts.most_common()
    ]
