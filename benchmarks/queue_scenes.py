"""Who asks what and when in `benchmarks.gateway_queue`, and what came of it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

ALONE, NONE = "alone", "none"
"""Beside names of policies: the light tenant without the heavy one, and no policy."""

SWITCHED = ("fairness", "deadline")
"""The policies that a server's operator switches between cells."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: when, whose, how long, and what it wants. `anchor_tokens` lead its prompt."""

    at_s: float
    tenant: str
    agent: str
    prompt_tokens: int
    output_tokens: int
    anchor_tokens: int = 0
    slo_s: float | None = None
    priority: int = 0


@dataclass(slots=True)
class Outcome:
    """TTFTs in seconds by tenant; what was refused, what failed; how many deadlines were met of those asked for."""

    ttft_s: dict[str, list[float]] = field(default_factory=dict)
    refused: int = 0
    with_slo: int = 0
    met: int = 0
    last_s: float = 0.0
    failed: int = 0

    def quantile(self, tenant: str, share: float) -> float:
        values = sorted(self.ttft_s[tenant])
        return values[min(len(values) - 1, int(share * len(values)))]

    def mean(self, tenant: str) -> float:
        return sum(self.ttft_s[tenant]) / len(self.ttft_s[tenant])


def flood(seed: int, heavy: bool = True) -> list[Ask]:
    """A tenant with a request every two seconds, beside one that sends 400 in 20 s, far more than is served."""
    rng = random.Random(seed)
    light = [Ask(2.0 * n + rng.random(), "light", "a", 600, 32) for n in range(100)]
    asks = [Ask(20.0 * rng.random(), "heavy", f"h{n % 6}", 800, 64) for n in range(400)] if heavy else []
    return sorted([*light, *asks], key=lambda ask: ask.at_s)


def deadlines(seed: int) -> list[Ask]:
    """Bursts of 24 requests every 6 s, a little more than is served; a third allows 1.5 s, a third 5 s."""
    rng = random.Random(seed)
    slos = (1.5, 5.0, None)
    return sorted(
        (
            Ask(6.0 * burst + rng.random(), "t", f"a{n % 6}", 1200, 48, slo_s=slos[rng.randrange(3)])
            for burst in range(20)
            for n in range(24)
        ),
        key=lambda ask: ask.at_s,
    )


SHORT_PROMPT, SHORT_ANSWER = 300, 8
"""Tokens, for an engine that computes a few hundred a second."""

HEAVY_REQUESTS, LIGHT_REQUESTS = 48, 12
BURST, BURSTS = 24, 2


def short_flood(served_per_s: float, seed: int, heavy: bool = True) -> list[Ask]:
    """For an engine that serves so many requests a second: a tenant with a request now and then for as long as the
    other one's take, who sends them at three times the rate at which they are served."""
    rng = random.Random(seed)
    lasts_s = HEAVY_REQUESTS / served_per_s
    step_s = lasts_s / LIGHT_REQUESTS
    light = [_short(step_s * (n + rng.random()), "light", "a") for n in range(LIGHT_REQUESTS)]
    asks = [_short(lasts_s / 3.0 * rng.random(), "heavy", f"h{n % 6}") for n in range(HEAVY_REQUESTS)] if heavy else []
    return sorted([*light, *asks], key=lambda ask: ask.at_s)


def short_deadlines(served_per_s: float, seed: int) -> list[Ask]:
    """Bursts that come a little faster than they are served; a third of the requests allows a quarter of the time
    that a burst takes, a third five sixths of it, a third says nothing."""
    rng = random.Random(seed)
    takes_s = BURST / served_per_s
    slos = (takes_s / 4.0, takes_s * 5.0 / 6.0, None)
    return sorted(
        (
            _short(0.9 * takes_s * burst + rng.random(), "heavy", f"a{n % 6}", slos[n % 3])
            for burst in range(BURSTS)
            for n in range(BURST)
        ),
        key=lambda ask: ask.at_s,
    )


def short_burst() -> list[Ask]:
    """What an engine's rate is told from: as many requests as a burst has, at once."""
    return [_short(0.0, "heavy", f"h{n % 6}") for n in range(BURST)]


def _short(at_s: float, tenant: str, agent: str, slo_s: float | None = None) -> Ask:
    return Ask(at_s, tenant, agent, SHORT_PROMPT, SHORT_ANSWER, slo_s=slo_s)
