"""Does the time to an answer tell one tenant what another has asked? Against a running server with keys.

`python -m benchmarks.tenant_timing --url URL --key KEY1 --other KEY2 [--rounds N] [--json]`: tenant 1 warms a prompt
that is new in each round; then tenant 2 sends the same prompt, and one of the same length that nobody has sent, in
random order. `p` is of a permutation test on the difference of the two means (two-sided): a small one means that
the other's cache shows. For scale, `warm_s` is tenant 1's own second request.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from typing import Any

import httpx

WORDS = ("harbour", "ledger", "anchor", "window", "garden", "signal", "copper", "valley", "engine", "letter")
PROMPT_WORDS = 400
PERMUTATIONS = 10_000


def prompt(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=PROMPT_WORDS))


class Caller:
    """Requests of one tenant; each is a session of its own."""

    def __init__(self, url: str, key: str) -> None:
        headers = {"authorization": f"Bearer {key}"}
        self._client = httpx.Client(base_url=url, headers=headers, timeout=300.0, trust_env=False)
        self._model = self._client.get("/v1/models").raise_for_status().json()["data"][0]["id"]

    def ask(self, text: str) -> tuple[float, int]:
        """Seconds to the whole answer of one token, and cached tokens. Raises httpx.HTTPStatusError."""
        body = {"model": self._model, "max_tokens": 1, "messages": [{"role": "system", "content": text}]}
        body["messages"].append({"role": "user", "content": "Go on."})
        began_s = time.perf_counter()
        answer = self._client.post("/v1/chat/completions", json=body).raise_for_status()
        took_s = time.perf_counter() - began_s
        return took_s, int(answer.headers["x-agent-runtime-cached-tokens"])


def p_value(one: list[float], other: list[float], rng: random.Random) -> float:
    """Two-sided permutation test on the difference of means."""
    observed = abs(statistics.fmean(one) - statistics.fmean(other))
    pool = [*one, *other]
    extreme = 0
    for _ in range(PERMUTATIONS):
        rng.shuffle(pool)
        difference = statistics.fmean(pool[: len(one)]) - statistics.fmean(pool[len(one) :])
        extreme += abs(difference) >= observed
    return (extreme + 1) / (PERMUTATIONS + 1)


def measure(first: Caller, second: Caller, rounds: int, rng: random.Random) -> dict[str, Any]:
    warm: list[float] = []
    same: list[float] = []
    fresh: list[float] = []
    hits = 0
    for _ in range(rounds):
        text = prompt(rng)
        first.ask(text)
        warm.append(first.ask(text)[0])
        turns = [(same, text), (fresh, prompt(rng))]
        rng.shuffle(turns)
        for times, asked in turns:
            took_s, cached = second.ask(asked)
            times.append(took_s)
            hits += cached
    means = {"warm_s": warm, "same_as_the_others_s": same, "new_s": fresh}
    return {
        "rounds": rounds,
        **{name: round(statistics.fmean(times), 4) for name, times in means.items()},
        "cached_tokens_over_tenants": hits,
        "p": round(p_value(same, fresh, rng), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--key", required=True)
    parser.add_argument("--other", required=True)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(
        Caller(options.url, options.key),
        Caller(options.url, options.other),
        options.rounds,
        random.Random(options.seed),
    )
    print(json.dumps(found) if options.json else "\n".join(f"{name}: {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
