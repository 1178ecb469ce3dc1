"""A demo that is told to stop gives the server back the policy that it had."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from demo import __main__ as program
from demo import compare as comparing

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class FakeApi:
    """Keeps the modes that it was switched to."""

    modes: list[str]

    def __init__(self, url: str) -> None:
        FakeApi.modes = []

    def model(self) -> str:
        return "m"

    def state(self) -> dict[str, Any]:
        return {"policies": [{"name": "kv_cache", "mode": "anchors"}]}

    def set_policy(self, mode: str) -> None:
        self.modes.append(mode)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    # Whatever started the tests may have had some of them ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run_and_signal(monkeypatch: pytest.MonkeyPatch, *numbers: signal.Signals) -> int:
    async def interrupted(plan: Any, api: FakeApi, model: str, run: Any, label: str) -> None:
        api.set_policy(run.policy)
        for number in numbers:
            signal.raise_signal(number)
        await asyncio.Event().wait()

    monkeypatch.setattr(program, "RuntimeApi", FakeApi)
    monkeypatch.setattr(comparing, "_run_policy", interrupted)
    return program.main(["--problems", "1", "--policy", "lru"])


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=str
)
def test_policy_is_restored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: signal.Signals, code: int
) -> None:
    assert run_and_signal(monkeypatch, number) == code
    assert FakeApi.modes == ["lru", "anchors"]
    assert "demo: stopped" in capsys.readouterr().err


def test_hang_up_and_termination_together_stop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_and_signal(monkeypatch, signal.SIGHUP, signal.SIGTERM) == 129
    assert FakeApi.modes == ["lru", "anchors"]


def test_termination_stops_a_background_job(monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert run_and_signal(monkeypatch, signal.SIGTERM) == 143
    assert FakeApi.modes == ["lru", "anchors"]
