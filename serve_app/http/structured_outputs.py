"""Constraints that the engine would accept and then fail on, refused before it sees them (pure)."""

import json
from collections.abc import Mapping
from typing import Any

from serve_app.http.errors import ApiError, bad_request
from serve_app.http.field_checks import check_format

_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
MAX_CONSTRAINT_CHARS = 65_536
"""Compiling a grammar takes the engine's time; longer ones are refused."""


def check_structured_outputs(fields: Mapping[str, Any]) -> None:
    """Raises ApiError 400 naming the field."""
    constraint = fields.get("structured_outputs")
    if constraint is not None:
        _check_constraint(constraint)
    response_format = fields.get("response_format")
    if isinstance(response_format, dict) and response_format.get("type") == "json_schema":
        wrapper = response_format.get("json_schema")
        check_schema(wrapper.get("schema") if isinstance(wrapper, dict) else None, "response_format.json_schema.schema")


def check_text_format(given: Any) -> None:
    """Of Responses: `text.format`. Raises ApiError 400 naming the field."""
    check_format(given, "text.format")
    if given["type"] == "json_schema":
        check_schema(given.get("schema"), "text.format.schema")


def output_schema(fields: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema that a Messages request asks for in `output_config`; vLLM's converter drops an empty one, which allows
    any JSON, and a format without one. Raises ApiError 400 naming the field."""
    config = fields.get("output_config")
    given = config.get("format") if isinstance(config, dict) else None
    if given is None:
        return None
    check_format(given, "output_config.format", ("json_schema",))
    if fields.get("structured_outputs") is not None:
        raise _refused("structured_outputs", "can't stand beside `output_config.format`")
    schema: Mapping[str, Any] = check_schema(given.get("schema"), "output_config.format.schema")
    return schema


def check_schema(schema: Any, path: str) -> Any:
    """The same, where it is an object. Raises ApiError 400."""
    if not isinstance(schema, dict):
        raise _refused(path, "must be a JSON schema object")
    return schema


def _check_constraint(constraint: Any) -> None:
    if not isinstance(constraint, dict):
        raise _refused("structured_outputs", "must be an object")
    given = [kind for kind in _KINDS if constraint.get(kind) is not None]
    if len(given) != 1:
        raise _refused("structured_outputs", f"must have exactly one of {', '.join(_KINDS)}")
    kind = given[0]
    problem = _problem(kind, constraint[kind])
    if problem:
        raise _refused(f"structured_outputs.{kind}", problem)


def _problem(kind: str, value: Any) -> str | None:
    if kind == "json":
        return None if isinstance(_schema(value), dict) else "must be a JSON schema object"
    if kind == "json_object":
        return None if value is True else "must be true"
    if kind == "choice":
        fine = isinstance(value, list) and value and all(isinstance(item, str) and item for item in value)
        return None if fine else "must be an array of at least one non-empty string"
    if not isinstance(value, str) or not value.strip():
        return "must be a non-empty string"
    return "is too long" if len(value) > MAX_CONSTRAINT_CHARS else None


def _schema(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _refused(param: str, problem: str) -> ApiError:
    return bad_request(f"`{param}` {problem}.", param, "invalid_value")
