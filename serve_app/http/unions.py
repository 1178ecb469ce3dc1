"""Which of pydantic's errors tells what is wrong: of a union it lists those of every branch (pure)."""

import re
from collections.abc import Sequence
from typing import Any

Error = dict[str, Any]

_ARMS = frozenset({"str", "int", "float", "bool", "dict", "list", "tuple", "generator", "none", "literal"})
_COMPOUND = re.compile(r"[a-z][a-z\-]*\[")
_TAGS = ("role", "type")
"""Fields by which a client says which branch it means."""


def is_arm(part: Any) -> bool:
    """Whether a location's part is pydantic's name for a branch (`str`, `list[Part]`, `UserMessage`) and no field."""
    return isinstance(part, str) and (part[:1].isupper() or part in _ARMS or _COMPOUND.match(part) is not None)


def most_telling(errors: Sequence[Error]) -> list[Error]:
    """The first field's errors in the branch that fits best: one, or one a branch where the value fits none at all."""
    chosen, depth = list(errors), 0
    while True:
        location = chosen[0]["loc"]
        at = next((index for index in range(depth, len(location)) if is_arm(location[index])), None)
        if at is None:
            return chosen[:1]
        branches = _branches(chosen, at)
        best = min(branches, key=lambda branch: _misfit(branch, at))
        if len(branches) > 1 and _misfit(best, at)[0]:
            return [branch[0] for branch in branches]
        if len(branches) > 1 and _tags(best, at):
            *path, tag = _tags(best, at)[0]["loc"]
            return [{"type": "unknown_tag", "loc": (*path[:at], tag), "msg": ""}]
        # A branch may have the name of another, whose tag is wrong.
        chosen, depth = [error for error in best if error not in _tags(best, at)] or best, at + 1


def _branches(errors: Sequence[Error], at: int) -> list[list[Error]]:
    """The errors of the first one's value by their branch, in order."""
    prefix = errors[0]["loc"][:at]
    found: dict[str, list[Error]] = {}
    for error in errors:
        location = error["loc"]
        if location[:at] == prefix and len(location) > at and is_arm(location[at]):
            found.setdefault(location[at], []).append(error)
    return list(found.values())


def _misfit(branch: Sequence[Error], at: int) -> tuple[bool, int, int]:
    """Whether the value is of another kind; its wrong tags; its missing fields."""
    other_kind = any(len(error["loc"]) == at + 1 for error in branch)
    missing = sum(error["type"] == "missing" and len(error["loc"]) == at + 2 for error in branch)
    return other_kind, len(_tags(branch, at)), missing


def _tags(branch: Sequence[Error], at: int) -> list[Error]:
    return [
        error
        for error in branch
        if error["type"] == "literal_error" and len(error["loc"]) == at + 2 and error["loc"][-1] in _TAGS
    ]
