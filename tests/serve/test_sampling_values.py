"""Wrong sampling values on each route, against the running server: 400 in the route's shape, with the field's name."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.gateway_kit import assert_error
from tests.route_kit import CHAT, COMPLETIONS, MESSAGES, RESPONSES, ROUTES, ask, events

LIMIT = {RESPONSES: "max_output_tokens"}
STOP = {MESSAGES: "stop_sequences"}
TOO_MANY = [f"stop {n}" for n in range(100)]
OUTSIDE = 10**6
"""No token of the embedded model's."""

WRONG: list[tuple[str, Any]] = [
    ("temperature", -1),
    ("temperature", 3),
    ("temperature", "hot"),
    ("top_p", 0),
    ("top_p", 2),
    ("top_k", -5),
    ("min_p", 2),
    ("repetition_penalty", 0),
    ("presence_penalty", 3),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"5": 101}),
    ("n", 0),
    ("n", 1000),
    ("min_tokens", -1),
    ("min_tokens", 100),
    ("limit", 0),
    ("limit", -1),
    ("limit", 10**9),
    ("limit", 1.5),
    ("stop", TOO_MANY),
    ("stop", [""]),
    ("stop", 5),
    ("seed", "one"),
    ("seed", 2**64),
    ("stream_options", {"include_usage": True}),
    ("response_format", {"type": "yaml"}),
    ("functions", [{"name": "add"}]),
    ("guided_json", {"type": "object"}),
]
"""`limit` and `stop` go by the route's own name. Fields that a route doesn't have must not be wrong in silence."""

OF_THE_ENGINE: list[tuple[str, str, Any]] = [
    *((route, "logit_bias", {str(OUTSIDE): 1}) for route in ROUTES),
    *((route, "stop_token_ids", [OUTSIDE]) for route in (CHAT, COMPLETIONS, MESSAGES)),
    *((route, "bad_words", [""]) for route in (CHAT, COMPLETIONS, MESSAGES)),
    (RESPONSES, "text", {"format": {"type": "yaml"}}),
]
"""What only the model's vocabulary decides, and what one API alone has."""


def refused(client: httpx.Client, route: str, field: str, value: Any, stream: bool) -> None:
    answer = ask(client, route, stream=stream, **{LIMIT.get(route, "max_tokens"): 4, field: value})
    error = assert_error(answer, 400)
    assert error["param"].split(".")[0] == field, error
    assert route != MESSAGES or answer.json()["type"] == "error"


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("field", "value"), WRONG, ids=[f"{name}-{str(value)[:12]}" for name, value in WRONG])
def test_a_wrong_value_is_refused_by_name(client: httpx.Client, route: str, field: str, value: Any) -> None:
    names = {"limit": LIMIT.get(route, "max_tokens"), "stop": STOP.get(route, "stop")}
    refused(client, route, names.get(field, field), value, stream=False)
    if field != "stream_options":
        refused(client, route, names.get(field, field), value, stream=True)


@pytest.mark.parametrize(("route", "field", "value"), OF_THE_ENGINE)
def test_what_the_engine_refuses_has_its_name_too(client: httpx.Client, route: str, field: str, value: Any) -> None:
    for stream in (False, True):
        refused(client, route, field, value, stream)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0, "top_p": 1, "top_k": 0},
        {"temperature": 2, "top_p": 0.01, "top_k": -1},
        {"stop": ["a", "b", "c", "d"]},
        {"seed": 2**63 - 1, "logit_bias": {"5": -100, "6": 100}},
    ],
)
def test_values_at_their_bounds_are_served(client: httpx.Client, route: str, fields: dict[str, Any]) -> None:
    own = {STOP.get(route, name) if name == "stop" else name: value for name, value in fields.items()}
    assert ask(client, route, **own).status_code == 200
    assert events(ask(client, route, stream=True, **own))
