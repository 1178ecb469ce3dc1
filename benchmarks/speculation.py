"""What starting the next request ahead does to the time of a session, against a running server.

    python -m benchmarks.speculation --url http://127.0.0.1:8000 [--key KEY] [--sessions 12] [--gap 0.5] [--noise 0.0]

A session is a fixed pipeline of four agents. Each has its own system prompt and is asked about the task and the
answer before it; between two requests the client works for `--gap` seconds, as it does to run a tool, to parse or
to test. With `--noise P` that share of the sessions changes the text that is handed on, so that a guess misses.
The server's own switch turns the policy off and on: off, on, off, on, each with tasks of its own. On, what was
learnt before is forgotten, so that the first sessions of each part are the learning and are told apart.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from dataclasses import dataclass
from typing import Any

import httpx

AGENTS = ("planner", "coder", "reviewer", "writer")
RULES = "Answer in plain words, never repeat the question, and keep to what you were told. " * 12
NOUNS = ("invoice", "train", "garden", "kernel", "library", "recipe", "voyage", "bridge", "orchard", "ledger")
LEARNING = 5
"""Sessions until guesses may be started: one shows what stays, one where the task stands, three are judged."""


@dataclass(frozen=True, slots=True)
class Played:
    """One session: its seconds, and the tokens that its requests took."""

    seconds: float
    tokens: int


def ask(client: httpx.Client, model: str, agent: str, text: str, session: str, max_tokens: int) -> tuple[str, int]:
    """The answer, and the tokens of prompt and answer."""
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": max_tokens,
        "temperature": 0,
        "messages": [
            {"role": "system", "content": f"You are the {agent} of a team. {RULES}"},
            {"role": "user", "content": text},
        ],
    }
    said, tokens = [], 0
    with client.stream("POST", "/v1/chat/completions", json=body, headers={"x-session-id": session}) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            if chunk.get("usage"):
                tokens = int(chunk["usage"]["total_tokens"])
            for choice in chunk.get("choices", ()):
                said.append(choice["delta"].get("content") or "")
    return "".join(said), tokens


def play(client: httpx.Client, model: str, number: int, part: str, given: argparse.Namespace) -> Played:
    # Of each part its own: a task that was asked before would be answered from the prefix cache.
    rng = random.Random(f"{given.seed} {part} {number}")
    task = f"Describe how a {rng.choice(NOUNS)} number {number} of {rng.randrange(100_000)} parts is made and kept."
    is_noisy = random.Random(f"{given.seed} {number}").random() < given.noise
    text = f"Task: {task}"
    session = f"speculation-{part}-{given.seed}-{number}"
    began_s = time.perf_counter()
    tokens = 0
    for index, agent in enumerate(AGENTS):
        if index:
            time.sleep(given.gap)
        answer, took = ask(client, model, agent, text, session, given.max_tokens)
        tokens += took
        handed_on = answer[: len(answer) // 2] if is_noisy else answer
        text = f"Task: {task}\nThe {agent} said:\n{handed_on}\nGo on from there."
    seconds = time.perf_counter() - began_s
    client.post("/runtime/events", json={"type": "session_ended", "session_id": session}).raise_for_status()
    return Played(seconds, tokens)


def switch(client: httpx.Client, is_on: bool) -> None:
    """Returns once the gateway has heard of it."""
    client.post("/runtime/policy", json={"name": "speculation", "enabled": is_on}).raise_for_status()
    deadline_s = time.monotonic() + 30.0
    while time.monotonic() < deadline_s:
        if row_of(client)["enabled"] == is_on:
            return
        time.sleep(0.1)
    raise SystemExit("the gateway didn't hear of the switch within 30 s")


def row_of(client: httpx.Client) -> dict[str, Any]:
    rows = client.get("/runtime/state").raise_for_status().json()["policies"]
    found = [row for row in rows if row["name"] == "speculation"]
    if not found:
        raise SystemExit("the server's configuration doesn't list the policy `speculation`")
    return dict(found[0])


def run_part(client: httpx.Client, model: str, is_on: bool, part: str, given: argparse.Namespace) -> dict[str, Any]:
    switch(client, is_on)
    played = [play(client, model, number, part, given) for number in range(given.sessions)]
    # A guess that nobody asks for is only counted when it is given up: the state is read after the last session.
    counts = row_of(client)["counters"] if is_on else {}
    measured = [session.seconds for session in played[LEARNING:]]
    tokens = sum(session.tokens for session in played)
    return {
        "speculation": is_on,
        "sessions": len(played),
        "session_mean_s": round(statistics.fmean(measured), 3),
        "session_median_s": round(statistics.median(measured), 3),
        "learning_mean_s": round(statistics.fmean(session.seconds for session in played[:LEARNING]), 3),
        "tokens": tokens,
        "wasted_share": round(counts.get("wasted_tokens", 0) / tokens, 4),
        **{name: counts.get(name, 0) for name in ("suggested", "joined", "wasted", "not_started", "no_budget")},
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speculation", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--key", default="", help="of an operator, where the server has keys")
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--gap", type=float, default=0.5)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    if given.sessions <= LEARNING:
        parser.error(f"--sessions: {given.sessions} is not allowed; allowed: more than {LEARNING}")
    headers = {"authorization": f"Bearer {given.key}"} if given.key else {}
    with httpx.Client(base_url=given.url, headers=headers, timeout=300.0) as client:
        model = client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
        rows = []
        for number in range(given.rounds):
            for is_on in (False, True):
                rows.append(run_part(client, model, is_on, f"{'on' if is_on else 'off'}{number}", given))
                print(json.dumps(rows[-1]), flush=True)
    means = [statistics.fmean(r["session_mean_s"] for r in rows if r["speculation"] == on) for on in (False, True)]
    print(json.dumps({"off_mean_s": round(means[0], 3), "on_mean_s": round(means[1], 3),
                      "saved_share": round(1.0 - means[1] / means[0], 4)}))  # fmt: skip


if __name__ == "__main__":
    main()
