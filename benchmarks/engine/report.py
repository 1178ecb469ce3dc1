"""Tables and plots of results: `python -m benchmarks.engine.report RESULTS.jsonl ... --out FOLDER`."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.engine.cells import CLOSED, MODES, Row, read_rows
from benchmarks.engine.charts import Point, area_chart, bar_chart, line_chart
from benchmarks.engine.overview import overview, overview_charts
from benchmarks.engine.table import BOUND, Key, groups, markdown, policy_lines, title
from benchmarks.trace_format import TraceError

SHOWN_AGENTS = 9
"""Layers of a residency plot; the rest are one."""


def write_report(rows: Sequence[Row], folder: Path) -> Path:
    """report.md with a plot each for hit rate, time to first token, load and residency; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["# Policies on real vLLM", *overview(rows), *markdown(rows), "", "## Plots", ""]
    for name, svg in charts(rows):
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
        lines += [f"![{name}]({name}.svg)", ""]
    path = folder / "report.md"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def charts(rows: Sequence[Row]) -> Iterable[tuple[str, str]]:
    """(file name without its ending, SVG)."""
    yield from overview_charts(rows)
    by_key = groups(rows)
    for key, found in by_key.items():
        name = re.sub(r"[^a-z0-9.]+", "-", "-".join(str(part) for part in key).lower())
        lines = policy_lines(found)
        rates = {line["policy"]: [100.0 * line["hit_rate"]] for line in lines}
        yield f"hits-{name}", bar_chart(f"Hit rate: {title(key)}", "% of prompt tokens", [""], rates)
        yield (
            f"ttft-{name}",
            line_chart(
                f"TTFT: {title(key)}",
                "seconds",
                "% of requests",
                {p: _distribution(found, p) for p in _policies(found)},
            ),
        )
        for policy in ("lru", "reach"):
            seen = [row for row in found if row["policy"] == policy and row["residency"]]
            if seen:
                yield f"residency-{policy}-{name}", _residency(seen[0], key)
    for workload, anchors in dict.fromkeys((key[0], key[1]) for key in by_key):
        series = _against_load(by_key, workload, anchors)
        if any(len(points) > 1 for points in series.values()):
            name = f"load-{workload}-{anchors}"
            label = f"Time to first token against load: {workload}, anchors {anchors}"
            yield name, line_chart(label, "requests a second answered", "mean TTFT, s", series, marks=True)


def _policies(rows: Sequence[Row]) -> list[str]:
    present = {row["policy"] for row in rows}
    return [policy for policy in MODES if policy in present]


def _distribution(rows: Sequence[Row], policy: str) -> list[Point]:
    """Share of counted requests answered within so many seconds; failed ones never are."""
    times = sorted(
        sample[3]
        for row in rows
        if row["policy"] == policy
        for sample in row["samples"][row["warm_up"] :]
        if not sample[9]
    )
    return [(0.0, 0.0), *((time_s, 100.0 * (at + 1) / len(times)) for at, time_s in enumerate(times))]


def _residency(row: Row, key: Key) -> str:
    """Blocks of each agent over time; the biggest ones by name."""
    totals: dict[str, int] = {}
    for _, blocks in row["residency"]:
        for agent, count in blocks.items():
            totals[agent] = totals.get(agent, 0) + count
    biggest = sorted(totals, key=lambda agent: -totals[agent])[:SHOWN_AGENTS]
    layers = {agent: [float(blocks.get(agent, 0)) for _, blocks in row["residency"]] for agent in biggest}
    rest = [float(sum(blocks.values()) - sum(blocks.get(a, 0) for a in biggest)) for _, blocks in row["residency"]]
    seconds = [at_s for at_s, _ in row["residency"]]
    label = f"Resident blocks by agent, {row['policy']}: {title(key)}"
    return area_chart(label, "seconds", "blocks", seconds, {**layers, "others": rest})


def _against_load(by_key: dict[Key, list[Row]], workload: str, anchors: str) -> dict[str, list[Point]]:
    """Policy -> (requests a second, mean TTFT) of every open and closed loop, by load."""
    series: dict[str, list[Point]] = {}
    for key, rows in by_key.items():
        if key[:2] == (workload, anchors) and key[2] in (CLOSED, "poisson"):
            for line in policy_lines(rows):
                if line["policy"] != BOUND:
                    series.setdefault(line["policy"], []).append((line["requests_per_s"], line["ttft_mean_s"]))
    return {policy: sorted(points) for policy, points in series.items()}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.engine.report", description=__doc__)
    arguments.add_argument("results", type=Path, nargs="+")
    arguments.add_argument("--out", type=Path, required=True, help="folder")
    given = arguments.parse_args(argv)
    try:
        path = write_report(read_rows(given.results), given.out)
    except (TraceError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
