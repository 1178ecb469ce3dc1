"""The role that a text gives: a user's first message behind no or a generic system text, or a system text (pure)."""

import re
from typing import Any

from serve_app.recognition.canonical import text_of

MAX_ROLE_CHARS = 256
MAX_SHORT_ROLE_CHARS = 40
MAX_SEARCHED_CHARS = 2048
MAX_SEARCHED_PIECES = 32
"""Of a system text that are searched for short roles: lines and sentences of less than `MAX_SHORT_ROLE_CHARS`."""

_YOU_ARE = (
    r"you(?: are|['’]re) (?:an?|the|our|my|\w+,) "
    r"|(?:du bist|sie sind) (?:eine?|der|die|das|unsere?|meine?) "
    r"|(?:tu es|vous êtes) (?:(?:une?|les?|la|notre|mon) |l['’])"
    r"|(?:eres|usted es) (?:una?|el|la|nuestr[oa]) "
    r"|(?:você é|tu és) (?:uma?|os?|as?|noss[oa]) "
    r"|(?:sei|lei è) (?:(?:una?|uno|il|la|lo) |un['’]|l['’])"
    r"|(?:je|jij|u) bent (?:een|de|het|onze) "
    r"|jesteś |(?:ты|вы) ?[—–-] |[你您](?:现在)?是(?![谁誰不否什怎哪])|你(?:将|要)?扮演|あなたは|(?:당신은|너는) "
)
_OPENINGS = (
    rf"{_YOU_ARE}|(?:i want you to )?act as |(?:assume|take|play) (?:on )?the role of |your (?:name|role) is "
    r"|(?:your )?role ?: ?|role\n|<role>|agis comme |actúa como |agisci come |aja como "
)
_ROLE = re.compile(
    rf"(?:\[[^\]\n]{{1,48}}\]|<(?:system|instructions?|prompt)>|(?:system|instructions?|prompt) ?:|[\s#*>-])*"
    rf"((?:{_OPENINGS})[^\n?？]*?[^\n?？](?=[.!](?:\s|\Z)|[。！]|\n|</))",
    re.IGNORECASE,
)
"""A role to the end of its sentence or line, behind a clock, a tag or marks: 'You are given ...' is a task, a question
is none."""


_SHORT_ROLE = re.compile(rf"[\s#*>-]*(?:{_OPENINGS})\w", re.IGNORECASE)


def short_roles(text: str) -> dict[int, str]:
    """Sentences and lines too short to be compared as such that yet give a role: `Role: planner`; by their hashes."""
    pieces = text[:MAX_SEARCHED_CHARS].replace("\n", ". ").split(". ")
    short = [piece for piece in pieces if 0 < len(piece) < MAX_SHORT_ROLE_CHARS][:MAX_SEARCHED_PIECES]
    found = [piece.strip(" .") for piece in short if _SHORT_ROLE.match(piece)]
    return {hash(piece): piece for piece in found}


def opens_as_role(text: str) -> bool:
    return _SHORT_ROLE.match(text) is not None


MAX_GENERIC_CHARS = 128
_GENERIC = re.compile(
    r"\s*(?:you are \w+, (?:a large language model )?(?:created|made|trained) by [\w ]+\. ?)?"
    r"(?:you are|you['’]re) an? (?:(?:helpful|useful|friendly|kind|polite|honest|harmless|respectful|smart|intelligent"
    r"|knowledgeable|capable|concise|very|and|ai|virtual|digital|general|general-purpose|language|chat),? )*"
    r"(?:assistant|chatbot|model|ai)[.!]?\s*\Z",
    re.IGNORECASE,
)


def is_generic(system: str) -> bool:
    """Whether a system text says nothing of its agent, as the ones do that clients and models have by default."""
    return len(system) <= MAX_GENERIC_CHARS and _GENERIC.match(system) is not None


def role_of_first_user(messages: list[dict[str, Any]]) -> str:
    """Empty if the first message gives no role."""
    if not messages or messages[0].get("role") != "user":
        return ""
    match = _ROLE.match(text_of(messages[0].get("content"))[:MAX_ROLE_CHARS])
    return " ".join(match.group(1).split()) if match else ""
