"""Ray's head is started again when it ends, but not for ever."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cluster.head import MAX_STARTS, WITHIN_S, HeadFiles, HeadWatch


class Head:
    def __init__(self) -> None:
        self.ended = False
        self.starts = 0
        self.now_s = 0.0
        self.comes_up = True
        self.started = threading.Event()

    def restart(self) -> None:
        self.starts += 1
        if not self.comes_up:
            raise RuntimeError("no port")
        self.ended = False
        self.started.set()

    def watch(self) -> HeadWatch:
        return HeadWatch(lambda: self.ended, self.restart, lambda: self.now_s)


@pytest.fixture
def head() -> Head:
    return Head()


def test_a_head_that_lives_is_left_alone(head: Head) -> None:
    assert head.watch().look() and head.starts == 0


def test_one_that_ended_is_started_again(head: Head) -> None:
    watch = head.watch()
    head.ended = True
    assert watch.look() and head.starts == 1 and not head.ended


def test_a_start_that_fails_is_tried_again(head: Head) -> None:
    watch = head.watch()
    head.ended, head.comes_up = True, False
    assert watch.look() and watch.look() and head.starts == 2


def test_one_that_will_not_stay_is_left(head: Head) -> None:
    watch = head.watch()
    for _ in range(MAX_STARTS):
        head.ended = True
        assert watch.look()
    head.ended = True
    assert not watch.look() and head.starts == MAX_STARTS
    head.now_s = WITHIN_S
    assert watch.look() and head.starts == MAX_STARTS + 1


def test_the_thread_looks_until_it_is_stopped(head: Head) -> None:
    watch = head.watch()
    watch.start()
    head.ended = True
    assert head.started.wait(30)
    watch.stop()
    assert not any(thread.name == "head-watch" for thread in threading.enumerate())


def test_the_files_go_with_the_cluster() -> None:
    files = HeadFiles()
    path = Path(files.system_config["gcs_storage_path"])
    (path / "table").write_text("x")
    files.remove()
    assert not path.exists()
