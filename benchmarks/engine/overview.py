"""Several workloads side by side: a table with the median workload, and a bar chart of hit rates and of TTFT."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from benchmarks.engine.cells import MODES, STOCK, Row
from benchmarks.engine.charts import bar_chart
from benchmarks.engine.table import BOUND, base_of, groups, policy_lines, way_of

Setting = tuple[str, str, float]
"""Anchors, loop, load: what workloads that are compared have in common."""

HEAD = (
    "| workload | policy | hit rate | stock's | bound | of bound | TTFT mean | requests/s |",
    "|---|---|---|---|---|---|---|---|",
)


def settings_of(rows: Iterable[Row]) -> dict[Setting, dict[str, list[dict[str, Any]]]]:
    """Setting -> workload -> its policies' lines, for settings in which more than one workload was measured."""
    found: dict[Setting, dict[str, list[dict[str, Any]]]] = {}
    for (workload, anchors, loop, load), cells in groups(rows).items():
        found.setdefault((anchors, loop, load), {})[workload] = policy_lines(cells)
    return {setting: workloads for setting, workloads in found.items() if len(workloads) > 1}


def overview(rows: Iterable[Row]) -> list[str]:
    """A section a setting: each policy against the base on each workload, and on the median one."""
    lines: list[str] = []
    for (anchors, loop, load), workloads in settings_of(rows).items():
        lines += ["", f"### All workloads, {way_of(anchors, loop, load)}", "", *HEAD]
        changes: dict[str, list[dict[str, Any]]] = {}
        for workload, found in workloads.items():
            base, bound = base_of(found), _line_of(BOUND, found)
            for line in found:
                if line is not base and line is not bound:
                    changes.setdefault(line["policy"], []).append(line)
                    lines.append(_row(workload, line, base, bound))
        lines += [_median(policy, found) for policy, found in changes.items()]
    return lines


def overview_charts(rows: Iterable[Row]) -> Iterator[tuple[str, str]]:
    """(file name without its ending, SVG): bars of every policy, workload by workload."""
    for (anchors, loop, load), workloads in settings_of(rows).items():
        way = way_of(anchors, loop, load)
        name, policies = f"{anchors}-{loop}-{load:g}", _policies(workloads.values())
        hits = {p: _bars(workloads.values(), p, "hit_rate", 100.0) for p in [*policies, BOUND]}
        yield f"all-hits-{name}", bar_chart(f"Hit rate: {way}", "% of prompt tokens", list(workloads), hits)
        times = {p: _bars(workloads.values(), p, "ttft_mean_s", 1.0) for p in policies}
        yield f"all-ttft-{name}", bar_chart(f"TTFT: {way}", "mean, seconds", list(workloads), times)


def _policies(workloads: Iterable[Sequence[dict[str, Any]]]) -> list[str]:
    present = {line["policy"] for lines in workloads for line in lines}
    return [policy for policy in MODES if policy in present]


def _bars(workloads: Iterable[Sequence[dict[str, Any]]], policy: str, figure: str, factor: float) -> list[float | None]:
    found = (_line_of(policy, lines) for lines in workloads)
    return [None if line is None else factor * line[figure] for line in found]


def _line_of(policy: str, lines: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    return next((line for line in lines if line["policy"] == policy), None)


def _row(workload: str, line: dict[str, Any], base: dict[str, Any] | None, bound: dict[str, Any] | None) -> str:
    named = "" if base is None or base["policy"] == STOCK else f" ({base['policy']})"
    cells = [
        workload,
        line["policy"],
        f"{line['hit_rate']:.1%}",
        "-" if base is None else f"{base['hit_rate']:.1%}{named}",
        "-" if bound is None else f"{bound['hit_rate']:.1%}",
        _share(line.get("of_bound"), "{:.0%}"),
        f"{line['ttft_mean_s']:.2f} s ({_share(line.get('ttft_change'), '{:+.0%}')})",
        f"{line['requests_per_s']:.2f} ({_share(line.get('rate_change'), '{:+.0%}')})",
    ]
    return f"| {' | '.join(cells)} |"


def _median(policy: str, lines: Sequence[dict[str, Any]]) -> str:
    def median(figure: str, form: str) -> str:
        values = [line[figure] for line in lines if line.get(figure) is not None]
        return _share(statistics.median(values) if values else None, form)

    cells = [
        "**median**",
        policy,
        "",
        "",
        "",
        median("of_bound", "{:.0%}"),
        median("ttft_change", "{:+.0%}"),
        median("rate_change", "{:+.0%}"),
    ]
    return f"| {' | '.join(cells)} |"


def _share(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
