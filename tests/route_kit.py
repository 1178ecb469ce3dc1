"""The same request over each route that generates text, and the same readings of its answers."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.gateway_kit import MODEL

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
ROUTES = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
CONVERSATIONS = (CHAT, RESPONSES, MESSAGES)
"""Routes whose requests have a system text and turns."""

_LIMITS = {RESPONSES: "max_output_tokens"}


def turn(route: str, system: str | None, turns: list[dict[str, Any]], tokens: int = 1, **fields: Any) -> dict[str, Any]:
    """A body with a system text and turns of `role` and `content`; a completion has all their text in a row."""
    body: dict[str, Any] = {"model": MODEL, _LIMITS.get(route, "max_tokens"): tokens, **fields}
    if route == COMPLETIONS:
        texts = [system or "", *(message["content"] for message in turns)]
        return {"prompt": "\n".join(texts), **body}
    if route == RESPONSES:
        return {"input": turns, **({"instructions": system} if system is not None else {}), **body}
    if route == MESSAGES:
        return {"messages": turns, **({"system": system} if system is not None else {}), **body}
    leading = [{"role": "system", "content": system}] if system is not None else []
    return {"messages": [*leading, *turns], **body}


def ask(
    client: httpx.Client,
    route: str,
    system: str | None = None,
    user: str = "hi",
    headers: dict[str, str] | None = None,
    **fields: Any,
) -> httpx.Response:
    body = turn(route, system, [{"role": "user", "content": user}], **fields)
    return client.post(route, json=body, headers=headers)


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """A stream's events as objects, without [DONE]."""
    assert answer.status_code == 200, answer.text
    lines = [line[6:] for line in answer.text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def usage(route: str, answer: httpx.Response) -> tuple[int, int, int]:
    """Prompt, cached and completion tokens of a whole answer."""
    assert answer.status_code == 200, answer.text
    found = answer.json()["usage"]
    if route == RESPONSES:
        return found["input_tokens"], found["input_tokens_details"]["cached_tokens"], found["output_tokens"]
    if route == MESSAGES:
        hit = found["cache_read_input_tokens"]
        written = found.get("cache_creation_input_tokens", 0)
        return found["input_tokens"] + hit + written, hit, found["output_tokens"]
    return found["prompt_tokens"], found["prompt_tokens_details"]["cached_tokens"], found["completion_tokens"]


def said(route: str, answer: httpx.Response) -> str:
    """The text of a whole answer or of a stream."""
    is_stream = answer.headers["content-type"].startswith("text/event-stream")
    parts = [_delta(route, event) for event in events(answer)] if is_stream else [_whole(route, answer.json())]
    return "".join(parts)


def finished(route: str, answer: httpx.Response) -> bool:
    """Whether a stream came to its own end."""
    last = events(answer)[-1]
    if route == RESPONSES:
        return bool(last["type"] == "response.completed")
    if route == MESSAGES:
        return bool(last["type"] == "message_stop")
    return bool(last["choices"][0]["finish_reason"]) and answer.text.endswith("data: [DONE]\n\n")


def _delta(route: str, event: dict[str, Any]) -> str:
    if route == RESPONSES:
        return str(event["delta"]) if event["type"] == "response.output_text.delta" else ""
    if route == MESSAGES:
        return str(event["delta"].get("text", "")) if event["type"] == "content_block_delta" else ""
    choice = event["choices"][0] if event["choices"] else {}
    return str((choice.get("delta") or {}).get("content") or choice.get("text") or "")


def _whole(route: str, content: dict[str, Any]) -> str:
    if route == RESPONSES:
        return "".join(part["text"] for item in content["output"] for part in item.get("content") or ())
    if route == MESSAGES:
        return "".join(part.get("text", "") for part in content["content"])
    choice = content["choices"][0]
    return str(choice["text"] if route == COMPLETIONS else choice["message"]["content"])
