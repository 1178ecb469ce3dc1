"""What a request will cost, before anything is tokenized."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from runtime_actor.fair_map import FairMap
from serve_app.http.field_checks import ANSWER_LIMITS

CHARS_PER_TOKEN = 4
"""English text and the common tokenizers; other text has fewer characters a token, and is charged what the
engine counted once it is served."""
USUAL_OUTPUT_TOKENS = 256
MAX_OUTPUT_TOKENS = 4096
MESSAGE_TOKENS = 4
"""What a chat template writes around a message."""
MAX_AGENTS = 4096
"""Whose prompts are remembered, shared fairly by tenants; the one not served for longest is forgotten, and estimated
as a new one is."""
MEMORY = 0.2
"""Weight of an agent's newest prompt in its mean."""
MIN_FACTOR, MAX_FACTOR = 1 / 16, 8.0
"""How far an estimate is corrected: an emptied cache mustn't let a whole queue pass as if nothing were to do."""
_PACKER = msgspec.msgpack.Encoder()


class PrefillEstimates:
    """Prompt tokens that an engine will have to compute: the estimate from the text, corrected by what became of the
    same agent's prompts. So what it finds cached counts little, and what the text doesn't show (templates, another
    language) counts."""

    def __init__(self) -> None:
        self._factors: FairMap[str, float] = FairMap(MAX_AGENTS)

    def expected(self, tenant: str, agent: str, estimate: int) -> int:
        """At least 1."""
        return max(1, round(estimate * (self._factors.get(tenant, agent) or 1.0)))

    def note(self, tenant: str, agent: str, estimate: int, computed: int) -> None:
        """A prompt estimated at `estimate` tokens made an engine compute `computed`."""
        factors = self._factors.part(tenant)
        factor = min(max(computed / max(1, estimate), MIN_FACTOR), MAX_FACTOR)
        before = factors.get(agent)
        factors[agent] = factor if before is None else before + MEMORY * (factor - before)
        factors.move_to_end(agent)
        self._factors.trim(tenant)


def prompt_tokens(fields: Mapping[str, Any]) -> int:
    """At least 1. Texts and tools count by their length, token ids by their number, anything else not at all."""
    if "messages" in fields:
        messages = fields["messages"]
        chars = sum(_chars(message.get("content")) for message in messages if isinstance(message, dict))
        if fields.get("tools"):
            chars += len(_PACKER.encode(fields["tools"]))
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
