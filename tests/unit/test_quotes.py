"""Sessions of prompts that are written anew each time: found by what they repeat, never by common wording."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.identity import IdentityResolver, Resolved
from serve_app.recognition.answers import AnswerText
from serve_app.recognition.quotes import (
    ALWAYS_READ,
    MAX_HANDED_OVER,
    MAX_LINES_PER_TEXT,
    MAX_PROMPT_CHARS,
    MAX_WAITING,
    QuoteIndex,
    lines_of_answer,
    lines_of_messages,
)

FORM = "Solve what you are given below and nothing else.\n[task]:\n{}\nRepeat the task before your solution."
TASKS = ["Count the wooden boats in the northern harbour.", "Weigh all the apples of the second harvest."]
ROLES = ["You are the planner of this team.", "You are the coder of this team.", "You are the critic of this team."]


class Team:
    """Sends prompts to one resolver and names sessions by the order of their first request."""

    def __init__(self) -> None:
        self.resolver = IdentityResolver(b"secret")
        self.names: dict[str, int] = {}

    def send(self, system: str | None, text: str, answer: str = "", tenant: str = "t", **fields: Any) -> int:
        messages = [{"role": "system", "content": system}] if system else []
        return self.send_messages([*messages, {"role": "user", "content": text}], answer, tenant, **fields)

    def send_messages(self, messages: list[dict[str, Any]], answer: str = "", tenant: str = "t", **fields: Any) -> int:
        resolved = self.resolver.resolve(tenant, {}, {"messages": messages, **fields})
        self.resolver.accept(resolved)
        self.resolver.answered(resolved, answer)
        return self.named(resolved)

    def named(self, resolved: Resolved) -> int:
        return self.names.setdefault(resolved.identity.session, len(self.names))


@pytest.fixture
def team() -> Team:
    return Team()


def test_an_agent_that_is_handed_an_answer_is_in_its_session(team: Team) -> None:
    first = team.send(ROLES[0], TASKS[0], "1. Ask the harbour master for the list of boats.")
    other = team.send(ROLES[0], TASKS[1], "1. Borrow the scales of the market hall first.")
    assert first != other
    assert team.send(ROLES[1], "Carry out:\n- Ask the harbour master for the list of boats\nNow.") == first
    assert team.send(ROLES[1], "Carry out:\n- Borrow the scales of the market hall first\nNow.") == other


GREETING = "Hello! How can I assist you today?"


@pytest.mark.parametrize("system", [None, ROLES[0]])
def test_clients_that_open_with_a_greeting_that_a_model_once_gave_are_strangers(team: Team, system: str | None) -> None:
    """A page's own, which no model of theirs said; all of them were taken for the session of whoever was told it."""
    first = team.send(system, "hi", GREETING)
    leading = [{"role": "system", "content": system}] if system else []
    opening = [*leading, {"role": "assistant", "content": GREETING}]
    said = [first]
    for task in ("Is it windy?", "Is it wet?", "Is it cold?"):
        said.append(team.send_messages([*opening, {"role": "user", "content": task}], f"{task} I would not know."))
    assert len(set(said[1:])) == 3


def test_a_greeting_is_nobodys_answer_but_its_agents_own(team: Team) -> None:
    first = team.send(ROLES[0], "hi", GREETING)
    turns = [{"role": "assistant", "content": GREETING}, {"role": "user", "content": "Is it windy?"}]
    assert team.send_messages([{"role": "system", "content": ROLES[1]}, *turns]) != first


def test_a_client_that_sends_the_newest_turns_alone_goes_on(team: Team) -> None:
    """Its history begins with an answer each time."""
    answers = ["It has been windy ever since this morning.", "Rain is what they expect for the afternoon."]
    first = team.send(ROLES[0], "Is it windy?", answers[0])
    turns = [{"role": "assistant", "content": answers[0]}, {"role": "user", "content": "And wet?"}]
    leading = {"role": "system", "content": ROLES[0]}
    assert team.send_messages([leading, *turns], answers[1]) == first
    turns = [{"role": "assistant", "content": answers[1]}, {"role": "user", "content": "And cold?"}]
    assert team.send_messages([leading, *turns], "No.") == first


def test_an_answer_of_two_sessions_says_nothing(team: Team) -> None:
    line = "I would be glad to help you with that question."
    sessions = {team.send(ROLES[0], task, line) for task in TASKS}
    assert team.send(ROLES[1], f"He said: {line}") not in sessions


PLAN = "1. Ask the harbour master for the list of boats.\n2. Count those of wood, from north to south."


def run(team: Team, answer: str = PLAN) -> tuple[int, int]:
    """A planner's and a coder's sessions, the coder handed what the planner answered."""
    return team.send(ROLES[0], TASKS[0], answer), team.send(ROLES[1], f"Carry out:\n{answer}")


def test_runs_that_were_answered_alike_stay_whole_and_apart(team: Team) -> None:
    runs = [run(team) for _ in range(2 * MAX_WAITING)]
    assert all(planner == coder for planner, coder in runs)
    assert len({planner for planner, _ in runs}) == len(runs)


def test_an_answer_that_two_wait_for_joins_neither(team: Team) -> None:
    run(team)
    waiting = {team.send(ROLES[0], TASKS[0], PLAN) for _ in range(2)}
    assert team.send(ROLES[1], f"Carry out:\n{PLAN}") not in waiting


def test_a_session_waits_no_longer_once_its_agent_goes_on(team: Team) -> None:
    run(team)
    opening = {"role": "user", "content": TASKS[1]}
    first = team.send(ROLES[0], TASKS[1], PLAN)
    said = {"role": "assistant", "content": "Something else."}
    system = {"role": "system", "content": ROLES[0]}
    assert team.send_messages([system, opening, said, {"role": "user", "content": "Go on."}]) == first
    planner, coder = run(team)
    assert planner == coder != first


def test_a_common_line_of_a_longer_answer_joins_nobody(team: Team) -> None:
    line = "from typing import Iterable, Iterator"
    run(team, line)
    waiting = team.send(ROLES[0], TASKS[0], f"{line}\n{PLAN}")
    assert team.send(ROLES[2], f"Review this:\n{line}\nand nothing of what came before it") != waiting


def test_a_task_in_a_tool_call_is_handed_over(team: Team) -> None:
    text = AnswerText()
    function = {"name": "coder", "arguments": '{"task": "Count the wooden boats, from north to south."}'}
    text.add_response({"choices": [{"message": {"content": None, "tool_calls": [{"function": function}]}}]})
    first = team.send(ROLES[0], TASKS[0], str(text))
    assert team.send(ROLES[1], "Your task:\nCount the wooden boats, from north to south.") == first


def test_known_agents_with_one_task_share_a_session(team: Team) -> None:
    for role in ROLES:
        team.send(role, FORM.format(f"A task of {role} to warm up with."))
        team.send(role, FORM.format(f"Another task, again for {role} alone."))
    sessions = [[team.send(role, FORM.format(task)) for role in ROLES] for task in TASKS]
    assert [len(set(found)) for found in sessions] == [1, 1]
    assert sessions[0][0] != sessions[1][0]


def test_strangers_of_one_framework_never_join_by_its_wording(team: Team) -> None:
    sessions = {team.send(f"You are agent {n}.", FORM.format(f"Task number {n} is another one.")) for n in range(20)}
    assert len(sessions) == 20


def test_equal_openings_of_one_agent_stay_apart(team: Team) -> None:
    assert len({team.send(ROLES[0], FORM.format(TASKS[0])) for _ in range(5)}) == 5


def test_equal_openings_are_told_apart_by_their_answers(team: Team) -> None:
    """Whoever goes on with an answer goes on with the session that got it, not with the oldest one."""
    answers = ["Then let us begin with the northern harbour.", "Then let us begin with the southern harbour."]
    opening = {"role": "user", "content": TASKS[0]}
    sessions = [team.send_messages([opening], answer) for answer in answers]
    for answer, session in reversed(list(zip(answers, sessions, strict=True))):
        history = [opening, {"role": "assistant", "content": answer}, {"role": "user", "content": "Go on."}]
        assert team.send_messages(history) == session


def test_tenants_never_meet(team: Team) -> None:
    answer = "Ask the harbour master for the list of boats."
    first = team.send(ROLES[0], TASKS[0], answer, tenant="one")
    assert team.send(ROLES[1], answer, tenant="two") != first
    assert team.send(ROLES[1], answer, tenant="one") == first


def test_a_refused_request_leaves_no_lines(team: Team) -> None:
    resolved = team.resolver.resolve("t", {}, {"messages": [{"role": "user", "content": TASKS[0]}]})
    team.resolver.refuse(resolved)
    team.resolver.accept(resolved)
    team.resolver.answered(resolved, "An answer that was never given to anyone.")
    assert len(team.resolver.quotes) == 0


def test_a_declared_session_is_quoted_as_well(team: Team) -> None:
    first = team.send(ROLES[0], TASKS[0], "Ask the harbour master for the list of boats.", session_id="s1")
    assert team.send(ROLES[1], "Do: Ask the harbour master for the list of boats.") == first


def test_of_long_messages_the_newest_two_and_the_oldest_are_read() -> None:
    long = "A filling sentence of which there are many. " * (MAX_PROMPT_CHARS // 40)
    messages = [{"role": "user", "content": f"This is what message number {n} alone says. {long}"} for n in range(6)]
    lines = lines_of_messages(messages).values()
    told = [line.split()[5] for line in lines if line.startswith("This is what")]
    assert told == ["5", "0", "4"] and len(told) == ALWAYS_READ


def test_a_colon_ends_what_is_compared_as_a_stop_does() -> None:
    said = "The boats lie at the northern pier."
    assert lines_of_answer(f"The harbour master answers: {said}").keys() >= lines_of_answer(said).keys()


def test_bounded() -> None:
    index = QuoteIndex(max_lines=8, max_agents=4)
    for n in range(50):
        lines = lines_of_messages([{"role": "user", "content": f"This is the line with the number {n}."}])
        index.note("t", lines, f"s{n}", f"a{n}", f"a{n}")
        index.note_answer("t", lines_of_answer(f"This is the answer with the number {n}."), f"s{n}", f"a{n}")
    assert len(index) == 8 and len(index._homes) == 4
    for n in range(MAX_HANDED_OVER + 3):
        index.note_answer("t", lines_of_answer("The same answer in every session."), f"s{n}", "a")
    assert len(index._handed_over) == MAX_HANDED_OVER
    many = "\n".join(f"A line of some length, number {n}" for n in range(10_000))
    assert len(lines_of_answer(many)) == MAX_LINES_PER_TEXT


WIDE = [
    ("请为第{}组规划旅行。", "第{}组乘夜间火车前往旧港口，停留两天。再坐船返回。", "请检查以下计划：{}请简短回答。"),
    (
        "第{}班の旅行を計画してください。",
        "第{}班は夜行列車で古い港へ行き、二日間滞在します。",
        "次の計画を確認してください：{}以上。",
    ),
    (
        "{}조의 여행을 계획해 주세요.",
        "{}조는 야간 열차를 타고 옛 항구로 가서 이틀 동안 머뭅니다.",
        "계획을 확인하세요: {}",
    ),
]


@pytest.mark.parametrize(("task", "answer", "handed_over"), WIDE)
def test_scripts_that_say_more_with_fewer_signs(team: Team, task: str, answer: str, handed_over: str) -> None:
    """Their stops have no space behind them, and a sentence of sixteen signs says as much as one of 24 letters."""
    numbers = "一二三"
    firsts = [team.send(ROLES[0], task.format(n), answer.format(n)) for n in numbers]
    assert len(set(firsts)) == len(numbers)
    assert [team.send(ROLES[1], handed_over.format(answer.format(n))) for n in numbers] == firsts
    assert team.send(ROLES[1], handed_over.format("好的。")) not in firsts
