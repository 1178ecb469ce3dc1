"""Recorded sessions as chat requests: text where the recording has it, filler of the recorded length where not.

A workload is a set of `benchmarks.trace_source` or `benchmarks.identity_source`, or one of the team below
on real questions. Sets of both kinds are read as they are, so that any folder in that format will do.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine.text import Message, ModelText, as_messages
from benchmarks.identity_source import Talk, load_talks
from benchmarks.trace_format import TraceError
from benchmarks.trace_source import Recording, load_set, read_records


@dataclass(frozen=True, slots=True)
class Turn:
    """One request as recorded: `system` is its anchor, `messages` what follows."""

    agent: str
    system: str
    messages: tuple[Message, ...]
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Script:
    """A session: its requests in their order."""

    session: str
    turns: tuple[Turn, ...]

    @property
    def agents(self) -> set[str]:
        return {turn.agent for turn in self.turns}


WORKLOADS = {
    "gsm8k-agentverse": ("text", "aegis_mas/gsm8k_agentverse"),
    "gsm8k-debate": ("text", "aegis_mas/gsm8k_debate"),
    "humaneval-dylan": ("text", "aegis_mas/humaneval_dylan"),
    "mt-bench": ("questions", "tasks/mt_bench.jsonl"),
    "gaia-like-magentic": ("text", "magentic_assistantbench"),
    "tau-bench": ("text", "taubench_airline"),
    "captain-agent": ("lengths", "whowhen_captainagent"),
}
"""Name -> (kind, set). Any other name is taken as a set, with its text if it has some, else by its lengths."""

TEAM = {
    "planner": "You are the planner of a writing team. Say in a few lines what a good answer has to contain.",
    "writer": "You are the writer of a writing team. Follow the plan and write the whole answer.",
    "critic": "You are the critic of a writing team. Name what is wrong or missing in the last answer.",
    "editor": "You are the editor of a writing team. Give the final answer, with what the critic asked for.",
}
"""Who speaks on each turn of an MT-Bench question, in this order. The questions are real, the team is ours."""

TEAM_ANSWER_TOKENS = 160


def load_workload(source: Path, name: str, text: ModelText) -> list[Script]:
    """Raises TraceError: no such set (the known ones are listed), or a malformed record."""
    kind, place = WORKLOADS.get(name, ("", name))
    if kind == "questions":
        return list(_team_scripts(source / place, text))
    if kind != "lengths":
        try:
            return [_from_talk(talk, text) for talk in load_talks(source, [place])[place]]
        except TraceError:
            if kind:
                raise
    systems = _systems(source / place.partition("/")[0] / "systems.jsonl")
    return [_from_lengths(recording, systems, text) for recording in load_set(source, place)]


def _from_talk(talk: Talk, text: ModelText) -> Script:
    turns = []
    for call in talk.calls:
        messages = as_messages(call.body)
        system = messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else ""
        if call.body.get("tools"):
            # The embedded model's template prints no tools, so the definitions stand in the system prompt.
            system = "\n".join([system, *(json.dumps(tool, sort_keys=True) for tool in call.body["tools"])])
        turns.append(Turn(call.agent, system, tuple(messages), text.count(call.answer)))
    return Script(talk.session, tuple(turns))


def _systems(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    return {str(record.get("system_id")): str(record.get("system") or "") for _, record in read_records(path)}


def _from_lengths(recording: Recording, systems: dict[str, str], text: ModelText) -> Script:
    """One conversation that only grows, the same text for every agent, behind each agent's own system prompt."""
    longest = max(step.input_tokens for step in recording.steps)
    conversation = text.filler(recording.session, longest)
    turns = []
    for step in recording.steps:
        system = systems.get(step.anchor, "")
        history = text.head(conversation, max(step.input_tokens - text.count(system), 1))
        turns.append(Turn(step.agent, system, ({"role": "user", "content": history},), step.output_tokens))
    return Script(recording.session, tuple(turns))


def _team_scripts(path: Path, text: ModelText) -> Iterator[Script]:
    for _, record in read_records(path):
        said: list[Message] = []
        turns: list[Turn] = []
        for number, question in enumerate(record["turns"]):
            said.append({"role": "user", "content": str(question)})
            for agent, system in TEAM.items():
                turns.append(Turn(agent, system, tuple(said), TEAM_ANSWER_TOKENS))
                answer = text.filler(f"{record['id']} {number} {agent}", TEAM_ANSWER_TOKENS)
                said.append({"role": "user", "content": f"{agent}: {answer}"})
        yield Script(str(record["id"]), tuple(turns))


@dataclass(frozen=True, slots=True)
class Anchors:
    """(low, high) gives every agent a system prompt of a length of its own in that range: filler, and behind it
    what was recorded. None leaves them as recorded."""

    tokens: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        return "recorded" if self.tokens is None else f"{self.tokens[0]}-{self.tokens[1]}"

    @property
    def mean_tokens(self) -> float:
        return sum(self.tokens) / 2 if self.tokens else 0.0


def teams_for(agents: int, anchors: Anchors, cache_tokens: int, pressure: float) -> int:
    """How many teams of `agents` agents have anchors of `pressure` times the cache together; 1 as recorded."""
    if anchors.tokens is None or not agents:
        return 1
    return max(1, round(pressure * cache_tokens / (agents * anchors.mean_tokens)))


def numbered(
    scripts: list[Script], teams: int, order: Callable[[list[Script]], None]
) -> Iterator[tuple[str, int, Script]]:
    """(session, team from 1, script) for ever; `order` shuffles each pass."""
    team = itertools.cycle(range(1, teams + 1))
    for round_number in itertools.count():
        passed = list(scripts)
        order(passed)
        for script in passed:
            yield f"{script.session}#{round_number}", next(team), script
