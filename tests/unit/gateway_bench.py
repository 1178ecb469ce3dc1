"""A gateway whose replicas and actor are plain objects, and an HTTP client on it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import pickle
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import uvicorn
from ray.serve.llm.openai_api_models import ChatCompletionResponse

from runtime_actor.errors import ConfigurationError, RuntimeUnavailable
from runtime_actor.memo_actor import MemoActor
from runtime_actor.messages import ExchangeReply
from serve_app import app as application
from serve_app.config import load
from serve_app.gateway import Gateway, Surroundings
from serve_app.http.app import make_app
from serve_app.routing_state import RoutingState
from serve_app.settings import GatewaySettings
from tests.gateway_kit import wait_for

KEYS = {"one": "k1", "ops": "k2"}
CHUNK = 'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
DONE = "data: [DONE]\n\n"


class Answer:
    """A non-streaming answer of the engine."""

    def model_dump(self) -> dict[str, Any]:
        return {"id": "x", "choices": [], "usage": {"prompt_tokens": 40, "prompt_tokens_details": None}}


def chat_answer(content: str | None = "by train", **message: Any) -> ChatCompletionResponse:
    whole = {"role": "assistant", "content": content, **message}
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    return ChatCompletionResponse(
        model="m",
        choices=[{"index": 0, "message": whole, "finish_reason": reason}],
        usage={"prompt_tokens": 40, "completion_tokens": 3, "total_tokens": 43},
    )


class FakeHandle:
    """Takes a request as a replica would and answers with the next of `scripts`, else with `items`.

    An exception is raised in its place; at "stall" nothing more comes.
    """

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.scripts: list[list[Any]] = []
        self.requests: list[tuple[Any, Any]] = []
        self.cancelled = 0
        self.chat = self.completions = self.responses = SimpleNamespace(remote=self._remote)
        self.tokenize = self.detokenize = self.chat

    def _remote(self, request: Any, raw: Any) -> FakeHandle:
        pickle.dumps((request, raw))  # As a replica's process would get them.
        self.requests.append((request, raw))
        return self

    async def __aiter__(self) -> AsyncIterator[Any]:
        for item in self.scripts.pop(0) if self.scripts else list(self.items):
            if item == "stall":
                await asyncio.Event().wait()
            if isinstance(item, BaseException):
                raise item
            yield item

    def cancel(self) -> None:
        self.cancelled += 1


class FakeActor:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.away = False

    async def exchange(self, request: Any) -> ExchangeReply:
        if self.away:
            raise RuntimeUnavailable("away")
        self.events += request.events
        return ExchangeReply(1, 1, {}, [], [], 60.0)

    async def state(self, tenant: str | None) -> dict[str, Any]:
        if self.away:
            raise RuntimeUnavailable("away")
        return {"version": 1, "tenant": tenant, "events": [event["kind"] for event in self.events]}

    async def predict(self, tenant: str, session: str, horizon: int) -> dict[str, Any] | None:
        if horizon > 64:
            raise ConfigurationError(f"horizon: {horizon} is not allowed; allowed: a whole number from 1 to 64")
        return None if session.startswith("s-") and tenant == "two" else {"session": session, "horizon": horizon}

    async def set_policy(self, name: str, changes: dict[str, Any]) -> dict[str, Any]:
        return changes


class LocalActor:
    """A plain object called as a Ray actor is: `handle.method.remote(...)`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self._actor, name))


def assembled(settings: GatewaySettings, client: Any, routing: RoutingState) -> Any:
    """A gateway as a process of its own has it, without Ray."""
    gateway = Gateway.__new__(Gateway)
    metrics = SimpleNamespace(count_refusal=lambda _: None, count_retry=lambda: None, retries=0)
    gateway.assemble(settings, Surroundings("g", client, metrics, routing, _memo_actor))
    return gateway


def _memo_actor(max_bytes: int, max_bytes_per_tenant: int) -> LocalActor:
    return LocalActor(MemoActor(max_bytes, max_bytes_per_tenant))


class Bench:
    """A gateway without Ray, and an HTTP client on it."""

    def __init__(self, policies: list[dict[str, Any]] | None = None, **gateway_options: Any) -> None:
        keys = [
            {"tenant": name, "sha256": hashlib.sha256(key.encode()).hexdigest(), "operator": name == "ops"}
            for name, key in KEYS.items()
        ]
        options = {"api_keys": keys, "max_in_flight": 2, **gateway_options}
        config = load({"model": {"id": "m", "source": "x"}, "gateway": options, "policies": policies or []})
        self.handle, self.actor, self.routing = FakeHandle(), FakeActor(), RoutingState()
        settings = GatewaySettings(config, b"secret", {}, 1, 100, 200, True)
        self.gateway = gateway = assembled(settings, self.actor, self.routing)
        gateway._get_configured_serve_handle = lambda _: self.handle
        asgi = make_app(config.gateway)
        for name, route in application.ENDPOINTS.items():
            route(asgi)(getattr(gateway, name))
        self.asgi = asgi

    def ask(self, method: str, path: str, tenant: str | None = "one", **options: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {KEYS[tenant]}"} if tenant else {}
        headers |= options.pop("headers", {})

        async def main() -> httpx.Response:
            transport = httpx.ASGITransport(self.asgi, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, headers=headers, **options)

        return asyncio.run(main())

    def chat(self, **fields: Any) -> httpx.Response:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
        return self.ask("POST", "/v1/chat/completions", json=body)

    @property
    def buffered(self) -> int:
        return len(self.gateway._exchange.buffer) + len(self.actor.events)


@contextlib.contextmanager
def listening(bench: Bench) -> Iterator[str]:
    """The gateway on a port of its own; gives its address."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(bench.asgi, log_level="error", lifespan="off"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[bound])))
        thread.start()
        wait_for(lambda: server.started, 20.0, "the gateway listens")
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join(20.0)
