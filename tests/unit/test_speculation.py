"""What comes next in a session, learnt from others of the tenant: started when near certain, within a budget."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_actor.messages import SessionEnded
from runtime_actor.policies import speculation
from runtime_actor.policies.base import GuessEnded, GuessSuggestion, RequestSent, RequestServed, RequestView
from runtime_actor.policies.request_templates import Frame, learnt
from runtime_actor.policies.speculation import SpeculationPolicy, is_same
from tests.unit.policy_kit import ManualClock, settings, view

TASKS = [f"number {n}: sort {n * 7} letters by their weight" for n in range(40)]


def policy(**options: Any) -> SpeculationPolicy:
    return SpeculationPolicy(settings(SpeculationPolicy, **options), ManualClock())


def fields_of(agent: str, text: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": f"You are {agent}."}, {"role": "user", "content": text}]
    return {"messages": messages, "max_tokens": 64, **more}


def answer_of(agent: str, number: int) -> str:
    return f"the {agent} thinks of {number * 31} ways to do it\n"


def served(request: RequestView, answer: str | None) -> RequestServed:
    return RequestServed(request, 100, 0, 20, 0.1, 0.0, 1.0, answer=answer)


class Pipeline:
    """Sessions of planner, coder and reviewer; the latter two are asked about what was answered before."""

    def __init__(self, made: SpeculationPolicy, tenant: str = "t", **fields: Any) -> None:
        self.policy = made
        self.tenant = tenant
        self.fields = fields
        self.guesses: list[GuessSuggestion] = []
        self.joined = 0
        self.wasted = 0

    def play(self, number: int, twist: str = "") -> None:
        session = f"{self.tenant}{number}"
        text = f"Task: {TASKS[number % len(TASKS)]}"
        for agent in ("planner", "coder", "reviewer"):
            request = view(
                self.tenant, agent, session=session, method="chat", fields=fields_of(agent, text, **self.fields)
            )
            self.settle(request)
            self.policy.observe(RequestSent(request, 0.0))
            answer = answer_of(agent, number)
            self.policy.observe(served(request, answer))
            self.guesses += self.policy.act()
            text = f"{TASKS[number % len(TASKS)]} - so far:{twist}\n{answer.strip()}\nNow you."
        self.policy.observe(SessionEnded("e", 1.0, self.tenant, self.tenant, session))

    def settle(self, request: RequestView) -> None:
        """What the gateway does with a guess when the session's next request comes."""
        for guess in [g for g in self.guesses if g.session == request.session]:
            self.guesses.remove(guess)
            is_joined = is_same(guess, request)
            self.joined += is_joined
            self.wasted += not is_joined
            self.policy.observe(
                GuessEnded(guess.tenant, guess.workload, guess.session, is_joined, 0 if is_joined else guess.tokens)
            )


def test_a_fixed_pipeline_is_guessed_to_the_letter() -> None:
    line = Pipeline(policy())
    for number in range(20):
        line.play(number)
    assert line.wasted == 0
    assert line.joined >= 2 * 12, "both steps of most sessions"
    counts = line.policy.counters()
    assert counts["wrong"] <= 2 and counts["right"] >= 30


def test_nothing_is_started_before_enough_was_right() -> None:
    line = Pipeline(policy(min_seen=5))
    for number in range(6):
        line.play(number)
    assert line.joined == 0 and line.policy.counters()["right"] >= 6


def test_tools_are_side_effects() -> None:
    tools = [{"type": "function", "function": {"name": "pay"}}]
    line, allowed = Pipeline(policy(), tools=tools), Pipeline(policy(allow_tools=True), tools=tools)
    for number in range(12):
        line.play(number)
        allowed.play(number)
    assert line.joined == 0 and line.policy.counters()["with_tools"] > 0
    assert allowed.joined > 0


def test_other_parameters_make_another_request() -> None:
    guess = GuessSuggestion("p", "t", "t", "s", "a", "chat", fields_of("a", "x"), 1, 1.0)
    assert is_same(guess, view(agent="a", method="chat", fields=fields_of("a", "x")))
    assert not is_same(guess, view(agent="a", method="chat", fields=fields_of("a", "x", temperature=0.5)))
    assert not is_same(guess, view(agent="a", method="completions", fields=fields_of("a", "x")))
    assert not is_same(guess, view(agent="b", method="chat", fields=fields_of("a", "x")))


def test_tenants_learn_nothing_of_each_other() -> None:
    made = policy()
    mine, theirs = Pipeline(made, "one"), Pipeline(made, "two")
    for number in range(12):
        mine.play(number)
    assert mine.joined > 0
    for number in range(3):
        theirs.play(number)
    assert theirs.joined == 0 and not theirs.guesses
    assert all(name in ("one", "two") for name, _ in made._places)


def test_misses_switch_an_agents_guesses_off_and_waste_stays_in_the_budget() -> None:
    line = Pipeline(policy(max_waste=0.1))
    for number in range(12):
        line.play(number)
    before = line.joined
    for number in range(12, 40):
        line.play(number, twist=f" it is {number * 13} o'clock")
    counts = line.policy.counters()
    assert line.wasted <= 4, "after two misses of sixteen nothing is started any more"
    assert line.joined == before
    assert counts["wasted_tokens"] <= 0.1 * counts["served_tokens"]


def test_without_credit_nothing_is_started() -> None:
    line = Pipeline(policy(max_waste=0.0))
    for number in range(10):
        line.play(number)
    assert line.joined == 0 and line.policy.counters()["no_budget"] > 0


def test_a_guess_that_is_not_started_is_no_miss() -> None:
    line = Pipeline(policy())
    for number in range(8):
        line.play(number)
    made = line.policy
    request = view("t", "planner", session="x", method="chat", fields=fields_of("planner", f"Task: {TASKS[9]}"))
    made.observe(RequestSent(request, 0.0))
    made.observe(served(request, answer_of("planner", 9)))
    (guess,) = made.act()
    made.observe(GuessEnded("t", "t", "x", False, 0))
    assert made.counters()["not_started"] == 1
    assert made._sessions.get("t", "x").guess is not None  # type: ignore[union-attr]
    wrong = made.counters()["wrong"]
    again = view("t", "coder", session="x", method="chat", fields=dict(guess.fields))
    made.observe(RequestSent(again, 0.0))
    assert made.counters()["wrong"] == wrong


def test_an_answer_that_is_not_known_is_not_built_on() -> None:
    line = Pipeline(policy())
    for number in range(8):
        line.play(number)
    request = view("t", "planner", session="x", method="chat", fields=fields_of("planner", f"Task: {TASKS[9]}"))
    line.policy.observe(RequestSent(request, 0.0))
    line.policy.observe(served(request, None))
    assert line.policy.act() == []


def test_requests_side_by_side_are_not_guessed() -> None:
    made = policy()
    for number in range(10):
        both = [
            view("t", agent, session=f"s{number}", method="chat", fields=fields_of(agent, TASKS[number]))
            for agent in ("a", "b")
        ]
        for request in both:
            made.observe(RequestSent(request, 0.0))
        for request in both:
            made.observe(served(request, answer_of(request.agent, number)))
        last = view("t", "c", session=f"s{number}", method="chat", fields=fields_of("c", answer_of("a", number)))
        made.observe(RequestSent(last, 0.0))
        made.observe(served(last, "done and well done"))
        assert made.act() == []


def test_bounds_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, cap in (("MAX_SESSIONS", 8), ("MAX_PLACES", 4), ("MAX_FRAMES", 2), ("MAX_ACCOUNTS", 2)):
        monkeypatch.setattr(f"runtime_actor.policies.speculation.{name}", cap)
    made = policy()
    for tenant in ("a", "b", "c"):
        for number in range(12):
            request = view(
                tenant, f"g{number}", session=f"s{number}", method="chat", fields=fields_of("x", TASKS[number])
            )
            made.observe(RequestSent(request, 0.0))
            made.observe(served(request, answer_of("x", number)))
            follow = view(tenant, "z", session=f"s{number}", method="chat", fields=fields_of("z", TASKS[number]))
            made.observe(RequestSent(follow, 0.0))
    assert len(made._sessions) <= 8 and len(made._places) <= 4 and len(made._frames) <= 2 and len(made._accounts) <= 2


# --- templates --------------------------------------------------------------------------------------

LITERAL = st.text(alphabet="abc \n", max_size=12)
TEXT = st.text(alphabet="XYZ.", min_size=8, max_size=30)


@given(st.lists(LITERAL, min_size=2, max_size=4), st.tuples(TEXT, TEXT), st.tuples(TEXT, TEXT))
def test_a_template_carries_over_to_another_session(
    literals: list[str], first: tuple[str, str], second: tuple[str, str]
) -> None:
    def request(texts: tuple[str, str]) -> dict[str, Any]:
        pieces = [literals[0], *(part for i, lit in enumerate(literals[1:]) for part in (texts[i % 2], lit))]
        return {"messages": [{"role": "user", "content": "".join(pieces)}], "max_tokens": 3}

    template = learnt(request(first), {("answer", 0): first[0], ("answer", 1): first[1]}, None)
    assert template is not None
    filled = template.filled({("answer", 0): second[0], ("answer", 1): second[1]})
    overlapping = first[0] in first[1] or first[1] in first[0]
    joined = request(first)["messages"][0]["content"]
    # At any place, also across the pieces' borders.
    places = sum(joined.startswith(text, i) for text in first for i in range(len(joined)))
    ambiguous = overlapping or places != len(literals) - 1
    assert ambiguous or filled == request(second)


def test_a_template_leaves_alone_what_was_there_before() -> None:
    before = {"messages": [{"role": "system", "content": "say approved or not"}]}
    template = learnt(before, {("answer", 0): "approved"}, before)
    assert template is not None and template.varying == ()
    assert template.filled({("answer", 0): "something else"}) == before


def test_a_template_wants_all_its_texts_and_leaves_the_first_request_as_it_was() -> None:
    fields = {"prompt": "<an answer of it>", "stop": ["x"]}
    template = learnt(fields, {("answer", 0): "an answer of it"}, None)
    assert template is not None and template.filled({}) is None
    assert template.filled({("answer", 0): "another one"}) == {"prompt": "<another one>", "stop": ["x"]}
    assert fields["prompt"] == "<an answer of it>"


def test_too_long_a_request_has_no_template() -> None:
    assert learnt({"prompt": "x" * 70_000}, {}, None) is None


def test_a_frame_narrows_to_what_all_have() -> None:
    frame = Frame("Task: sort letters. Be brief.", "Task: sort letters. Be brief.")
    frame = frame.narrowed("Task: sing songs. Be brief.")
    assert frame.inside("Task: sing songs. Be brief.") == "sing songs."
    frame = frame.narrowed("Task: sing songs. Be brief.")
    assert frame.inside("Task: dance. Be brief.") == "dance."
    assert Frame("a b", "a b").inside("a b") == ""


def test_texts_of_all_sessions_are_bounded_in_fair_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation, "MAX_CHARS", 20_000)
    made = policy()

    def play(tenant: str, number: int, text: str, answer: str | None) -> None:
        request = view(tenant, "a", session=f"s{number}", fields=fields_of("a", text))
        made.observe(RequestSent(request, 0.0))
        made.observe(served(request, answer))

    play("quiet", 0, "x" * 1000, "y" * 1000)
    for number in range(100):
        play("loud", number, "x" * 2000, "y" * 2000)
        held = [session for _, sessions in made._sessions for session in sessions.values()]
        assert made._chars == sum(session.chars for session in held) <= 20_000
        assert all(session.chars == sum(map(len, session.sources.values())) for session in held)
    assert made._sessions.get("quiet", "s0") is not None
    for _ in range(50):
        play("loud", 99, "x" * 2000, None)
    assert made._chars <= 20_000


def test_a_first_request_that_comes_again_is_no_longer_text() -> None:
    made = policy()
    for _ in range(200):
        request = view("t", "a", session="s", fields=fields_of("a", "x" * 2000))
        made.observe(RequestSent(request, 0.0))
        made._sessions.get("t", "s").running = 0  # type: ignore[union-attr]
    session = made._sessions.get("t", "s")
    assert session is not None and session.sources and session.chars == made._chars < 5000
