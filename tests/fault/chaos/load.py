"""Callers that never stop, each a session of two agents, and what became of each of their requests.

Every prompt has a length of its own, so that an answer's `prompt_tokens` tells whose it is; at temperature 0 its
text is compared with that of a calm run too.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

CLIENT_TIMEOUT_S = 120.0
MAX_TOKENS = 8
OK, WRONG, VARIED, CUT, UNANSWERED = "ok", "wrong", "varied", "cut", "unanswered"

Answer = tuple[int, str]
"""(prompt tokens, text)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`kind`: ok; wrong (another prompt's answer); varied (its own prompt, another text than in calm); cut (a stream
    that ended with an error event); unanswered (not within `CLIENT_TIMEOUT_S`, or no end); else the failure's name."""

    kind: str
    began_s: float
    ended_s: float


@dataclass
class Load:
    """`calm` first; then `start`, `stop`. `prefix` makes sessions of this run its own."""

    url: str
    model: str
    callers: int
    turns: int
    prefix: str = "chaos"
    expected: dict[tuple[int, int], Answer] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def calm(self) -> None:
        """One request after the other; their answers are what is expected from then on."""

        async def run() -> None:
            async with self._client() as client:
                for caller in range(self.callers):
                    for turn in range(self.turns):
                        answer = await self._ask(client, caller, turn)
                        if not isinstance(answer, tuple):
                            raise RuntimeError(f"a calm request failed: {answer}")
                        self.expected[caller, turn] = answer

        asyncio.run(run())
        if len({tokens for tokens, _ in self.expected.values()}) != len(self.expected):
            raise RuntimeError("two prompts are of one length")

    def start(self) -> None:
        self.outcomes.clear()
        self._stop.clear()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()

    def stop(self) -> None:
        """Waits for the requests under way; each of them ends by its own time limit at the latest."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def answered(self) -> int:
        return sum(outcome.kind in (OK, VARIED) for outcome in list(self.outcomes))

    def kinds(self) -> Counter[str]:
        return Counter(outcome.kind for outcome in self.outcomes)

    def _client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(base_url=self.url, timeout=CLIENT_TIMEOUT_S, limits=limits, trust_env=False)

    async def _run(self) -> None:
        async with self._client() as client:
            await asyncio.gather(*(self._call(client, caller) for caller in range(self.callers)))

    async def _call(self, client: httpx.AsyncClient, caller: int) -> None:
        turn = 0
        while not self._stop.is_set():
            began_s = time.monotonic()
            answer = await self._ask(client, caller, turn)
            kind = answer if isinstance(answer, str) else self._judge(answer, caller, turn)
            self.outcomes.append(Outcome(kind, began_s, time.monotonic()))
            turn = (turn + 1) % self.turns
            # A client that is refused doesn't hammer.
            await asyncio.sleep(0.0 if kind in (OK, VARIED) else 0.2)

    def _judge(self, answer: Answer, caller: int, turn: int) -> str:
        expected = self.expected.get((caller, turn), answer)
        if answer[0] != expected[0]:
            return WRONG
        return OK if answer[1] == expected[1] else VARIED

    async def _ask(self, client: httpx.AsyncClient, caller: int, turn: int) -> Answer | str:
        stream = turn % 2 == 1
        body = {
            "model": self.model,
            "messages": self._messages(caller, turn),
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": stream,
            **({"stream_options": {"include_usage": True}} if stream else {}),
        }
        headers = {"x-session-id": f"{self.prefix}-{caller}"}
        try:
            async with asyncio.timeout(CLIENT_TIMEOUT_S):
                answer = await client.post("/v1/chat/completions", json=body, headers=headers)
        except (TimeoutError, httpx.TimeoutException):
            return UNANSWERED
        except httpx.HTTPError as error:
            return type(error).__name__
        if answer.status_code != 200:
            return f"{answer.status_code}{'' if _has_shape(answer) else ' (not in shape)'}"
        return _streamed(answer.text) if stream else _whole(answer.json())

    def _messages(self, caller: int, turn: int) -> list[dict[str, str]]:
        system = f"You are agent {turn % 2} of this house. " + "Answer in a few plain words and add nothing. " * 12
        words = "item " * (1 + caller * self.turns + turn)
        return [{"role": "system", "content": system}, {"role": "user", "content": f"List: {words}"}]


def _has_shape(answer: httpx.Response) -> bool:
    try:
        return set(answer.json()["error"]) == {"message", "type", "param", "code"}
    except (ValueError, KeyError, TypeError):
        return False


def _whole(content: dict[str, Any]) -> Answer:
    return int(content["usage"]["prompt_tokens"]), str(content["choices"][0]["message"]["content"])


def _streamed(text: str) -> Answer | str:
    """The stream's answer, `cut` if it ends with an error event, `unanswered` if it has no end."""
    events = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        return UNANSWERED
    tokens, said = 0, ""
    for event in events[:-1]:
        content = json.loads(event)
        if "error" in content:
            return CUT
        if content.get("usage"):
            tokens = int(content["usage"]["prompt_tokens"])
        for choice in content["choices"]:
            said += choice["delta"].get("content") or ""
    return tokens, said
