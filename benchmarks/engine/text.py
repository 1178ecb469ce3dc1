"""Text of a given number of tokens, and the blocks that a chat prompt fills."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from benchmarks.trace_format import TraceError

Message = dict[str, str]

ROOM_FOR_TEMPLATE = 16
"""Tokens that a chat template adds to a message, about."""

CHARS_A_TOKEN = 16
"""More than any text has on average: so much of it is enough to find so many tokens."""


class ModelText:
    """The tokenizer and chat template of a model folder.

    Raises:
        TraceError: the folder has no tokenizer.json or no chat_template.jinja.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        except Exception as error:  # tokenizers raises nothing more precise
            raise TraceError(f"{folder}: no tokenizer.json and chat_template.jinja there ({error})") from error
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(template)
        pieces = (piece[1:] for piece in self._tokenizer.get_vocab() if piece.startswith("\u0120"))
        self._words = sorted(word for word in pieces if word.isascii() and word.isalpha() and 3 < len(word) < 9)

    def ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def count(self, text: str) -> int:
        return len(self.ids(text))

    def head(self, text: str, tokens: int) -> str:
        """The beginning of `text`, at most `tokens` long."""
        short = text[: tokens * CHARS_A_TOKEN]
        ids = self.ids(short)
        if len(ids) <= tokens and len(short) == len(text):
            return text
        return str(self._tokenizer.decode(ids[:tokens]))

    def filler(self, name: str, tokens: int) -> str:
        """Words that mean nothing, the same for the same name; a shorter one is the beginning of a longer one."""
        if tokens <= 0:
            return ""
        words = random.Random(f"filler {name}").choices(self._words, k=tokens)
        return self.head("the " + " ".join(words), tokens)

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """What the engine computes for a chat request of these messages."""
        rendered = self._template.render(messages=list(messages), add_generation_prompt=True)
        return self.ids(rendered)


def block_names(ids: Sequence[int], block_tokens: int) -> tuple[str, ...]:
    """A name for each full block and one for the rest, each standing for the whole prefix up to it."""
    names = []
    digest = b""
    for start in range(0, len(ids), block_tokens):
        block = repr(list(ids[start : start + block_tokens])).encode()
        digest = hashlib.blake2b(digest + block, digest_size=8).digest()
        names.append(digest.hex())
    return tuple(names)


def as_messages(body: dict[str, Any]) -> list[Message]:
    """Role and text of recorded messages: what a chat template prints of them."""
    found = []
    for message in body["messages"]:
        content = message.get("content")
        text = content if isinstance(content, str) else "" if content is None else repr(content)
        if message.get("tool_calls"):
            text = f"{text}\n{message['tool_calls']!r}".strip()
        role = str(message.get("role"))
        found.append({"role": role if role in ("system", "user", "assistant") else "user", "content": text})
    return found
