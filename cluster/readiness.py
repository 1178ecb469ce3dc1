"""Ready means: a real request got an answer from every replica."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx

from cluster.errors import LaunchError

REQUEST_TIMEOUT_S = 60.0
PAUSE_S = 0.2


def wait_for_answers(
    url: str,
    model: str,
    replicas: int,
    timeout_s: float,
    progress: Callable[[int, int], None],
    api_key: str | None = None,
) -> None:
    """Send one-token requests until `replicas` different replicas have answered one.

    Each request is a session of its own, ended with the request, so that routing spreads them and nothing
    stays behind in the runtime's view of live sessions.

    Raises:
        LaunchError: `timeout_s` is over; names the last answer.
    """
    seen: set[str] = set()
    last = "no answer"
    deadline_s = time.monotonic() + timeout_s
    attempt = 0
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    with httpx.Client(base_url=url, headers=headers, timeout=REQUEST_TIMEOUT_S, trust_env=False) as client:
        while time.monotonic() < deadline_s:
            attempt += 1
            try:
                response = _ask(client, model, attempt)
                last = f"{response.status_code} {response.text[:200]}"
            except httpx.HTTPError as error:
                last = f"{type(error).__name__}: {error}"
            else:
                if response.status_code == 200:
                    seen.add(response.headers.get("x-agent-runtime-replica", "unnamed"))
                    progress(len(seen), replicas)
                    if len(seen) >= replicas:
                        return
                    continue
            time.sleep(PAUSE_S)
    raise LaunchError(
        f"only {len(seen)} of {replicas} replicas answered within {timeout_s:.0f} s (last answer: {last})"
    )


def _ask(client: httpx.Client, model: str, attempt: int) -> httpx.Response:
    return client.post(
        "/v1/chat/completions",
        json={
            "model": model,
            "max_tokens": 1,
            "messages": [
                {"role": "system", "content": f"Readiness check {attempt}."},
                {"role": "user", "content": "ok?"},
            ],
        },
        headers={
            "x-session-id": f"readiness-{attempt}",
            "x-claude-code-agent-id": "readiness",
            "x-dynamo-session-final": "true",
        },
    )
