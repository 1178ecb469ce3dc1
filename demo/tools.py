"""Tool definitions of the team, in the chat completions form.

The embedded model's chat template prints roles and contents only, so the definitions are also written into
the system prompts (`team.system_prompt`), as frameworks do for models without a tool template.
"""

from __future__ import annotations

from typing import Any


def _tool(name: str, description: str, **parameters: tuple[str, str]) -> dict[str, Any]:
    """`parameters`: name -> (JSON type, description); all of them required."""
    properties = {key: {"type": kind, "description": text} for key, (kind, text) in parameters.items()}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            },
        },
    }


SEARCH_LIBRARY = _tool(
    "search_library",
    "Find functions of the Python standard library by what they do.",
    query=("string", "What the function should do, in a few words."),
    limit=("integer", "How many names to return, 1 to 10."),
)
NOTE = _tool(
    "note",
    "Write one line into the notes that all members of the team see.",
    line=("string", "The line, at most 120 characters."),
)
COMPILE = _tool(
    "compile_code",
    "Compile Python source without running it. Returns 'ok' or the line and message of the first error.",
    source=("string", "The complete source text of the module."),
)
FORMAT = _tool(
    "format_code",
    "Format Python source with four blanks of indentation and lines of at most 100 characters.",
    source=("string", "The complete source text of the module."),
)
SHOW_LINES = _tool(
    "show_lines",
    "Show numbered lines of the latest version of the function.",
    first=("integer", "Number of the first line, from 1."),
    last=("integer", "Number of the last line, inclusive."),
)
RUN_CHECKS = _tool(
    "queue_checks",
    "Hand assert statements to the team's isolated runner. The results arrive after the review.",
    checks=("string", "Python source with one assert statement a line."),
    timeout_s=("number", "Seconds after which a check counts as failed, at most 10."),
)
COVERAGE = _tool(
    "list_branches",
    "List the branches of the latest version of the function that no check reaches.",
    function=("string", "Name of the function."),
)
DIFF = _tool(
    "show_diff",
    "Show what changed between two versions of the function, as a unified diff.",
    old=("integer", "Number of the older version, from 1."),
    new=("integer", "Number of the newer version."),
)
DECIDE = _tool(
    "decide",
    "Record the decision on a task. It can't be taken back within the same round.",
    verdict=("string", "APPROVED or CHANGES."),
    reason=("string", "One sentence."),
)
