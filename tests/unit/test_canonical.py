"""Harness noise doesn't make another agent; ordinary text does."""

from __future__ import annotations

import itertools
import sys
import timeit
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.recognition import canonical
from serve_app.recognition.canonical import (
    MAX_MARKS,
    CanonicalDigests,
    canonical_text,
    composed,
    plain_text,
    strip_billing,
    text_of,
)
from serve_app.recognition.canonical import digest_of_tools as digest_into
from serve_app.recognition.noise import without_noise

SAME = [
    (
        "Current date and time: Monday, March 9, 2026 at 06:00:31 PM PDT",
        "Current date and time: Tuesday, April 14, 2026 at 11:59:02 AM PDT",
    ),
    ("Now: 2026-03-09T06:00:31Z", "Now: 2026-03-10T23:10:00Z"),
    ("The current time is 18:30.", "The current time is 07:05."),
    ("Today's date: 2026-03-09", "Today's date: 2026-03-10"),
    ("<date>3/9/2026</date>", "<date>3/10/2026</date>"),
    ("timestamp=1773079231", "timestamp=1773079299"),
    ("run id: 7f3a-1", "run id: 99-x"),
    ('"session_id": "abc"', '"session_id": "def"'),
    ("trace 123e4567-e89b-12d3-a456-426614174000 on", "trace 00000000-e89b-12d3-a456-426614174000 on"),
    (
        "x-anthropic-billing-header: cc_version=2.1.9.aaa; cch=1a2b3;\nBe kind.",
        "x-anthropic-billing-header: cc_version=2.1.9.bbb; cch=ffff;\nBe kind.",
    ),
]
DIFFERENT = [
    ("The company was founded in 2019.", "The company was founded in 2020."),
    ("Since 2021 the time limit is strict.", "Since 2022 the time limit is strict."),
    ("Use version 3 of the update tool.", "Use version 4 of the update tool."),
    ("At most 5 steps now.", "At most 6 steps now."),
    ("You write unit tests.", "You write integration tests."),
    ("identity: planner", "identity: coder"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_noise_is_the_same(one: str, other: str) -> None:
    assert canonical_text(f"Be brief.\n{one}\nBe kind.") == canonical_text(f"Be brief.\n{other}\nBe kind.")


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_content_is_significant(one: str, other: str) -> None:
    assert canonical_text(one) != canonical_text(other)


def test_billing_line_leaves_the_rest_untouched() -> None:
    assert strip_billing("x-anthropic-billing-header: cch=1;\nA\nB") == "A\nB"
    assert strip_billing("A about the billing-header of x\nB") == "A about the billing-header of x\nB"


@given(st.text(max_size=200))
def test_canonical_text_is_stable(text: str) -> None:
    once = canonical_text(text)
    assert canonical_text(once) == once


def is_mark(char: str) -> bool:
    return not "\ud800" <= char <= "\udfff" and unicodedata.combining(unicodedata.normalize("NFD", char)[0]) > 0


MARKS = list(filter(is_mark, map(chr, range(sys.maxunicode + 1))))


@pytest.mark.parametrize("marks", ["\u0301\u0323", "\u0f73", "\u0f71\u0f75", "\u0344\u0323", "\U0001e94a\u0323"])
def test_cost_of_accents_in_a_row_grows_with_their_number_alone(marks: str) -> None:
    """Ten times the accents took a hundred times as long: minutes for one message of a megabyte."""

    def cost_s(count: int) -> float:
        return min(timeit.repeat(lambda: composed("a" + marks * count), number=1, repeat=5))

    assert cost_s(30_000) < 40 * cost_s(3_000)


@given(st.lists(st.tuples(st.integers(0, 2 * MAX_MARKS), st.integers(1, 3)), max_size=8), st.randoms())
def test_texts_are_composed_unless_one_row_has_too_many_accents(rows: list[tuple[int, int]], random_: Any) -> None:
    text = "".join("".join(random_.choices(MARKS, k=marks)) + "a" * letters for marks, letters in rows) + "e\u0301"
    longest = max(len(list(group)) for found, group in itertools.groupby(text, is_mark) if found)
    assert composed(text) == (text if longest > MAX_MARKS else unicodedata.normalize("NFC", text))


def test_no_accent_is_overlooked_wherever_it_stands() -> None:
    for mark in MARKS:
        text = "\U0001f389 e\u0301 " + mark * (MAX_MARKS + 1) + " \ud800"
        assert composed(text) == text


def test_one_part_is_a_string() -> None:
    assert text_of([{"type": "text", "text": "hi"}]) == text_of("hi") == "hi"
    assert text_of(None) == text_of([]) == ""


def test_a_mark_for_a_clients_own_cache_is_no_content_of_a_part() -> None:
    """Clients move it from turn to turn."""
    image = {"type": "image_url", "image_url": {"url": "data:,x"}}
    assert text_of([image]) == text_of([{**image, "cache_control": {"type": "ephemeral"}}])


def digest_of_tools(tools: Any) -> bytes:
    return digest_into(tools, bytearray(), seed=7)


def test_tools_by_content_not_order() -> None:
    first = {"type": "function", "function": {"name": "a", "parameters": {"x": 1, "y": 2}}}
    turned = {"function": {"parameters": {"y": 2, "x": 1}, "name": "a"}, "type": "function"}
    second = {"type": "function", "function": {"name": "b"}}
    assert digest_of_tools([first, second]) == digest_of_tools([second, turned])
    assert digest_of_tools([first]) != digest_of_tools([first, second])
    assert digest_of_tools(None) == digest_of_tools([])


def test_tools_of_one_name_and_of_none_by_content_not_order() -> None:
    one = {"type": "function", "function": {"name": "a", "description": "One."}}
    two = {"type": "function", "function": {"name": "a", "description": "Two."}}
    for tools in ([one, two], [one, {"type": "web_search"}], [one, {"type": "function", "function": {"name": 3}}]):
        assert digest_of_tools(tools) == digest_of_tools(tools[::-1]) != digest_of_tools([one])


def test_tools_with_a_number_beyond_64_bits() -> None:
    tools = [{"name": "a", "maximum": 2**64}, {"name": "b", "maximum": 1}]
    assert digest_of_tools(tools) == digest_of_tools(tools[::-1])
    assert digest_of_tools(tools) != digest_of_tools([{"name": "a", "maximum": 2**64 + 1}, tools[1]])


def test_memo_is_bounded() -> None:
    digests = CanonicalDigests(7, max_entries=4)
    values = [digests.of_text("t", f"text {n}") for n in range(10)]
    assert len(digests._memo) == 4
    assert digests.of_text("t", "text 0") == values[0]


def test_what_one_tenant_sent_is_worked_out_anew_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the time of an answer would tell whether somebody else has sent a text."""
    worked_out: list[str] = []

    def counted(text: str) -> str:
        worked_out.append(text)
        return plain_text(text)

    monkeypatch.setattr(canonical, "plain_text", counted)
    digests = CanonicalDigests(7, max_entries=8)
    for tenant in ("one", "two", "one", "two"):
        digests.of_text(tenant, "the plan")
    assert worked_out == ["the plan"] * 2
    for number in range(100):
        digests.of_text("two", f"text {number}")
    digests.of_text("one", "the plan")
    assert worked_out.count("the plan") == 2, "another tenant's flood takes nothing away"


def test_marks_and_clocks_in_tools_are_no_content() -> None:
    def search(text: str, **marks: object) -> dict[str, object]:
        return {"type": "function", "function": {"name": "search", "description": text}, **marks}

    digests = CanonicalDigests(7)
    other = {"type": "function", "function": {"name": "add", "description": "Adds 2 numbers."}}
    found = {
        digests.of_tools("t", tools)
        for tools in (
            [search("Searches. Today's date is 2026-03-09."), other],
            [search("Searches. Today's date is 2026-03-10."), other],
            [other, search("Searches. Today's date is 2026-03-10.", cache_control={"type": "ephemeral"})],
        )
    }
    assert len(found) == 1
    assert digests.of_tools("t", [search("Searches today's 3 papers."), other]) != digests.of_tools(
        "t", [search("Searches today's 4 papers."), other]
    )
    assert digests.of_tools("t", None) == digests.of_tools("t", []) == b""


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("Returns the time, now 2026-03-09T06:00:31Z.", "Returns the time, now 2026-03-10T07:01:32Z.", True),
        ("The current time is 10:31.", "The current time is 11:32.", True),
        ("Today is 2026-03-09.", "Today is 2026-03-10.", True),
        ("For run 123e4567-e89b-12d3-a456-426614174000.", "For run 223e4567-e89b-12d3-a456-426614174001.", True),
        ("Returns rows 1-3.", "Returns rows 1-4.", False),
        ("Opens at 9:00.", "Opens at 10:00.", False),
        ("A read-only view, version 2.", "A read-only view, version 3.", False),
    ],
)
def test_what_a_tool_says_of_now_is_no_content(one: str, other: str, is_same: bool) -> None:
    def tools(text: str) -> list[dict[str, object]]:
        plain = {"type": "function", "function": {"name": "add", "description": "Adds: a-b, c."}}
        return [plain, {"type": "function", "function": {"name": "now", "description": text}}]

    digests = CanonicalDigests(7)
    assert (digests.of_tools("t", tools(one)) == digests.of_tools("t", tools(other))) == is_same


def described(tool: str, parameter: str) -> list[dict[str, Any]]:
    inner = {"type": "object", "properties": {"at": {"type": "string", "description": parameter}}}
    properties = {"where": {"type": "array", "items": inner, "description": "Places to look at."}}
    function = {"name": "look", "description": tool, "parameters": {"type": "object", "properties": properties}}
    return [{"type": "function", "function": function}]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Not before 2026-03-09T06:00:31Z.", "Not before 2026-11-30T16:20:05Z."),
        ("It is 18:30:05 now.", "It is 07:05:59 now."),
        ("Run 550e8400-e29b-41d4-a716-446655440000.", "Run 6ba7b810-9dad-11d1-80b4-00c04fd430c8."),
    ],
)
def test_a_clock_or_id_in_a_description_of_a_tool_or_deep_in_its_parameters_is_noise(one: str, other: str) -> None:
    digests = CanonicalDigests(7)
    in_parameters = [digests.of_tools("t", described("Looks.", text)) for text in (one, other)]
    in_tool = [digests.of_tools("t", described(text, "When.")) for text in (one, other)]
    assert in_parameters[0] == in_parameters[1] != in_tool[0] == in_tool[1]


@pytest.mark.parametrize(("one", "other"), [("At most 10-20.", "At most 10-30."), ("Since 2021.", "Since 2022.")])
def test_a_number_in_a_parameter_is_no_noise(one: str, other: str) -> None:
    digests = CanonicalDigests(7)
    assert digests.of_tools("t", described("Looks.", one)) != digests.of_tools("t", described("Looks.", other))


def test_a_clock_in_a_default_or_among_choices_makes_another_tool() -> None:
    """They are values that an answer may hold, not wording."""
    digests = CanonicalDigests(7)
    tools = [described("Looks.", "When.") for _ in range(2)]
    for tool, value in zip(tools, ("2026-03-09T06:00:31Z", "2026-03-10T06:00:31Z"), strict=True):
        tool[0]["function"]["parameters"]["default"] = value
    assert digests.of_tools("t", tools[0]) != digests.of_tools("t", tools[1])


def test_cost_of_many_descriptions_is_that_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One clock among descriptions full of numbers: each was looked at up to a bound of its own, 50 s for 7 MB."""
    looked_at: list[str] = []

    def counted(text: str) -> str:
        looked_at.append(text)
        return without_noise(text)

    monkeypatch.setattr(canonical, "without_noise", counted)
    tools = [described(f"It is 18:30:05 now. Tool {number}.", f"{number} " * 9)[0] for number in range(50)]
    CanonicalDigests(7).of_tools("t", tools)
    assert len(looked_at) == 1


def test_cost_of_signs_that_are_no_clocks_is_bounded() -> None:
    """Each was a step of Python's: a second for 7 MB of colons."""

    def cost_s(count: int) -> float:
        packed = bytearray(b"a:b" * count)
        return min(timeit.repeat(lambda: canonical._has_sign(packed, b":"), number=1, repeat=5))

    assert cost_s(1_000_000) < 4 * cost_s(50_000)


def test_a_description_is_cleaned_by_its_own_words_alone() -> None:
    """They are cleaned in one text: a word at the end of one says nothing of a number at the head of the next."""
    digests = CanonicalDigests(7)
    found = set()
    for hour in (11, 12):
        texts = ("It is 18:30:05 now. Tells the time", f"{hour}:15 or later.")
        tools = [
            {"type": "function", "function": {"name": name, "description": text}}
            for name, text in zip("ab", texts, strict=True)
        ]
        found.add(digests.of_tools("t", tools))
    assert len(found) == 2


def test_descriptions_that_cannot_be_told_apart_again_stay_as_they_are() -> None:
    digests = CanonicalDigests(7)
    found = {
        digests.of_tools("t", described("It is 18:30:05 now.", f"a{canonical.BETWEEN_DESCRIPTIONS}{word}"))
        for word in ("one", "two")
    }
    assert len(found) == 2
