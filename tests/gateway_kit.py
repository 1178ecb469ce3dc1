"""Requests and readings that the tests over HTTP share."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx

MODEL = "smollm2-135m-instruct"
PREFIX = "x-agent-runtime-"


def body(text: str = "Say hi", system: Any = None, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}] if system is not None else []
    return {
        "model": MODEL,
        "max_tokens": 1,
        "messages": [*messages, {"role": "user", "content": text}],
        **fields,
    }


def chat(
    client: httpx.Client,
    text: str = "Say hi",
    system: Any = None,
    headers: dict[str, str] | None = None,
    **fields: Any,
) -> httpx.Response:
    return client.post("/v1/chat/completions", json=body(text, system, **fields), headers=headers)


def ours(response: httpx.Response, name: str) -> str:
    return response.headers[PREFIX + name]


def cached(response: httpx.Response) -> int:
    return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def payloads(response: httpx.Response) -> list[Any]:
    """A stream's events as objects; [DONE] must be the last and only once."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]" and lines.count("[DONE]") == 1
    return [json.loads(line) for line in lines[:-1]]


def assert_error(response: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    assert response.status_code == status, response.text[:500]
    assert response.headers["content-type"].startswith("application/json")
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and isinstance(error["type"], str)
    assert error["param"] is None or isinstance(error["param"], str)
    if code is not None:
        assert error["code"] == code
    return error


def state(client: httpx.Client) -> dict[str, Any]:
    response = client.get("/runtime/state")
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def agents(client: httpx.Client) -> dict[str, dict[str, Any]]:
    return {agent["agent"]: agent for agent in state(client)["agents"]}


def wait_for(holds: Callable[[], bool], limit_s: float, what: str) -> None:
    deadline_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {limit_s:g} s: {what}"
        time.sleep(0.1)
