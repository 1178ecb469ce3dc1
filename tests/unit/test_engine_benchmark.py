"""The engine benchmark's pure parts: schedules, figures, the bound, the record of cells, tables and plots."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.engine.cells import CLOSED, POISSON, Cell, Grid, Results, read_rows
from benchmarks.engine.charts import area_chart, bar_chart, line_chart, tick_step
from benchmarks.engine.drive import Sample
from benchmarks.engine.measures import best_hit_rate, percentile, summary
from benchmarks.engine.overview import overview, overview_charts
from benchmarks.engine.report import write_report
from benchmarks.engine.run import compact
from benchmarks.engine.schedule import Schedule, Shape, build_schedule, poisson_times, recorded_times
from benchmarks.engine.table import BOUND, policy_lines
from benchmarks.engine.text import Message, ModelText, as_messages, block_names
from benchmarks.engine.workloads import Anchors, Script, Turn, load_workload, teams_for
from benchmarks.trace_format import TraceError


class WordText(ModelText):
    """A word is a token, and the template prints roles as words."""

    def __init__(self) -> None:
        self._words = ["alpha", "beta", "gamma", "delta"]

    def ids(self, text: str) -> list[int]:
        return [zlib.crc32(word.encode()) for word in text.split()]

    def head(self, text: str, tokens: int) -> str:
        return " ".join(text.split()[:tokens])

    def filler(self, name: str, tokens: int) -> str:
        return " ".join(random.Random(name).choices(self._words, k=max(tokens, 0)))

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        return self.ids(" ".join(f"<{m['role']}> {m['content']}" for m in messages) + " <assistant>")


TEXT = WordText()
SCRIPTS = [
    Script(
        f"s{number}",
        tuple(
            Turn(agent, f"You are {agent}.", ({"role": "user", "content": f"task {number}"},), 40) for agent in "abc"
        ),
    )
    for number in range(5)
]


def shape(**changes: object) -> Shape:
    values: dict[str, object] = {
        "requests": 24,
        "sessions": 4,
        "teams": 2,
        "anchors": Anchors((50, 60)),
        "max_tokens": 4,
        "max_prompt_tokens": 1000,
        "seed": 1,
    }
    return Shape(**{**values, **changes})  # type: ignore[arg-type]


def test_a_schedule_keeps_each_sessions_order_and_gives_every_agent_one_anchor() -> None:
    schedule = build_schedule(SCRIPTS, shape(), TEXT)
    assert schedule == build_schedule(SCRIPTS, shape(), TEXT)
    assert schedule != build_schedule(SCRIPTS, shape(seed=2), TEXT)
    assert [prompt.position for prompt in schedule.prompts] == list(range(24))
    last: dict[str, int] = {}
    anchors: dict[str, set[str]] = {}
    for prompt in schedule.prompts:
        assert prompt.after == last.get(prompt.session)
        last[prompt.session] = prompt.position
        anchors.setdefault(prompt.agent, set()).add(prompt.messages[0]["content"])
        assert 50 <= prompt.anchor_tokens <= 60 and prompt.max_tokens == 4
    assert len(anchors) == 6 and all(len(found) == 1 for found in anchors.values())
    heads = {next(iter(found)).split()[0:2][1] for found in anchors.values()}
    assert heads == {"1.", "2."}, "teams' prompts differ from the first line on"


def test_recorded_anchors_stay_as_they_are_and_a_salt_shares_nothing() -> None:
    recorded = build_schedule(SCRIPTS, shape(anchors=Anchors(), teams=1), TEXT)
    assert {p.messages[0]["content"] for p in recorded.prompts} == {f"You are {agent}." for agent in "abc"}
    salted = build_schedule(SCRIPTS, shape(anchors=Anchors(), teams=1, salt="~1"), TEXT)
    mine, others = ({block_names(p.prompt_ids, 4)[0] for p in s.prompts} for s in (salted, recorded))
    assert mine.isdisjoint(others)
    assert {p.agent for p in salted.prompts} == {"a~1", "b~1", "c~1"}


def test_a_long_prompt_is_cut_at_its_end_and_counted() -> None:
    long = [Script("s", (Turn("a", "You are a.", ({"role": "user", "content": "x " * 500},), 9),))]
    schedule = build_schedule(long, shape(requests=3, anchors=Anchors(), teams=1, max_prompt_tokens=100), TEXT)
    assert schedule.clipped == 3
    assert all(60 < len(prompt.prompt_ids) <= 100 for prompt in schedule.prompts)
    assert all(prompt.messages[0]["content"] == "You are a." for prompt in schedule.prompts)


def test_teams_are_as_many_as_fill_the_pressure() -> None:
    assert teams_for(4, Anchors((1000, 1500)), 20_000, 2.0) == 8
    assert teams_for(200, Anchors((1000, 1500)), 20_000, 2.0) == 1
    assert teams_for(4, Anchors(), 20_000, 2.0) == 1


def test_arrivals_have_the_mean_rate_asked_for(tmp_path: Path) -> None:
    times = poisson_times(2000, 2.0, 1)
    assert times[0] == 0.0 and times == sorted(times)
    assert 900 < times[-1] < 1100
    path = tmp_path / "arrivals.jsonl"
    path.write_text("".join(json.dumps({"ts": ts}) + "\n" for ts in (0, 0, 3, 3, 3, 9)))
    assert recorded_times(path, 6, 2.0, 1) == pytest.approx([0, 0, 2.5 / 3, 2.5 / 3, 2.5 / 3, 2.5])


def sample(position: int, cached: int = 0, ttft_s: float = 1.0, error: str = "") -> Sample:
    return Sample(position, "a", float(position), ttft_s, ttft_s + 1.0, 100, cached, 4, "r", error)


def test_a_summary_leaves_out_warm_up_and_failures() -> None:
    samples = [sample(0), sample(1, 50, 2.0), sample(2, 70, 4.0), sample(3, error="500")]
    found = summary(samples, 1)
    assert (found["requests"], found["errors"], found["first_error"]) == (2, 1, "500")
    assert found["hit_rate"] == pytest.approx(0.6)
    assert (found["ttft_mean_s"], found["ttft_p50_s"], found["ttft_p99_s"]) == (3.0, 2.0, 4.0)
    assert found["e2e_mean_s"] == 4.0
    assert found["requests_per_s"] == pytest.approx(2 / 6)
    assert found["tokens_per_s"] == pytest.approx(208 / 6)
    assert summary([sample(0, error="x")], 0)["hit_rate"] == 0.0


def test_percentiles_are_values_that_occurred() -> None:
    assert [percentile([3.0, 1.0, 2.0], share) for share in (0.01, 0.5, 0.99)] == [1.0, 2.0, 3.0]


def test_the_bound_is_min_over_the_order_of_sending() -> None:
    scripts = [Script(f"s{n}", (Turn("a", "w " * 9, ({"role": "user", "content": f"t{n}"},), 1),)) for n in range(2)]
    schedule = build_schedule(scripts, shape(requests=4, anchors=Anchors(), teams=1, sessions=2), TEXT)
    samples = [sample(position) for position in range(4)]
    tokens = len(schedule.prompts[0].prompt_ids)
    assert tokens == 13
    # Two whole blocks of the anchor, found by all but the first; of the third, by who has said the same before.
    few = best_hit_rate(schedule.prompts, samples, 1, 4, 4)
    many = best_hit_rate(schedule.prompts, samples, 1, 100, 4)
    assert few >= 8 / 13
    assert few <= many <= 12 / 13


CELL = Cell("w", "recorded", CLOSED, 0.0, 1, "stock")


def result(**changes: object) -> dict[str, object]:
    samples = [sample(position, 50) for position in range(4)]
    row = {
        "commit": "abc",
        "agents": 3,
        "mean_prompt_tokens": 100.0,
        "cache_tokens": 1000,
        "cache_in_mean_prompts": 10.0,
        "anchors_in_caches": 2.0,
        "warm_up": 0,
        **summary(samples, 0),
        "min_hit_rate": 0.9,
        "prefetch": {"issued": 0, "useful": 0, "wasted": 0, "refused": 0},
        "samples": [compact(s) for s in samples],
        "residency": [[3.0, {"a": 5}], [6.0, {"a": 7, "b": 2}]],
    }
    return {**row, **changes}


def test_results_are_found_again_by_equal_settings_alone(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Results(path, "s1").add(CELL, result())
    assert CELL in Results(path, "s1").rows
    assert not Results(path, "s2").rows
    path.write_text('{"workload": "w"}\n')
    with pytest.raises(TraceError, match=r"results\.jsonl, line 1"):
        Results(path, "s1")


def test_saturation_is_the_first_policys_that_has_a_closed_loop(tmp_path: Path) -> None:
    results = Results(tmp_path / "r.jsonl", "s")
    cell = Cell("w", "recorded", POISSON, 0.7, 1, "reach")
    assert results.saturation(cell, ("stock", "lru")) is None
    results.add(Cell("w", "recorded", CLOSED, 0.0, 1, "lru"), result(requests_per_s=3.0))
    assert results.saturation(cell, ("stock", "lru")) == 3.0
    for seed, rate in ((1, 1.0), (2, 2.0)):
        results.add(Cell("w", "recorded", CLOSED, 0.0, seed, "stock"), result(requests_per_s=rate))
    assert results.saturation(cell, ("stock", "lru")) == 1.5


def test_no_policy_always_comes_first_and_closed_loops_do() -> None:
    cells = list(Grid(("w",), ("recorded",), (POISSON, CLOSED), (0.5, 0.9), (1, 2), ("stock", "lru", "reach")).cells())
    assert len(cells) == len(set(cells)) == 18
    assert [cell.loop for cell in cells] == [CLOSED] * 6 + [POISSON] * 12
    assert [cell.policy for cell in cells[::3]] == ["stock", "lru", "reach", "stock", "lru", "reach"]


def test_a_line_a_policy_with_spread_and_share_of_the_bound(tmp_path: Path) -> None:
    results = Results(tmp_path / "r.jsonl", "s")
    for seed, rate in ((1, 0.4), (2, 0.6)):
        results.add(Cell("w", "recorded", CLOSED, 0.0, seed, "stock"), result(hit_rate=rate))
        results.add(Cell("w", "recorded", CLOSED, 0.0, seed, "reach"), result(hit_rate=rate + 0.2))
    lines = {line["policy"]: line for line in policy_lines(list(results.rows.values()))}
    assert list(lines) == ["stock", "reach", BOUND]
    assert lines["stock"]["hit_rate"] == pytest.approx(0.5)
    assert lines["stock"]["spread"]["hit_rate"] == pytest.approx(0.1)
    assert lines["reach"]["of_bound"] == pytest.approx(0.5)
    assert lines[BOUND]["hit_rate"] == pytest.approx(0.9)


def test_a_change_against_stock_is_the_mean_of_what_each_seed_shows(tmp_path: Path) -> None:
    results = Results(tmp_path / "r.jsonl", "s")
    for seed, stock_s, reach_s in ((1, 1.0, 0.5), (2, 4.0, 4.0)):
        results.add(Cell("w", "recorded", CLOSED, 0.0, seed, "stock"), result(ttft_mean_s=stock_s))
        results.add(Cell("w", "recorded", CLOSED, 0.0, seed, "reach"), result(ttft_mean_s=reach_s))
    results.add(Cell("w", "recorded", CLOSED, 0.0, 3, "reach"), result(ttft_mean_s=100.0))
    lines = {line["policy"]: line for line in policy_lines(list(results.rows.values()))}
    assert lines["reach"]["ttft_change"] == pytest.approx(-0.25)
    assert lines["stock"]["ttft_change"] == 0.0


def test_a_report_has_every_table_and_plots_that_are_svg(tmp_path: Path) -> None:
    results = Results(tmp_path / "r.jsonl", "s")
    for loop, load in ((CLOSED, 0.0), (POISSON, 0.7)):
        for policy in ("stock", "reach"):
            results.add(Cell("w", "recorded", loop, load, 1, policy), result())
    report = write_report(read_rows([tmp_path / "r.jsonl"]), tmp_path / "out").read_text()
    assert report.count("| reach |") == 2 and "closed loop" in report and "70% of stock" in report
    plots = sorted(path.name for path in (tmp_path / "out").glob("*.svg"))
    assert plots[0].startswith("hits-") and any(name.startswith("load-") for name in plots)
    assert any(name.startswith("residency-reach") for name in plots)
    for name in plots:
        ElementTree.fromstring((tmp_path / "out" / name).read_text())
        assert f"({name})" in report


def test_workloads_side_by_side_with_the_median_one(tmp_path: Path) -> None:
    results = Results(tmp_path / "r.jsonl", "s")
    for workload, reach_s in (("a-one", 0.9), ("b", 0.5), ("c", 0.8)):
        results.add(Cell(workload, "recorded", CLOSED, 0.0, 1, "stock"), result(ttft_mean_s=1.0, hit_rate=0.1))
        results.add(Cell(workload, "recorded", CLOSED, 0.0, 1, "reach"), result(ttft_mean_s=reach_s, hit_rate=0.3))
    results.add(Cell("a-one", "recorded", POISSON, 0.7, 1, "reach"), result())
    rows = list(results.rows.values())
    table = overview(rows)
    assert len([line for line in table if line.startswith("### ")]) == 1, "one workload alone is no overview"
    assert [line.split(" | ")[6] for line in table if "reach" in line] == [
        "0.90 s (-10%)", "0.50 s (-50%)", "0.80 s (-20%)", "-20%"
    ]  # fmt: skip
    charts = dict(overview_charts(rows))
    assert list(charts) == ["all-hits-recorded-closed-0", "all-ttft-recorded-closed-0"]
    for svg in charts.values():
        ElementTree.fromstring(svg)


def test_workloads_without_a_base_are_shown_without_changes(tmp_path: Path) -> None:
    results = Results(tmp_path / "r.jsonl", "s")
    for workload in ("a", "b"):
        results.add(Cell(workload, "recorded", CLOSED, 0.0, 1, "reach"), result())
    rows = [line for line in overview(list(results.rows.values())) if "reach" in line]
    assert len(rows) == 3 and all("%)" not in row for row in rows)


def test_charts_of_nothing_and_of_zero_are_charts() -> None:
    for svg in (
        line_chart("t & u", "x", "y", {}),
        line_chart("t", "x", "y", {"a": [(0.0, 0.0)]}, marks=True),
        area_chart("t", "x", "y", [0.0], {"a": [0.0]}),
        bar_chart("t", "y", ["g"], {"a": [None], "b": [0.5]}),
    ):
        ElementTree.fromstring(svg)


@pytest.mark.parametrize(("most", "step"), [(1.0, 0.2), (7.0, 2.0), (480.0, 100.0), (0.0, 1.0), (0.034, 0.01)])
def test_ticks_are_round(most: float, step: float) -> None:
    assert tick_step(most) == pytest.approx(step)


def test_recorded_messages_become_what_a_template_prints() -> None:
    body = {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
            {"role": "tool", "content": "42"},
        ]
    }
    assert as_messages(body) == [
        {"role": "system", "content": "s"},
        {"role": "assistant", "content": "[{'id': '1'}]"},
        {"role": "user", "content": "42"},
    ]


def test_any_set_of_the_format_is_a_workload(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    steps = [
        {
            "session": "s",
            "agent": agent,
            "llm": True,
            "system_id": f"id-{agent}",
            "input_tokens": size,
            "output_tokens": 7,
        }
        for agent, size in (("a", 20), ("b", 50))
    ]
    (folder / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    (folder / "sessions.jsonl").write_text(json.dumps({"session": "s", "framework": "f", "benchmark": "b"}) + "\n")
    systems = [{"system_id": f"id-{agent}", "system": f"You are {agent}.", "tokens": 3} for agent in "ab"]
    (folder / "systems.jsonl").write_text("".join(json.dumps(system) + "\n" for system in systems))
    (script,) = load_workload(tmp_path, "mine", TEXT)
    first, second = script.turns
    assert (first.system, second.system) == ("You are a.", "You are b.")
    assert [TEXT.count(t.messages[0]["content"]) for t in script.turns] == [17, 47]
    assert second.messages[0]["content"].startswith(first.messages[0]["content"])
    with pytest.raises(TraceError, match="unknown set"):
        load_workload(tmp_path, "other", TEXT)


def test_mean_prompt_and_anchors_of_a_schedule() -> None:
    schedule = build_schedule(SCRIPTS, shape(), TEXT)
    assert isinstance(schedule, Schedule)
    assert schedule.mean_prompt_tokens == sum(len(p.prompt_ids) for p in schedule.prompts) / 24
    assert 6 * 50 <= schedule.anchors_tokens <= 6 * 60
