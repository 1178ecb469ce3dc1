"""Numbers that say how far a run has come: `Step 1 of 20`, `9 turns left`, `Tokens used: 312/200000` (pure).

Harnesses write them into the system prompt anew at each turn. A limit is content, as is the number of an agent
(`Agent 1 of 3`, `Reviewer 2`), of a part of a plan (`step 3 of the plan`) or of an instruction (`Step 1: read`). So
a step counts only where it stands for itself at the head of a line or sentence, an amount only where its words say
that it is used, spent or left, and no word says that it is a limit.
"""

import re

_MARKS = "[\"'`*]{0,3}"
_IS = rf"{_MARKS} ?(?:[:=>]|is|are)\*{{0,2}} ?[\"'`~]?[$€£]? ?"
_STEP = r"(?:step|iteration|turn|round|attempt|loop|cycle|tick)"
_HEAD = (
    r"(?:^|[\n\"'`(\[{<|;]|[.!] )[ \t#>*-]{0,8}[\"'`]?"
    r"(?:(?:this|your|the current|current|it) (?:is )?|(?:you are |you're )?(?:now |currently )?(?:on|at|in) )?"
)
_STEP_BEFORE = re.compile(rf"{_HEAD}{_STEP}(?P<told>{_IS}|_)?(?: (?:number |no\. )?#?|#)?\Z", re.IGNORECASE)
_STEP_BEHIND = re.compile(
    rf"(?:\d{{1,6}} ?(?:of|/|out of) ?\d{{1,6}}|\d{{1,3}}(?!\d)){_MARKS}[ \t]{{0,4}}"
    r"(?:\Z|[\n\r)\]}>|<;]|[.!](?!\d)|(?P<comma>,(?!\d)))",
    re.IGNORECASE,
)

_WORD = r"[a-z]{2,12}[ _-]"
_STATE_BEFORE = re.compile(
    rf"(?<![^\W_])(?:(?:{_WORD}){{1,3}}(?:left|remaining|used|so[ _-]far|elapsed|spent|consumed)"
    rf"|(?:{_WORD}){{0,1}}remaining(?:[ _-][a-z]{{2,12}}){{1,2}}|free[ _-](?:memory|ram|disk|space|disk[ _-]space)"
    rf"|uptime|p?pid){_IS}\Z|(?<![^\W_])pid \Z",
    re.IGNORECASE,
)
_LIMIT = re.compile(
    r"(?<![^\W_])(?:max|maximum|most|min|minimum|least|limit|allowed|up[ _-]to|keep|if|when|until)(?![^\W_])",
    re.IGNORECASE,
)
MAX_BEFORE_CHARS = 56

_NOUN = (
    r"(?:tokens|turns|steps|iterations|rounds|attempts|tries|retries|actions|moves|credits|seconds|minutes"
    r"|(?:tool |function |api )?calls|requests|messages|queries)"
)
_AMOUNT = re.compile(
    rf"\d[\d,.]{{0,24}}(?:(?: of | ?/ ?)\d[\d,.]{{0,24}})?"
    rf"(?= {_NOUN} (?:left|remaining|used)\b(?! (?:of|to|for|in|by|per)\b))",
    re.IGNORECASE,
)
_VALUE = re.compile(r"\d(?:[\d,.]{0,24}\d)?")

_STEP_ENDS = frozenset({"tep", "ion", "urn", "und", "mpt", "oop", "cle", "ick", " no", "ber", "no."})
_STATE_ENDS = frozenset(
    {"eft", "ing", "sed", "far", "ent", "med", "pid", "ime", "ory", "ram", "isk", "ace", "get", "ens", "rns", "eps"}
    | {"ons", "lls", "sts", "its", "pts", "ext", "ges", "ies", "ota", "nce", "nds", "tes", " is", "are"}
)
"""The last letters of the words that stand before: few numbers have one, and only there more is looked at."""


def counter_at(text: str, start: int, end: int, letters: str) -> tuple[int, int] | None:
    """The number whose digits stand from `start` to `end`, if it is one. `letters`: the last three before."""
    if text[end : end + 1] in " ,./" and (amount := _AMOUNT.match(text, start)) is not None:
        return amount.span()
    if letters in _STEP_ENDS:
        behind = _STEP_BEHIND.match(text, start)
        if behind is not None:
            found = _STEP_BEFORE.search(text, max(0, start - MAX_BEFORE_CHARS), start)
            if found is not None and (behind["comma"] is None or found["told"] is not None):
                return start, end
    if letters in _STATE_ENDS:
        state = _STATE_BEFORE.search(text, max(0, start - MAX_BEFORE_CHARS), start)
        if state is not None and _LIMIT.search(text, max(0, state.start() - 12), start) is None:
            value = _VALUE.match(text, start)
            return start, end if value is None else value.end()
    return None
