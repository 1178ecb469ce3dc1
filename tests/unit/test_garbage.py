"""What a served process has at its start is out of the collector's way."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from replicas.garbage import YOUNG_OBJECTS, freeze_what_stays


@pytest.fixture
def collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_what_is_there_is_searched_no_more_and_what_comes_is(collector: None) -> None:
    kept: list[object] = [[]]
    freeze_what_stays()
    assert gc.get_freeze_count() > 1000
    assert not any(one is kept for one in gc.get_objects())
    assert gc.get_threshold()[0] == YOUNG_OBJECTS
    cycle: list[object] = []
    cycle.append(cycle)
    del cycle
    assert gc.collect() >= 1
