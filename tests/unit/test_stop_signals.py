"""A signal is answered with a line at once, in whatever phase, and stops the launcher once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import local
from cluster.stop_signals import MESSAGE, SIGNALS, StopRequested, StopSignals


@pytest.fixture
def stop() -> Iterator[StopSignals]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signals = StopSignals()
    signals.install()
    yield signals
    end = signal.set_wakeup_fd(-1)
    os.close(end)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS, ids=str)
def test_stops_and_says_so(stop: StopSignals, capsys: pytest.CaptureFixture[str], number: signal.Signals) -> None:
    with pytest.raises(StopRequested):
        signal.raise_signal(number)
    assert stop.wait_until_printed(30.0)
    assert capsys.readouterr().out == f"{MESSAGE}\n"


def test_a_second_one_changes_nothing(stop: StopSignals, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StopRequested):
        signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGTERM)
    assert stop.wait_until_printed(30.0)
    stop.ignore()
    signal.raise_signal(signal.SIGINT)
    assert capsys.readouterr().out.count("stopping") == 1


def test_told_although_another_handler_has_it(stop: StopSignals) -> None:
    """The line doesn't wait for a handler of ours, and the next check stops."""
    stop.check()
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.raise_signal(signal.SIGTERM)
    assert stop.wait_until_printed(30.0)
    with pytest.raises(StopRequested):
        stop.check()
    with pytest.raises(StopRequested):
        stop.wait()


class Cluster:
    """In place of a local Ray: gets a signal while it starts, and another one while it stops."""

    def __init__(self) -> None:
        self.stopped = 0

    def start(self) -> None:
        signal.raise_signal(signal.SIGINT)

    def stop(self) -> None:
        signal.raise_signal(signal.SIGINT)
        self.stopped += 1


def test_launcher_stops_what_it_started(
    stop: StopSignals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster()
    monkeypatch.setattr(local, "LocalRay", lambda: cluster)
    monkeypatch.setattr(local, "StopSignals", lambda: stop)
    monkeypatch.setattr(stop, "install", stop.take_over)
    monkeypatch.setattr(local, "check_port", lambda *_: None)
    monkeypatch.setattr(local, "ensure_embedded_model", lambda _: Path())
    assert local.main([]) == 0
    assert cluster.stopped == 1
    out = capsys.readouterr().out
    assert out.index("serve: stopping, this may take a minute") < out.index("serve: stopped")
