"""The role at the head of a user's message, in the forms and languages that prompts have; a task is none."""

from __future__ import annotations

import pytest

from serve_app.identity import IdentityResolver
from serve_app.recognition.roles import MAX_SEARCHED_CHARS, is_generic, role_of_first_user, short_roles

ROLES = [
    ("You are the planner of a team. Plan it.", "You are the planner of a team"),
    ("You're a planner.\nTask 1", "You're a planner"),
    ("I want you to act as a Linux terminal. ls", "I want you to act as a Linux terminal"),
    ("Assume the role of a planner. Go.", "Assume the role of a planner"),
    ("Your name is Ada. Plan.", "Your name is Ada"),
    ("## Role: Planner\nTask", "Role: Planner"),
    ("# Role\nPlanner\n# Task\nPlan", "Role Planner"),
    ("<role>planner</role> Plan.", "<role>planner"),
    ("System: You are the planner. Plan.", "You are the planner"),
    ("<system>You are the planner.</system> Plan", "You are the planner."),
    ("### Instruction:\nYou are the planner. Plan", "You are the planner"),
    ("[2026-03-09 06:00:31] You are the planner. Plan", "You are the planner"),
    ("Du bist der Planer des Teams. Plane.", "Du bist der Planer des Teams"),
    ("Sie sind eine Planerin. Planen Sie.", "Sie sind eine Planerin"),
    ("Vous êtes le planificateur.\nTâche", "Vous êtes le planificateur"),
    ("Tu es l'inspecteur du pont. Regarde.", "Tu es l'inspecteur du pont"),
    ("Eres el planificador. Planea.", "Eres el planificador"),
    ("Você é um planejador. Planeje.", "Você é um planejador"),
    ("Sei il pianificatore. Pianifica.", "Sei il pianificatore"),
    ("Je bent de planner. Plan.", "Je bent de planner"),
    ("Jesteś planistą. Zaplanuj.", "Jesteś planistą"),
    ("Ты — планировщик. Составь план.", "Ты — планировщик"),
    ("你是一名规划师。\n任务", "你是一名规划师"),
    ("あなたは計画担当です。\n課題", "あなたは計画担当です"),
    ("당신은 계획 담당입니다. 시작", "당신은 계획 담당입니다"),
]
NONE = [
    "You are given three numbers. Sort them.",
    "You are in a game. The roles are: planner, coder.",
    "You are a robot? Tell me.",
    "What is a role: explain it.",
    "Role of women in history. Explain.",
    "Hello there. You are the planner.",
    "Sei pronto. Vai.",
    "Tu es là. Bien.",
    "Sei a casa. Apri la porta.",
    "Eres de Madrid. Dime qué ver.",
    "Du bist da, oder. Sag etwas.",
    "你是谁？",
    "你是一个什么模型？",
    "You are the planner and nothing ends this sentence " + "at all " * 60,
    "",
]


@pytest.mark.parametrize(("text", "role"), ROLES)
def test_a_role_is_read_to_the_end_of_its_sentence(text: str, role: str) -> None:
    assert role_of_first_user([{"role": "user", "content": text}]) == role
    parts = [{"type": "text", "text": text}]
    assert role_of_first_user([{"role": "user", "content": parts}]) == role


@pytest.mark.parametrize("text", NONE)
def test_what_is_no_role(text: str) -> None:
    assert role_of_first_user([{"role": "user", "content": text}]) == ""


def test_only_a_user_gives_one() -> None:
    assert role_of_first_user([{"role": "assistant", "content": ROLES[0][0]}]) == ""


@pytest.mark.parametrize(("text", "role"), ROLES)
def test_it_is_the_agent_whatever_the_task(text: str, role: str) -> None:
    resolver = IdentityResolver(b"secret")
    asked = [f"{text}\nTask {n}" for n in range(2)]
    found = [resolver.resolve("t", {}, {"messages": [{"role": "user", "content": one}]}).identity for one in asked]
    nobody = resolver.resolve("t", {}, {"messages": [{"role": "user", "content": "hi"}]}).identity
    assert found[0].agent == found[1].agent != nobody.agent and found[0].label == role


@pytest.mark.parametrize(
    ("text", "roles"),
    [
        ("Be brief.\nRole: planner\nTask: plan it", ["Role: planner"]),
        ("Be brief. You are the planner. Plan it.", ["You are the planner"]),
        ("## Du bist der Planer.\nYour name is Ada", ["## Du bist der Planer", "Your name is Ada"]),
        ("You are given a task.\nYou are done when it is.", []),
        ("You are the planner of a company that has more to say about it than a few words.", []),
        (" " * MAX_SEARCHED_CHARS + "\nRole: planner", []),
    ],
)
def test_a_role_of_a_few_words_is_found_anywhere_in_a_text(text: str, roles: list[str]) -> None:
    assert list(short_roles(text).values()) == roles


GENERIC = [
    "You are a helpful assistant.",
    "You are a helpful AI assistant\n",
    "you are an assistant",
    "You're a helpful, respectful and honest assistant.",
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    "You are an AI.",
]
SAYING = [
    "You are a helpful travel assistant.",
    "You are a helpful assistant. Answer in French.",
    "You are the helpful assistant of the bridge company.",
    "You are a helpful planner.",
    "Be brief.",
    "",
]


def agent_of(system: str, *said: str) -> str:
    messages = [{"role": "system", "content": system}]
    messages += [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(said)]
    return IdentityResolver(b"secret").resolve("t", {}, {"messages": messages}).identity.agent


@pytest.mark.parametrize("system", GENERIC)
def test_a_system_text_that_says_nothing_does_not_hide_a_role(system: str) -> None:
    assert is_generic(system)
    nobody = agent_of(system, "hi")
    assert {agent_of(system, text) for text in NONE} == {nobody}
    for text, _ in ROLES:
        assert agent_of(system, f"{text}\nTask 1") == agent_of(system, f"{text}\nTask 2", "Done.", "Go on.") != nobody


@pytest.mark.parametrize("system", SAYING)
def test_a_system_text_that_says_something_is_the_agent(system: str) -> None:
    assert not is_generic(system)
    assert not system or len({agent_of(system, text) for text, _ in ROLES}) == 1
