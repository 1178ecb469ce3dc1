"""A pydantic error as one line: key path, value, what is allowed."""

import difflib
import types
import typing
from typing import Any

from pydantic import BaseModel, ValidationError

_KINDS = {
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "string_type": "a string",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "finite_number": "a finite number",
}
_BOUNDS = {
    "greater_than": ("gt", ">"),
    "greater_than_equal": ("ge", ">="),
    "less_than": ("lt", "<"),
    "less_than_equal": ("le", "<="),
}


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """The first error in one line; an unknown key comes with the nearest name or all allowed ones."""
    first = error.errors()[0]
    location = first["loc"]
    path = dotted(location, prefix)
    # Where a hash is expected somebody may have written the key itself.
    value = "the value" if location and location[-1] == "sha256" else shown(first.get("input"))
    context = first.get("ctx") or {}
    kind = first["type"]
    if kind == "extra_forbidden":
        return unknown_key(path, first.get("input"), str(location[-1]), _names_at(model, location[:-1]))
    if kind == "missing":
        return f"{path}: missing; allowed: a value for it"
    if kind in _BOUNDS:
        name, sign = _BOUNDS[kind]
        return f"{path}: {value} is not allowed; allowed: a number {sign} {context[name]:g}"
    if kind in ("literal_error", "enum"):
        return f"{path}: {value} is not allowed; allowed: {context['expected']}"
    if kind == "string_pattern_mismatch":
        return f"{path}: {value} is not allowed; allowed: text like {context['pattern']}"
    if kind in _KINDS:
        return f"{path}: {value} is not allowed; allowed: {_KINDS[kind]}"
    message = str(context.get("error") or first["msg"]).replace("\n", " ")
    return f"{path or 'args'}: {value} is not allowed; {message}"


def unknown_key(path: str, value: Any, key: str, allowed: list[str]) -> str:
    near = difflib.get_close_matches(key, allowed, n=1, cutoff=0.7)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{path}: unknown key (value {shown(value)}); {hint}allowed: {', '.join(allowed)}"


def dotted(location: tuple[int | str, ...], prefix: str = "") -> str:
    path = prefix
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


def shown(value: Any) -> str:
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 60 else text[:57] + "..."


def _names_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    current: Any = model
    for part in location:
        if isinstance(part, int):
            continue
        field = current.model_fields.get(part) if hasattr(current, "model_fields") else None
        if field is None:
            return []
        current = _model_in(field.annotation)
    return list(current.model_fields) if hasattr(current, "model_fields") else []


def _model_in(annotation: Any) -> Any:
    """The model inside `list[Model]`, `Model | None` and the like."""
    if typing.get_origin(annotation) in (list, types.UnionType, typing.Union):
        for part in typing.get_args(annotation):
            found = _model_in(part)
            if hasattr(found, "model_fields"):
                return found
    return annotation
