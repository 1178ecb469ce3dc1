"""An engine's prefix cache, emptied for certain.

vLLM refuses to reset its cache while a request still holds blocks, which the last one of a cell can do for a step
longer than its client waits, and Ray's `reset_prefix_cache` doesn't pass that on. So a prompt is sent before and after
each reset, and the cache is empty when the second one finds nothing of the first.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import httpx

from benchmarks.engine.drive import Endpoint

ATTEMPTS = 20
PROBES_A_REPLICA = 2
PROBE_WORDS = 40
"""Enough for two blocks: the last block of a prompt never counts as cached."""
TIMEOUT_S = 120.0


class NotEmptied(Exception):
    """Raised when an engine's cache can't be emptied; the message is the one line to show."""


def empty(endpoint: Endpoint, replicas: int, reset: Callable[[], None]) -> int:
    """How many resets it took. What is cached then are the last probes; the layer learns them, so give `endpoint` the
    key of a tenant of its own.

    Raises:
        NotEmptied: a prompt was still found after the last attempt, or the server doesn't answer.
    """
    names = [secrets.token_hex(4) for _ in range(replicas * PROBES_A_REPLICA)]
    try:
        for name in names:
            _cached_tokens(endpoint, name)
        for attempt in range(1, ATTEMPTS + 1):
            reset()
            if sum(_cached_tokens(endpoint, name) for name in names) == 0:
                return attempt
    except httpx.HTTPError as error:
        raise NotEmptied(f"{endpoint.url} doesn't answer: {error}") from error
    raise NotEmptied(f"{endpoint.url} still has cached prompts after {ATTEMPTS} resets")


def _cached_tokens(endpoint: Endpoint, name: str) -> int:
    # As the system prompt: without one a chat template may put in its own, which all probes would share.
    text = " ".join([name] * PROBE_WORDS)
    body: dict[str, Any] = {
        "model": endpoint.model,
        "messages": [{"role": "system", "content": text}, {"role": "user", "content": "."}],
        "max_tokens": 1,
    }
    url = f"{endpoint.url}/v1/chat/completions"
    response = httpx.post(url, json=body, headers=endpoint.headers, timeout=TIMEOUT_S, trust_env=False)
    response.raise_for_status()
    details = response.json()["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)
