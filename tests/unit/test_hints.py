"""Client hints: clipped, replaced, reported."""

from __future__ import annotations

from typing import Any

import pytest

from runtime_actor.messages import OWNER_XARG, OwnerTag
from serve_app.hints import (
    MAX_NOTED,
    MAX_REPORT_CHARS,
    REPLACED_FIELDS,
    cache_salt,
    engine_fields,
    forwarded_headers,
    read_hints,
)


def outcomes(body: dict[str, Any], headers: dict[str, str] | None = None) -> dict[str, str]:
    return read_hints(headers or {}, body)[1].outcomes


@pytest.mark.parametrize(
    ("body", "priority", "outcome"),
    [
        ({"priority": 5}, 5, "accepted"),
        ({"priority": -1_000_000}, 0, "clipped"),
        ({"priority": 10**12}, 10, "clipped"),
        ({"priority": True}, 0, "rejected"),
    ],
)
def test_priority_never_gets_ahead(body: dict[str, Any], priority: int, outcome: str) -> None:
    got, report = read_hints({}, body)
    assert got == priority
    assert report.outcomes["priority"] == outcome


@pytest.mark.parametrize("value", [5, "x", True, 0, False, "", [], ["a"]])
@pytest.mark.parametrize("outer", ["nvext", "agent_hints", "nvext.agent_hints", "nvext.agent_context"])
def test_what_is_no_object_is_rejected_by_its_own_name(outer: str, value: Any) -> None:
    body: Any = value
    for name in reversed(outer.split(".")):
        body = {name: body}
    assert outcomes(body) == {outer: "rejected"}
    assert outcomes({"nvext": None, "agent_hints": {}}) == {} == outcomes({"nvext": {"agent_hints": None}})


@pytest.mark.parametrize("name", ["é", "a b", "n" * 100, "", "a=b", "a, b=accepted", "1", "a.b", "a\r\nb: c"])
@pytest.mark.parametrize("outer", ["nvext", "agent_hints", "nvext.agent_hints", "nvext.agent_context"])
def test_a_name_that_cannot_be_written_is_rejected_by_the_outer_one(outer: str, name: str) -> None:
    body: Any = {name: 1}
    for part in reversed(outer.split(".")):
        body = {part: body}
    _, report = read_hints({}, body)
    assert report.header() == f"{outer}=rejected"
    assert outcomes({"nvext": {name: None}}) == {}


@pytest.mark.parametrize("priority", [10**400, -(10**400)])
def test_whole_numbers_of_any_size_are_clipped(priority: int) -> None:
    for body in ({"agent_hints": {"priority": priority}}, {"nvext": {"agent_hints": {"priority": priority}}}):
        got, report = read_hints({}, body)
        assert got == (10 if priority < 0 else 0) and "clipped" in report.outcomes.values()


def test_a_million_hints_are_not_looked_at_one_by_one() -> None:
    many = {f"h{n}": 1 for n in range(100_000)}
    bodies = ({"agent_hints": {**many, "priority": -3}}, {"nvext": {**many, "agent_context": many}})
    for body in bodies:
        assert len(read_hints({}, body)[1].outcomes) <= 3 * MAX_NOTED
    assert read_hints({}, bodies[0])[0] == 3, "what counts is found at any place"


def test_agent_hints_priority_is_turned_round() -> None:
    got, report = read_hints({}, {"nvext": {"agent_hints": {"priority": 10**9, "strict_priority": True, "osl": 5}}})
    assert got == 0
    assert report.outcomes == {
        "nvext.agent_hints.priority": "clipped",
        "nvext.agent_hints.strict_priority": "rejected",
        "nvext.agent_hints.osl": "rejected",
    }
    assert read_hints({}, {"agent_hints": {"priority": -3}})[0] == 3


def test_what_only_the_gateway_sets_is_rejected() -> None:
    body = {"cache_salt": "x", "request_id": "dup", "kv_transfer_params": {"a": 1}, "vllm_xargs": {OWNER_XARG: 5}}
    assert outcomes(body, {"x-vllm-priority": "-9", "x-data-parallel-rank": "1"}) == {
        "x-vllm-priority": "rejected",
        "x-data-parallel-rank": "rejected",
        "cache_salt": "rejected",
        "request_id": "rejected",
        "kv_transfer_params": "rejected",
        "vllm_xargs": "rejected",
    }


def test_second_session_id_is_rejected() -> None:
    assert outcomes({"session_id": "b"}, {"x-session-id": "a"}) == {
        "x-session-id": "accepted",
        "session_id": "rejected",
    }
    assert outcomes({"session_id": "a"}, {"x-session-id": "a"}) == {
        "x-session-id": "accepted",
        "session_id": "accepted",
    }
    assert outcomes({}, {"x-session-id": "null"}) == {"x-session-id": "rejected"}


def test_report_is_bounded_and_holds_no_values() -> None:
    hints = {f"hint_{n}": "SECRET" for n in range(200)}
    header = read_hints({}, {"agent_hints": hints})[1].header()
    assert len(header) <= MAX_REPORT_CHARS and "more" in header and "SECRET" not in header
    assert read_hints({}, {})[1].header() == "none"


@pytest.mark.parametrize(
    "body", [{"nvext": 5}, {"nvext": {"agent_hints": [1]}}, {"agent_hints": {"a b\n": 1}}, {"vllm_xargs": "x"}]
)
def test_nonsense_is_no_error(body: dict[str, Any]) -> None:
    priority, report = read_hints({}, body)
    assert priority == 0 and "\n" not in report.header()


def test_engine_fields() -> None:
    tag = OwnerTag("w", "a-1", "s-1")
    one, other = engine_fields(tag, "salt", 3), engine_fields(tag, "salt", 3)
    assert OwnerTag.decode(one["vllm_xargs"][OWNER_XARG]) == tag
    assert one["request_id"] != other["request_id"]
    assert set(one) <= REPLACED_FIELDS


def test_salts_differ_by_tenant_and_secret() -> None:
    salts = {cache_salt(secret, tenant) for secret in (b"1", b"2") for tenant in ("a", "b")}
    assert len(salts) == 4 and all(len(salt) == 43 for salt in salts)


def test_only_listed_headers_go_on() -> None:
    headers = {"authorization": "Bearer x", "x-vllm-priority": "1", "x-request-id": "r", "user-agent": "u"}
    assert forwarded_headers(headers) == {"user-agent": "u"}
