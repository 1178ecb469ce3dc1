"""Results of many cells as one line a policy, with their spread."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.engine.cells import MODES, STOCK, Row
from benchmarks.engine.measures import FIGURES
from benchmarks.engine.run import PREFETCH_OUTCOMES

BOUND = "min"

Key = tuple[str, str, str, float]


def groups(rows: Iterable[Row]) -> dict[Key, list[Row]]:
    """(workload, anchors, loop, load) -> its rows."""
    found: dict[Key, list[Row]] = {}
    for row in rows:
        found.setdefault((row["workload"], row["anchors"], row["loop"], row["load"]), []).append(row)
    return found


def policy_lines(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One line a policy of one group: means over the seeds, `spread` half of their range, None with one seed.

    The base is stock, or lru without it. `of_bound`: share of the hit rate that MIN would add to the base's on the same
    requests. `ttft_change`, `rate_change`: of mean TTFT and requests a second against the base's, as a share; with
    several seeds the mean of the seeds' own. A last line has the bound itself.
    """
    by_policy = {name: [row for row in rows if row["policy"] == name] for name in MODES}
    lines = [_line(policy, found) for policy, found in by_policy.items() if found]
    base = base_of(lines)
    if base is not None:
        for line in lines:
            line["ttft_change"] = _change(by_policy, line["policy"], base["policy"], "ttft_mean_s")
            line["rate_change"] = _change(by_policy, line["policy"], base["policy"], "requests_per_s")
    bounds = [row["min_hit_rate"] for row in by_policy.get(base["policy"] if base else "", ()) if row["min_hit_rate"]]
    if base is None or not bounds:
        return lines
    bound = statistics.fmean(bounds)
    for line in lines:
        gap = bound - base["hit_rate"]
        line["of_bound"] = (line["hit_rate"] - base["hit_rate"]) / gap if gap > 0.003 else None
    return [*lines, {"policy": BOUND, "hit_rate": bound, "of_bound": 1.0}]


def base_of(lines: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """The line that the others are compared with; None if neither stock nor lru was measured."""
    return next((line for line in lines if line["policy"] in (STOCK, "lru")), None)


def _change(by_policy: Mapping[str, Sequence[Row]], policy: str, base: str, figure: str) -> float | None:
    """None where no seed was measured with both."""
    of_base = {row["seed"]: row[figure] for row in by_policy[base]}
    pairs = [(row[figure], of_base.get(row["seed"])) for row in by_policy[policy]]
    found = [value / before - 1.0 for value, before in pairs if before]
    return statistics.fmean(found) if found else None


def _line(policy: str, rows: Sequence[Row]) -> dict[str, Any]:
    first = rows[0]
    line: dict[str, Any] = {
        "policy": policy,
        **{key: first[key] for key in ("workload", "anchors", "loop", "load")},
        "seeds": len(rows),
        "requests": sum(row["requests"] for row in rows),
        "errors": sum(row["errors"] for row in rows),
    }
    for figure in FIGURES:
        line[figure] = statistics.fmean(row[figure] for row in rows)
    line["spread"] = {figure: half_range([row[figure] for row in rows]) for figure in FIGURES}
    line["prefetch"] = {name: sum(row["prefetch"][name] for row in rows) for name in PREFETCH_OUTCOMES}
    for key in ("cache_tokens", "cache_in_mean_prompts", "anchors_in_caches", "mean_prompt_tokens", "commit"):
        line[key] = first[key]
    return line


def half_range(values: Sequence[float]) -> float | None:
    return (max(values) - min(values)) / 2 if len(values) > 1 else None


def markdown(rows: Iterable[Row]) -> list[str]:
    """A section for each workload, anchors and load."""
    lines: list[str] = []
    for key, found in groups(rows).items():
        lines += ["", f"### {title(key)}", "", about(found[0]), "", *_table(policy_lines(found))]
    return lines


def title(key: Key) -> str:
    workload, anchors, loop, load = key
    return f"{workload}, {way_of(anchors, loop, load)}"


def way_of(anchors: str, loop: str, load: float) -> str:
    size = "anchors as recorded" if anchors == "recorded" else f"anchors of {anchors} tokens"
    way = "closed loop" if loop == "closed" else f"open loop ({loop} arrivals) at {load:.0%} of stock's saturation"
    return f"{size}, {way}"


def about(row: Row) -> str:
    return (
        f"{row['agents']} agents, mean prompt {row['mean_prompt_tokens']:.0f} tokens; caches of "
        f"{row['cache_tokens']:,} tokens in all, {row['cache_in_mean_prompts']:.1f} mean prompts; all anchors "
        f"{row['anchors_in_caches']:.1f} times the caches; commit {row['commit']}."
    )


HEAD = (
    "| policy | seeds x requests | hit rate | of bound | TTFT mean | p50 | p99 | end to end | requests/s | tokens/s |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


def _table(lines: Sequence[dict[str, Any]]) -> list[str]:
    shown = list(HEAD)
    for line in lines:
        share = line.get("of_bound")
        of_bound = "-" if share is None else f"{share:.0%}"
        if line["policy"] == BOUND:
            shown.append(f"| {BOUND} (bound) | | {line['hit_rate']:.1%} | | | | | | | |")
            continue
        cells = [
            line["policy"],
            f"{line['seeds']} x {line['requests'] // line['seeds']}"
            + (f", {line['errors']} failed" if line["errors"] else ""),
            _figure(line, "hit_rate", 100.0, "%", 1),
            of_bound,
            _figure(line, "ttft_mean_s", 1.0, " s", 2) + _shown_change(line, "ttft_change"),
            *(_figure(line, name, 1.0, " s", 2) for name in ("ttft_p50_s", "ttft_p99_s", "e2e_mean_s")),
            _figure(line, "requests_per_s", 1.0, "", 2) + _shown_change(line, "rate_change"),
            _figure(line, "tokens_per_s", 1.0, "", 0),
        ]
        shown.append(f"| {' | '.join(cells)} |")
    return shown


def _shown_change(line: dict[str, Any], name: str) -> str:
    """Nothing for the base itself."""
    change = line.get(name)
    return f" ({change:+.0%})" if change else ""


def _figure(line: dict[str, Any], name: str, factor: float, unit: str, digits: int) -> str:
    spread = line["spread"][name]
    around = "" if spread is None else f" ± {factor * spread:.{digits}f}"
    return f"{factor * line[name]:.{digits}f}{around}{unit}"
