"""What a request will cost, before anything is tokenized (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serve_app.http.field_checks import ANSWER_LIMITS

CHARS_PER_TOKEN = 4
"""English text and the common tokenizers; other text has fewer characters a token, and is charged what the
engine counted once it is served."""
USUAL_OUTPUT_TOKENS = 256
MAX_OUTPUT_TOKENS = 4096
MESSAGE_TOKENS = 4
"""What a chat template writes around a message."""


def prompt_tokens(fields: Mapping[str, Any]) -> int:
    """At least 1. Texts count by their length, token ids by their number, anything else not at all."""
    if "messages" in fields:
        messages = fields["messages"]
        chars = sum(_chars(message.get("content")) for message in messages if isinstance(message, dict))
        return max(1, chars // CHARS_PER_TOKEN + MESSAGE_TOKENS * len(messages))
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return len(prompt)
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], list):
        return max(1, sum(map(len, prompt)))
    return max(1, _chars(prompt) // CHARS_PER_TOKEN)


def output_tokens(fields: Mapping[str, Any]) -> int:
    asked = next((fields[name] for name in ANSWER_LIMITS if fields.get(name)), None)
    each = min(asked, MAX_OUTPUT_TOKENS) if isinstance(asked, int) and asked > 0 else USUAL_OUTPUT_TOKENS
    choices = fields.get("n")
    return each * (choices if isinstance(choices, int) and choices > 0 else 1)


def _chars(content: Any) -> int:
    if isinstance(content, str):
        return len(content)
    if isinstance(content, list):
        return sum(len(part) if isinstance(part, str) else _part_chars(part) for part in content)
    return 0


def _part_chars(part: Any) -> int:
    text = part.get("text") if isinstance(part, dict) else None
    return len(text) if isinstance(text, str) else 0
