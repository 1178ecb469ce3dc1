"""Which requests a cell sends, in which order and when."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine.text import ROOM_FOR_TEMPLATE, Message, ModelText
from benchmarks.engine.workloads import Anchors, Script, Turn, numbered
from benchmarks.trace_source import read_records


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request. `after`: position of the session's request before it, None for its first; `headers`: others."""

    position: int
    session: str
    agent: str
    messages: tuple[Message, ...]
    max_tokens: int
    prompt_ids: tuple[int, ...]
    anchor_tokens: int
    after: int | None
    final: bool
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """How a workload is played: `sessions` at a time, of `teams` teams with agents of their own.

    `salt` goes before every prompt and into the names of agents and sessions: what has another salt shares nothing.
    """

    requests: int
    sessions: int
    teams: int
    anchors: Anchors
    max_tokens: int
    max_prompt_tokens: int
    seed: int
    salt: str = ""


@dataclass(frozen=True, slots=True)
class Schedule:
    prompts: tuple[Prompt, ...]
    clipped: int
    """Prompts that were cut to `max_prompt_tokens`."""

    @property
    def mean_prompt_tokens(self) -> float:
        return sum(len(p.prompt_ids) for p in self.prompts) / len(self.prompts)

    @property
    def anchors_tokens(self) -> int:
        """All agents' anchors together, each at its longest."""
        longest: dict[str, int] = {}
        for prompt in self.prompts:
            longest[prompt.agent] = max(longest.get(prompt.agent, 0), prompt.anchor_tokens)
        return sum(longest.values())


def build_schedule(scripts: Sequence[Script], shape: Shape, text: ModelText) -> Schedule:
    """Live sessions take turns as their pauses have it; equal arguments give equal schedules.

    A pause is half a second and 20 ms a token of the recorded answer, times a log-normal factor (as in
    `benchmarks.traces`). It gives the order alone: when requests are sent is the loop's to say.
    """
    rng = random.Random(f"schedule {shape.seed}")
    writer = _Writer(shape, text)
    coming = numbered(list(scripts), shape.teams, rng.shuffle)
    live: list[tuple[float, int, _Live]] = []
    serial = itertools.count()
    now_s = 0.0
    last: dict[str, int] = {}
    prompts: list[Prompt] = []
    while len(prompts) < shape.requests:
        while len(live) < shape.sessions:
            session, team, script = next(coming)
            heapq.heappush(live, (now_s + rng.random(), next(serial), _Live(f"{session}{shape.salt}", team, script)))
        now_s, _, speaker = heapq.heappop(live)
        turn = speaker.script.turns[speaker.at]
        speaker.at += 1
        final = speaker.at == len(speaker.script.turns)
        session = speaker.session
        prompts.append(writer.prompt(len(prompts), session, speaker.team, turn, last.get(session), final))
        last[session] = len(prompts) - 1
        if not final:
            pause_s = (0.5 + 0.02 * turn.output_tokens) * rng.lognormvariate(0.0, 0.5)
            heapq.heappush(live, (now_s + pause_s, next(serial), speaker))
    return Schedule(tuple(prompts), writer.clipped)


@dataclass(slots=True)
class _Live:
    session: str
    team: int
    script: Script
    at: int = 0


class _Writer:
    def __init__(self, shape: Shape, text: ModelText) -> None:
        self._shape = shape
        self._text = text
        self._systems: dict[tuple[str, str], str] = {}
        self.clipped = 0

    def prompt(self, position: int, session: str, team: int, turn: Turn, after: int | None, final: bool) -> Prompt:
        agent = f"{turn.agent}@{team}" if self._shape.teams > 1 else turn.agent
        system = self._system(agent, team, turn.system)
        messages: list[Message] = [{"role": "system", "content": system}] if system else []
        messages += [dict(message) for message in turn.messages]
        if self._shape.salt:
            messages[0]["content"] = f"{self._shape.salt} {messages[0]['content']}"
        ids = self._text.prompt_ids(messages)
        if len(ids) > self._shape.max_prompt_tokens:
            self.clipped += 1
            messages = self._clip(messages)
            ids = self._text.prompt_ids(messages)
        return Prompt(
            position=position,
            session=session,
            agent=f"{agent}{self._shape.salt}",
            messages=tuple(messages),
            max_tokens=max(1, min(turn.output_tokens, self._shape.max_tokens)),
            prompt_ids=tuple(ids),
            anchor_tokens=self._text.count(system),
            after=after,
            final=final,
        )

    def _system(self, agent: str, team: int, recorded: str) -> str:
        """Teams stand for applications: their prompts share nothing from the first line on.

        Filler goes before what was recorded: some recorded prompts have the task in them, and what follows that is no
        two sessions' own.
        """
        known = self._systems.get((agent, recorded))
        if known is not None:
            return known
        size = self._shape.anchors.tokens
        heading = f"Team {team}. " if self._shape.teams > 1 else ""
        system = heading + recorded
        if size is not None:
            wanted = random.Random(f"anchor {agent}").randint(*size)
            filler = self._text.filler(f"anchor {agent}", wanted - self._text.count(system))
            system = f"{heading}{filler}\n{recorded}".strip()
        self._systems[agent, recorded] = system
        return system

    def _clip(self, messages: list[Message]) -> list[Message]:
        """The head of the prompt, so that what it shares with others stays."""
        left = self._shape.max_prompt_tokens
        kept: list[Message] = []
        for message in messages:
            left -= ROOM_FOR_TEMPLATE
            if left <= 0:
                break
            content = self._text.head(message["content"], left)
            kept.append({"role": message["role"], "content": content})
            left -= self._text.count(content)
        return kept


def poisson_times(count: int, rate: float, seed: int) -> list[float]:
    """Seconds from the start; the first request comes at 0."""
    rng = random.Random(f"poisson {seed}")
    times = [0.0]
    while len(times) < count:
        times.append(times[-1] + rng.expovariate(rate))
    return times[:count]


def recorded_times(path: Path, count: int, rate: float, seed: int) -> list[float]:
    """A stretch of recorded arrivals, stretched to the mean rate asked for: the bursts stay.

    Raises:
        TraceError: the file can't be read or is too short.
    """
    stamps = [float(record["ts"]) for _, record in read_records(path)]
    start = random.Random(f"arrivals {seed}").randrange(max(len(stamps) - count, 1))
    stretch = stamps[start : start + count]
    span_s = stretch[-1] - stretch[0]
    factor = (count - 1) / rate / span_s if span_s > 0 else 0.0
    return [(stamp - stretch[0]) * factor for stamp in stretch]
