"""System prompts with a task or a person in them: one agent; with another sentence: another agent."""

from __future__ import annotations

import random
from typing import Any

import pytest

from serve_app.identity import IdentityResolver
from serve_app.recognition import templates
from serve_app.recognition.quotes import QuoteIndex
from serve_app.recognition.templates import MAX_TEXTS, TemplateIndex

TASKS = [f"Find out how the {name} of the old town were paid for." for name in ("bridges", "walls", "wells", "gates")]
PLANNER = "You lead a small group of experts.\nThe problem is:\n{}\nName the two experts that you need."
SOLVER = "Solve this problem by yourself:\n{}\nThis problem can be answered without asking anybody."
DESK = "# Rules of the desk\nHelp travellers to book, change and cancel their trips."
CUSTOMER = (
    "You play a customer who talks to a desk.\nInstruction: {}\nSay one sentence at a time and stay in your role."
    "\nDo not invent what the instruction does not say."
)


class Gateway:
    def __init__(self) -> None:
        self.resolver = IdentityResolver(b"secret")

    def ask(self, system: str, history: list[dict[str, str]], answer: str, headers: dict[str, str]) -> str:
        messages = [{"role": "system", "content": system}, *history]
        resolved = self.resolver.resolve("t", headers, {"messages": messages})
        self.resolver.accept(resolved)
        self.resolver.answered(resolved, answer)
        return resolved.identity.agent

    def send(self, system: str, text: str, session: str | None = None, answer: str = "", **fields: Any) -> str:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        headers = {} if session is None else {"x-session-id": session}
        resolved = self.resolver.resolve("t", headers, {"messages": messages, **fields})
        self.resolver.accept(resolved)
        self.resolver.answered(resolved, answer)
        return resolved.identity.agent


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@pytest.mark.parametrize("declares_sessions", [True, False])
def test_a_task_inside_the_system_prompt_is_a_slot(gateway: Gateway, declares_sessions: bool) -> None:
    planners, solvers = [], []
    for n, task in enumerate(TASKS):
        session = f"s{n}" if declares_sessions else None
        plan = f"- A historian of public works number {n}"
        planners.append(gateway.send(PLANNER.format(task), "Whom do you need?", session, plan))
        solvers.append(gateway.send(SOLVER.format(task), f"Work as:\n{plan}", session))
    assert len(set(planners[1:])) == len(set(solvers[1:])) == 1
    assert planners[1] != solvers[1]


def company(rules: int, role: str, task: str) -> str:
    common = (
        "You are part of the bridge repair company of Lindau.",
        "Always answer in full sentences, and be brief.",
        "Never speak about what the other members of the company earn.",
        "Write all of the numbers in the metric system, please.",
        "Use the words that a builder would use for his own work.",
    )
    return "\n".join((*common[:rules], role, f"Task: {task}."))


@pytest.mark.parametrize("is_history_shared", [True, False])
@pytest.mark.parametrize("declares_sessions", [True, False])
@pytest.mark.parametrize("rules", [2, 5])
@pytest.mark.parametrize("role_text", ["You are the {0} here and do what a {0} does.", "Role: {}", "You are the {}."])
def test_a_team_with_its_task_in_each_system_prompt_has_an_agent_a_role(
    gateway: Gateway, is_history_shared: bool, declares_sessions: bool, rules: int, role_text: str
) -> None:
    """However they hand on what was said, however much of their wording is common and however short a role is."""
    runs = []
    for n in range(5):
        task = f"Repair the bridge called {n * 'x'}y over the river Argen before winter"
        headers = {"x-session-id": f"s{n}"} if declares_sessions else {}
        history = [{"role": "user", "content": f"{task}."}]
        runs.append([])
        for role in ("planner", "coder", "tester"):
            system = company(rules, role_text.format(role), task)
            answer = f"The {role} of {n * 'x'}y thinks that the piers come before the deck."
            runs[-1].append(gateway.ask(system, history, answer, headers))
            history.append({"role": "assistant", "content": answer})
            if not is_history_shared:
                history = [{"role": "user", "content": f"{task}. The one before you said this. {answer}"}]
    assert len(set(runs[1])) == 3
    assert all(run == runs[1] for run in runs[2:])


WORKERS = {
    "research": "Finds facts on the web and writes them down for the team.",
    "program": "Writes the programs and runs them for the whole of the team.",
    "mathematics": "Works out the sums and checks every result of the team.",
    "review": "Reads what the others of the team have written with care.",
}
BOILERPLATE = "Solve what you are asked with all of your knowledge.\nReply TERMINATE once everything has been done."


@pytest.mark.parametrize("lists_in", ["system", "task", "answer"])
@pytest.mark.parametrize("sessions", ["one", "declared", "by history"])
@pytest.mark.parametrize("seed", range(3))
def test_workers_whose_roles_are_listed_in_their_session_stay_apart(
    gateway: Gateway, lists_in: str, sessions: str, seed: int
) -> None:
    """Wherever they are listed and whichever of them work in a session: each has one id from its first request on."""
    rng = random.Random(seed)
    ids: dict[str, set[str]] = {name: set() for name in WORKERS}
    listed = "\n".join(f"- {name}: {role}" for name, role in WORKERS.items())
    for n in range(6):
        headers = {} if sessions == "by history" else {"x-session-id": "long" if sessions == "one" else f"s{n}"}
        task = f"Which members of the team should work on job {n * 'x'}y, please?"
        history = [{"role": "user", "content": f"{task}\n{listed}" if lists_in == "task" else task}]
        lead = "You are the supervisor and choose who works next."
        chosen = listed if lists_in == "answer" else "Let all of them work on it."
        gateway.ask(f"{lead}\n{listed}" if lists_in == "system" else lead, history, chosen, headers)
        for name in rng.sample(list(WORKERS), rng.randint(2, 4)):
            answer = f"The part {name} of job {n * 'x'}y has been done as it was asked for."
            ids[name].add(gateway.ask(f"{BOILERPLATE}\n{WORKERS[name]}", history, answer, headers))
            history = [*history, {"role": "assistant", "content": answer}]
    assert [len(found) for found in ids.values()] == [1] * len(WORKERS)
    assert len(set.union(*ids.values())) == len(WORKERS)


@pytest.mark.parametrize("declares_sessions", [True, False])
@pytest.mark.parametrize("is_question_common", [True, False])
def test_a_conversation_summed_up_in_the_system_prompt_makes_one_more_agent(
    gateway: Gateway, declares_sessions: bool, is_question_common: bool
) -> None:
    """As LangGraph does it: the summary is an answer of the same session, and the history begins anew each time."""
    guides = {
        "You are a travel guide of the lake and its islands.": set[str](),
        "You are a travel guide of the lake and its islands.\nSpeak to children of eight years of age alone.": set[
            str
        ](),
    }
    for n in range(5):
        for guide, found in guides.items():
            headers = {"x-session-id": f"s{n} {len(guide)}"} if declares_sessions else {}
            system, history = guide, list[dict[str, str]]()
            of_run = set()
            for turn in range(9):
                where = "the harbour" if is_question_common else f"place {n * 'x'}{turn * 'y'}{len(guide)}"
                history.append({"role": "user", "content": f"Visitor {n} asks you where {where} is to be found"})
                answer = f"It is {turn} minutes north of the harbour, dear visitor {n} of {len(guide)}."
                of_run.add(gateway.ask(system, history, answer, headers))
                history.append({"role": "assistant", "content": answer})
                if len(history) >= 6:
                    summary = f"Visitor {n} of {len(guide)} asked {turn} questions about the harbour of the lake."
                    request = {"role": "user", "content": "Sum up the conversation above."}
                    of_run.add(gateway.ask(system, [*history, request], summary, headers))
                    system = f"{guide}\nSummary of the conversation so far: {summary}"
                    history = history[-2:]
            if n:
                assert len(of_run) == 2
                found |= of_run
    assert [len(found) for found in guides.values()] == [2, 2]
    assert len(set.union(*guides.values())) == 4


def test_the_name_of_a_template_outlives_the_process() -> None:
    names = []
    for _ in range(2):
        gateway = Gateway()
        for n, task in enumerate(TASKS[:3]):
            gateway.send(PLANNER.format(task), "Whom do you need?", f"s{n}")
            last = gateway.send(SOLVER.format(task), "Go.", f"s{n}")
        names.append(last)
    assert names[0] == names[1]


def test_an_ordinary_sentence_makes_another_agent(gateway: Gateway) -> None:
    text = "You know the rules of the game of {}. Answer questions about them and about nothing else at all."
    agents = {gateway.send(text.format(2000 + n), "hi", f"s{n}") for n in range(30)}
    assert len(agents) == 30


def test_a_crew_with_common_wording_stays_apart(gateway: Gateway) -> None:
    crew = [
        f"You are the {role} of the crew.\nAlways answer in the form that is described below.\nUse no tool twice."
        for role in ("researcher", "writer", "editor", "publisher", "lawyer", "translator", "printer")
    ]
    for run in range(4):
        agents = {gateway.send(text, f"Task of run {run}: {TASKS[run]}", f"run {run}") for text in crew}
        assert len(agents) == len(crew)


def test_a_simulated_person_is_a_slot(gateway: Gateway) -> None:
    agents = []
    for n in range(12):
        agents.append(gateway.send(CUSTOMER.format(f"you want to fly to city number {n}"), "Hello?", f"s{n}"))
        gateway.send(DESK, f"I want to fly to city number {n}.", f"s{n}")
    assert len(set(agents[5:])) == 1
    assert len(set(agents[:5])) == 5


def test_how_much_a_user_says_first_does_not_matter(gateway: Gateway) -> None:
    """A prompt with a customer's name, whose customers each begin with a long story of their own."""
    agents = []
    for n in range(9):
        story = " ".join(f"On day {day} of trip {n} the ferry number {n * day} came late again." for day in range(12))
        agents.append(gateway.send(CUSTOMER.format(f"the customer's name is Ann {n}"), story, f"s{n}"))
        gateway.send(DESK, f"Reply to Ann {n}.", f"s{n}")
    assert len(set(agents[:5])) == 5 and len(set(agents[5:])) == 1


def test_roles_that_come_back_take_their_own_ids_again(gateway: Gateway) -> None:
    """Specialists that one agent hands over to look like persons at first; each comes back, a person doesn't."""
    texts = [CUSTOMER.format(f"you are the specialist for {name}") for name in "abcdefgh"]
    for n, text in enumerate(texts):
        gateway.send(text, "Hello?", f"s{n}")
        gateway.send(DESK, "What now?", f"s{n}")
    again = []
    for n, text in enumerate(texts):
        again.append(gateway.send(text, "Hello?", f"t{n}"))
        gateway.send(DESK, "What now?", f"t{n}")
    third = [gateway.send(text, "Hello?", f"u{n}") for n, text in enumerate(texts)]
    assert len(set(third)) == len(texts)


def test_prompts_of_one_template_that_open_alike_are_strangers(gateway: Gateway) -> None:
    """The same words to the user in every session are the template's, not a task that was handed on."""
    sessions = set()
    for task in TASKS:
        opening = {"role": "user", "content": "Whom do you need to solve this problem?"}
        messages = [{"role": "system", "content": PLANNER.format(task)}, opening]
        resolved = gateway.resolver.resolve("t", {}, {"messages": messages})
        gateway.resolver.accept(resolved)
        sessions.add(resolved.identity.session)
    assert len(sessions) == len(TASKS)


def test_tools_keep_templates_apart(gateway: Gateway) -> None:
    tools = [{"type": "function", "function": {"name": "search"}}]
    for n, task in enumerate(TASKS):
        gateway.send(PLANNER.format(task), "Whom?", f"s{n}")
        with_tools = gateway.send(PLANNER.format(task), "Whom?", f"s{n}", tools=tools)
        without = gateway.send(SOLVER.format(task), "Go.", f"s{n}")
    assert with_tools != without


def held_keys(index: TemplateIndex) -> int:
    """Keys of sentences in all texts that anything in the index holds, each text counted once."""
    holders: list[Any] = [
        *(text for _, part in index._texts for text in part.values()),
        *(text for _, part in index._by_line for texts in part.values() for text in texts),
        *(text for _, part in index._sessions for session in part.values() for text in session.texts),
        *(text for _, part in index._alone for text in part.values() if text is not None),
    ]
    return sum(len(text.asked) + len(text.system) for text in {id(text): text for text in holders}.values())


@pytest.mark.parametrize("seed", range(4))
def test_keys_are_held_for_no_more_texts_than_are_remembered(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """However texts spread over sessions, scopes and tenants, and whatever sentences they share."""
    most_texts, keys_of_a_text = 16, 12
    monkeypatch.setattr(templates, "MAX_TEXTS", most_texts)
    rng = random.Random(seed)
    quotes = QuoteIndex()
    index = TemplateIndex(quotes)
    for n in range(1500):
        tenant, digest = rng.choice("aab"), f"{n - rng.choice((0, 0, 1, 9))}"
        system = {rng.randrange(rng.choice((4, 4000))): "a sentence that is as long as they are" for _ in range(8)}
        asked = {rng.randrange(40): "a sentence that is as long as they are" for _ in range(4)}
        scope = f"{tenant}{rng.choice((0, 0, n))}".encode()
        index.name_of(tenant, digest, scope, lambda system=system, asked=asked: (asked, system, {}))
        if rng.random() < 0.9:
            session, agent = f"s{n // rng.choice((1, 8))}", f"a{rng.randrange(30)}"
            quotes.note(tenant, [*system, *asked], session, agent, digest)
            index.note(digest, tenant, session, agent)
        assert held_keys(index) <= most_texts * keys_of_a_text
    assert len(index) == most_texts


def test_bounded() -> None:
    index = TemplateIndex(QuoteIndex())
    for n in range(MAX_TEXTS + 100):
        index.name_of(
            "t", f"{n}", b"t", lambda n=n: ({-1: "a sentence that all have"}, {n: "a sentence of its own"}, {})
        )
        index.note(f"{n}", "t", f"s{n}", f"a{n}")
    assert len(index) == MAX_TEXTS
    assert len(index._sessions) <= MAX_TEXTS and len(index._by_line.part("t")[-1]) <= 16
