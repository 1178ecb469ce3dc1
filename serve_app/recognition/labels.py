"""A name for an agent that people can read (pure)."""

from serve_app.recognition.canonical import strip_billing

LABEL_CHARS = 48
LABEL_FROM_CHARS = 4096
"""How far into a system text a name for it is looked for."""


def label_of(text: str) -> str:
    """A short readable name: the first line that says something, without control characters or what turns the
    direction of writing."""
    start = 0
    while start < min(len(text), LABEL_FROM_CHARS):
        stop = text.find("\n", start, start + LABEL_FROM_CHARS)
        stop = stop if stop >= 0 else start + LABEL_FROM_CHARS
        clean = strip_billing(text[start : min(stop, start + 2 * LABEL_CHARS)]).strip()
        start = stop + 1
        if not clean.isprintable():
            clean = "".join(char if char.isprintable() else " " for char in clean).strip()
        if clean:
            return clean if len(clean) <= LABEL_CHARS else clean[: LABEL_CHARS - 1].rstrip() + "…"
    return "no system prompt"
