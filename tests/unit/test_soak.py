"""What the soak says of its samples; the soak itself is `scripts/soak`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.fault.soak import Samples, badly_ended, chart, growth, numbered, read_samples, write_samples

MIB = 1 << 20


def samples(minutes: int = 30, grows: str = "") -> Samples:
    """A minute each; `grows` gains 10 MiB a minute."""
    sizes = {"actor 7": 100 * MIB, "replica 41": 700 * MIB, "replica 40": 700 * MIB}
    return [
        (60.0 * minute, {name: size + (10 * MIB * minute if name == grows else 0) for name, size in sizes.items()})
        for minute in range(minutes)
    ]


def test_growth_is_seen_where_it_is() -> None:
    found = growth(samples(grows="actor 7"))
    assert found.pop("actor 7") > 0.05 and set(found.values()) == {0.0}


def test_a_process_that_came_and_went_is_not_judged() -> None:
    half = samples()
    for _, sizes in half[20:]:
        del sizes["replica 40"]
    assert "replica 40" not in growth(half)


def test_processes_are_numbered_as_they_appear() -> None:
    assert set(numbered(samples())[0][1]) == {"actor", "replica 1", "replica 2"}
    assert numbered([(0.0, {"proxy 9": 1}), (1.0, {"proxy 3": 2})]) == [(0.0, {"proxy 1": 1}), (1.0, {"proxy 2": 2})]


def test_samples_are_read_as_they_were_written(tmp_path: Path) -> None:
    found = samples(3)
    write_samples(tmp_path / "s.csv", found)
    assert read_samples(tmp_path / "s.csv") == found


@pytest.mark.parametrize("found", [samples(), []])
def test_a_chart_has_a_line_for_each_process(found: Samples) -> None:
    drawn = ElementTree.fromstring(chart(found, "Memory: of a test"))
    lines = [part for part in drawn if part.tag.endswith("polyline")]
    assert len(lines) == (3 if found else 0)


def test_a_connection_that_broke_is_a_request_without_an_answer() -> None:
    ends = Counter({"plain: 200": 5, "leaves: left": 4, "new agent: 429": 3})
    assert badly_ended(ends) == 0
    assert badly_ended(ends + Counter({"plain: ReadError": 2, "slow: no answer": 1, "stream: 500": 1})) == 4
