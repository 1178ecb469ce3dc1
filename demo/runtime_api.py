"""The server's own routes beside the OpenAI ones: state, policy, events."""

from __future__ import annotations

from typing import Any

import httpx

TIMEOUT_S = 30.0


class DemoError(Exception):
    """Raised when the server doesn't answer as documented; the message is the one line to show."""


class RuntimeApi:
    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False)
        self._url = url

    def model(self) -> str:
        return str(self._call("GET", "/v1/models")["data"][0]["id"])

    def state(self) -> dict[str, Any]:
        return self._call("GET", "/runtime/state")

    def set_policy(self, mode: str) -> None:
        """`lru` is stock vLLM and no prefetch, everything else learns and prefetches."""
        body = {"name": "kv_cache", "mode": mode, "prefetch": mode != "lru"}
        self._call("POST", "/runtime/policy", body)

    def end_session(self, session_id: str) -> None:
        self._call("POST", "/runtime/events", {"type": "session_ended", "session_id": session_id})

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            response = self._client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise DemoError(f"no server at {self._url} ({error}); start one: scripts/serve") from error
        if response.status_code >= 400:
            raise DemoError(f"{method} {path}: {response.status_code} {response.text[:300]}")
        answer = response.json()
        if not isinstance(answer, dict):
            raise DemoError(f"{method} {path}: expected a JSON object")
        return answer
