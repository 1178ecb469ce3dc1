"""The queue's scenes on a server: turns, load, switching, and what counts as refused, failed and met."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.engine import servers
from benchmarks.engine.drive import Endpoint, Sample
from benchmarks.engine.servers import RuntimeApi, ServerError
from benchmarks.queue_scenes import HEAVY_REQUESTS, LIGHT_REQUESTS, Ask, Outcome, short_burst, short_deadlines
from benchmarks.queue_served import Plan, Served, outcome_of, rounds, together
from tests.unit.test_engine_benchmark import TEXT


class Playing(Served):
    """Serves 4 requests a second; remembers what was asked under which policies."""

    def __init__(self) -> None:
        super().__init__(RuntimeApi("http://nowhere", ""), {}, TEXT, "s")
        self.on: tuple[str, ...] = ()
        self.played: list[tuple[tuple[str, ...], Sequence[Ask]]] = []

    def switch(self, names: Sequence[str]) -> None:
        self.on = tuple(names)

    def play(self, asks: Sequence[Ask]) -> Outcome:
        self.played.append((self.on, asks))
        return Outcome(last_s=len(asks) / 4.0)


def sample(position: int, ttft_s: float, error: str = "") -> Sample:
    return Sample(position, "a", 0.0, ttft_s, ttft_s + 1.0, 300, 0, 8, "r", error)


def test_policies_take_turns_in_both_directions_and_ask_the_same() -> None:
    served = Playing()
    plan = Plan("flood", ("alone", "none", "fairness"), 2, 60.0, 1)
    assert [policy for policy, _ in rounds(served, plan)] == [
        "alone", "none", "fairness", "fairness", "none", "alone",
    ]  # fmt: skip
    assert [on for on, asks in served.played if asks == short_burst()] == [(), (), ()], (
        "once more, and before each round"
    )
    cells = [(on, asks) for on, asks in served.played if asks != short_burst()]
    assert [on for on, _ in cells] == [(), (), ("fairness",), ("fairness",), (), ()]
    assert cells[1][1] == cells[2][1] != cells[3][1] == cells[4][1]
    assert len(cells[0][1]) == LIGHT_REQUESTS and len(cells[1][1]) == LIGHT_REQUESTS + HEAVY_REQUESTS
    assert cells[0][1] == [ask for ask in cells[1][1] if ask.tenant == "light"]
    last_s = max(ask.at_s for ask in cells[1][1] if ask.tenant == "heavy")
    assert HEAVY_REQUESTS / last_s == pytest.approx(3 * 4.0, rel=0.2), "three times what it serves"


def test_no_round_begins_late() -> None:
    times = iter((0.0, 1.0, 61.0))  # began, the first round, the second
    plan = Plan("deadlines", ("none", "deadline"), 9, 1.0, 1)
    assert len(list(rounds(Playing(), plan, lambda: next(times)))) == 2


def test_a_third_of_the_requests_has_each_deadline() -> None:
    asks = short_deadlines(4.0, 1)
    slos = [ask.slo_s for ask in asks]
    assert {slo: slos.count(slo) for slo in set(slos)} == {1.5: 16, 5.0: 16, None: 16}


def test_refusals_failures_and_deadlines() -> None:
    asks = [Ask(0.0, "light", "a", 9, 1, slo_s=2.0)] * 4 + [Ask(0.0, "heavy", "a", 9, 1)]
    samples = [sample(0, 1.9), sample(1, 2.1), sample(2, 0.1, "429 later"), sample(3, 0.1, "500 no"), sample(4, 5.0)]
    found = outcome_of(samples, asks)
    assert (found.with_slo, found.met, found.refused, found.failed, found.last_s) == (4, 1, 1, 1, 6.0)
    assert found.ttft_s == {"light": [1.9, 2.1], "heavy": [5.0]}
    both = together([found, found])
    assert (both.with_slo, both.met, both.refused, both.failed, both.last_s) == (8, 2, 2, 2, 6.0)
    assert both.ttft_s["light"] == [1.9, 2.1, 1.9, 2.1]


def test_prompts_are_new_in_every_cell_and_carry_the_deadline() -> None:
    served = Served(RuntimeApi("http://nowhere", ""), {"heavy": Endpoint("http://nowhere", "m")}, TEXT, "s")
    ask = Ask(0.0, "heavy", "h1", 300, 8, slo_s=1.5)
    first = served._prompt(0, ask)
    served._cells += 1
    again = served._prompt(0, ask)
    assert first.messages[0] == again.messages[0] and first.messages[1] != again.messages[1]
    assert 250 < len(TEXT.prompt_ids(first.messages)) <= 300
    assert first.headers == (("x-slo-ttft-ms", "1500.0"),)
    assert served._prompt(0, short_burst()[0]).headers == ()


def test_a_switch_waits_for_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "SWITCH_POLL_S", 0.0)
    seen = iter((False, False, True))
    calls: list[tuple[str, Any]] = []

    def call(self: RuntimeApi, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        calls.append((path, body))
        return {} if method == "POST" else {"policies": [{"name": "fairness", "enabled": next(seen)}]}

    monkeypatch.setattr(RuntimeApi, "call", call)
    RuntimeApi("http://nowhere", "").switch("fairness", True)
    assert calls[0] == ("/runtime/policy", {"name": "fairness", "enabled": True})
    assert len(calls) == 4
    monkeypatch.setattr(servers, "SWITCH_TIMEOUT_S", 0.0)
    with pytest.raises(ServerError, match="fairness"):
        RuntimeApi("http://nowhere", "").switch("fairness", False)
