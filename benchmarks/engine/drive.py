"""Sends a schedule's requests to one endpoint, in a closed or an open loop, and times what comes back."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx

from benchmarks.engine.schedule import Prompt, Schedule

REQUEST_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`url` up to and without /v1. `names_sessions`: say which session and agent a request is of, and its end."""

    url: str
    model: str
    key: str = ""
    names_sessions: bool = True

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"} if self.key else {}


@dataclass(frozen=True, slots=True)
class Sample:
    """One request as the client saw it. Times are seconds; `start_s` from the cell's start; an open loop counts
    `ttft_s` and `e2e_s` from when the request was due, late or not."""

    position: int
    agent: str
    start_s: float
    ttft_s: float
    e2e_s: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    replica: str = ""
    error: str = ""


def payload(prompt: Prompt, model: str) -> dict[str, Any]:
    """The body of a request: exactly so many tokens, greedily, as a stream with usage."""
    return {
        "model": model,
        "messages": list(prompt.messages),
        "max_tokens": prompt.max_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


class Sender(Protocol):
    """Where the loops below send requests."""

    def now_s(self) -> float:
        """Seconds since the loop's start."""

    async def send(self, prompt: Prompt, due_s: float) -> Sample: ...


@dataclass(slots=True)
class Answer:
    first_s: float | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    replica: str = ""
    error: str = ""


async def drive(
    endpoint: Endpoint, schedule: Schedule, in_flight: int, times: Sequence[float] | None, done: Callable[[], None]
) -> list[Sample]:
    """All samples, in the order in which they were sent. times: when each is due; None: a closed loop, in which the
    next request is sent as soon as fewer than `in_flight` are unanswered."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=endpoint.url, headers=endpoint.headers, timeout=REQUEST_TIMEOUT_S, limits=limits, trust_env=False
    ) as client:
        sender = HttpSender(client, endpoint, done)
        if times is None:
            samples = await closed_loop(sender, schedule.prompts, in_flight)
        else:
            samples = await open_loop(sender, schedule.prompts, times)
    return sorted(samples, key=lambda sample: sample.start_s)


async def closed_loop(sender: Sender, prompts: Sequence[Prompt], in_flight: int) -> list[Sample]:
    """In the schedule's order; a session's request is sent when the one before is answered."""
    ended = [asyncio.Event() for _ in prompts]
    queue = iter(prompts)
    samples: list[Sample] = []

    async def work() -> None:
        for prompt in queue:
            if prompt.after is not None:
                await ended[prompt.after].wait()
            samples.append(await sender.send(prompt, sender.now_s()))
            ended[prompt.position].set()

    await asyncio.gather(*(work() for _ in range(in_flight)))
    return samples


async def open_loop(sender: Sender, prompts: Sequence[Prompt], times: Sequence[float]) -> list[Sample]:
    """Each at its time; a session's request also waits for the one before, and that wait counts."""
    ended = [asyncio.Event() for _ in prompts]

    async def one(prompt: Prompt, due_s: float) -> Sample:
        await asyncio.sleep(max(0.0, due_s - sender.now_s()))
        if prompt.after is not None:
            await ended[prompt.after].wait()
        try:
            return await sender.send(prompt, due_s)
        finally:
            ended[prompt.position].set()

    return list(await asyncio.gather(*(one(p, due_s) for p, due_s in zip(prompts, times, strict=True))))


class HttpSender:
    """A `Sender` to one endpoint; `done` is told of each answer."""

    def __init__(self, client: httpx.AsyncClient, endpoint: Endpoint, done: Callable[[], None]) -> None:
        self._client = client
        self._endpoint = endpoint
        self._done = done
        self._zero_s = time.perf_counter()

    def now_s(self) -> float:
        return time.perf_counter() - self._zero_s

    async def send(self, prompt: Prompt, due_s: float) -> Sample:
        answer = Answer()
        try:
            await self._stream(prompt, answer)
        except (httpx.HTTPError, ValueError) as error:
            answer.error = f"{type(error).__name__}: {error}"[:200]
        end_s = self.now_s()
        if prompt.final and self._endpoint.names_sessions and not answer.error:
            await self._end_session(prompt.session)
        self._done()
        details = answer.usage.get("prompt_tokens_details") or {}
        return Sample(
            position=prompt.position,
            agent=prompt.agent,
            start_s=round(due_s, 4),
            ttft_s=round((answer.first_s or end_s) - due_s, 4),
            e2e_s=round(end_s - due_s, 4),
            prompt_tokens=int(answer.usage.get("prompt_tokens") or 0),
            cached_tokens=int(details.get("cached_tokens") or 0),
            completion_tokens=int(answer.usage.get("completion_tokens") or 0),
            replica=answer.replica,
            error=answer.error or ("" if answer.usage else "no usage in the answer"),
        )

    async def _stream(self, prompt: Prompt, answer: Answer) -> None:
        body = payload(prompt, self._endpoint.model)
        headers = dict(prompt.headers)
        if self._endpoint.names_sessions:
            headers |= {"x-session-id": prompt.session, "x-claude-code-agent-id": prompt.agent}
        async with self._client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
            if response.status_code != 200:
                answer.error = f"{response.status_code} {(await response.aread()).decode(errors='replace')[:160]}"
                return
            answer.replica = response.headers.get("x-agent-runtime-replica", "")
            async for line in response.aiter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    self._take(json.loads(line[6:]), answer)

    def _take(self, chunk: dict[str, Any], answer: Answer) -> None:
        """The first chunk with a token's text, or with the end, is the first token."""
        choices = chunk.get("choices") or []
        if "error" in chunk:
            answer.error = str(chunk["error"])[:160]
        if choices and answer.first_s is None:
            choice = choices[0]
            if choice.get("delta", {}).get("content") or choice.get("finish_reason"):
                answer.first_s = self.now_s()
        answer.usage = chunk.get("usage") or answer.usage

    async def _end_session(self, session: str) -> None:
        event = {"type": "session_ended", "session_id": session}
        try:
            await self._client.post("/runtime/events", json=event)
        except httpx.HTTPError:
            return  # the event is advice; the session ages out without it
