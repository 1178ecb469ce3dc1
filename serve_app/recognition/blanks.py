"""Values that stand for none: `null`, written in many ways, and templates that nobody filled in (pure)."""

import re

MAX_CHARS = 256
"""Longer values say something."""

_UNSEEN = "\u200b\u200c\u200d\u2060\ufeff\u00ad"
"""Characters without a shape, which `str.strip` leaves."""

_MARKS = r"[\s\"'`()<>\[\]{},;]*"
_NOTHING = re.compile(rf"{_MARKS}(?:(?:null|none|undefined|nil|nan|n/a)(?![^\W_]){_MARKS})*\Z", re.IGNORECASE)
_UNFILLED = re.compile(
    r"\{\{[^{}]{0,64}\}\}|\$\{[^{}]{0,64}\}|\[object [A-Z][a-z]+\]|<%[^<>%]{0,64}%>"
    r"|\A[\"'`]?(?:\{[a-z_][\w.]{0,64}\}|\$[a-z_]\w{0,64}|%[a-z_]{1,64}%|%[sdi]|%\([\w.]{1,64}\)[sd]"
    r"|<(?:your|my|the)?[ _-]?(?:session|agent|workflow|trajectory|run|conversation|thread|task)?[ _-]?(?:id|name)>)"
    r"[\"'`]?\Z",
    re.IGNORECASE,
)


def is_blank(text: str) -> bool:
    """Whether all who send this would be taken for one: `""`, `(null)`, `null,null`, `${SESSION_ID}`, `%s`."""
    if len(text) > MAX_CHARS:
        return False
    text = text.strip().strip(_UNSEEN)
    return _NOTHING.match(text) is not None or _UNFILLED.search(text) is not None
