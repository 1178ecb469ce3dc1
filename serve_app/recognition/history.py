"""Keys of a history's prefixes: what a conversation is looked up by (pure)."""

from typing import Any

from xxhash import xxh3_64_intdigest

from serve_app.recognition.canonical import canonical_json, composed, leading_count, text_of

_SEED_BITS = (1 << 64) - 1


def history_keys(tenant: str, messages: list[dict[str, Any]]) -> tuple[list[int], bool]:
    """One key for each prefix of the history, and whether it holds an assistant turn.

    Keys never leave the process, and whoever found two texts with one hash would join sessions of his own alone: so
    XXH3 will do, which reads a long history several times faster than any digest, and in a third of the time of the
    interpreter's own hash, which it is seeded with.
    """
    key = hash(tenant) & _SEED_BITS
    keys: list[int] = []
    has_assistant = False
    for message in messages[leading_count(messages) :]:
        role = message.get("role")
        if role == "assistant":
            has_assistant = True
            role = "user"
        content = message.get("content")
        # Clients may tidy up what they keep.
        text = (content if isinstance(content, str) else text_of(content)).strip()
        if not text.isascii() or "\r" in text:
            text = composed(text.replace("\r\n", "\n"))
        if content is None or len(message) > 2:
            calls, answers = message.get("tool_calls"), message.get("tool_call_id")
            if calls or answers:
                key = hash((key, canonical_json(calls or ()), str(answers or ""))) & _SEED_BITS
        if role != "user":
            key = hash((key, role)) & _SEED_BITS
        try:
            said = text.encode()
        except UnicodeEncodeError:  # Half a pair.
            said = text.encode("utf-8", "surrogatepass")
        key = xxh3_64_intdigest(said, key)
        keys.append(key)
    return keys, has_assistant
