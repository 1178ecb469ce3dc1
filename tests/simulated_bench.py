"""The whole tier in one process: gateway, runtime core and a simulated engine, without Ray's processes."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
from vllm.entrypoints.serve.engine.protocol import ErrorResponse

from replicas.cache.settings import ValueSettings
from replicas.engine.responses import create_response
from replicas.simulation.engine import CostModel, SimulatedRequest
from replicas.simulation.openai import SimulatedEngine, Usage
from runtime_actor.messages import (
    OWNER_XARG,
    ExchangeReply,
    ExchangeRequest,
    OwnerTag,
    ReplicaReport,
    RequestAccepted,
    RequestFinished,
)
from runtime_actor.runtime import AgentRuntime
from runtime_actor.settings import RuntimeSettings
from serve_app import app as application
from serve_app.config import AppConfig, load
from serve_app.http.app import make_app
from serve_app.routing_state import RoutingState
from serve_app.settings import GatewaySettings
from tests.responses_engine import SimulatedResponses
from tests.unit.gateway_bench import assembled

MODEL = "m"
KEYS = {"one": "key-one", "two": "key-two", "ops": "key-ops"}
COST = CostModel(prefill_s_per_token=0.0, decode_s_per_token=0.0, num_blocks=256, max_model_len=4096)
SECRET = b"a secret of the bench, 32 bytes!"


class TellingEngine(SimulatedEngine):
    """Remembers each request's usage, which a replica's ledger would."""

    last: Usage
    last_salt: str | None = None

    def _sequence(self, request: Any, ids: tuple[int, ...], max_tokens: int, usage: Usage) -> SimulatedRequest:
        self.last = usage
        self.last_salt = request.cache_salt
        return super()._sequence(request, ids, max_tokens, usage)


class ReplicaCall:
    """One call to the replica: what the engine accepted first, then its items."""

    def __init__(self, bench: SimulatedBench, items: AsyncIterator[Any], request: Any) -> None:
        self._bench = bench
        self._items = items
        self._request = request

    async def __aiter__(self) -> AsyncIterator[Any]:
        usage: Usage | None = None
        async for item in self._items:
            if usage is None and not isinstance(item, ErrorResponse) and hasattr(self._request, "vllm_xargs"):
                usage = self._bench.engine.last
                yield RequestAccepted("sim", usage.prompt_tokens, usage.cached_tokens).to_wire()
            yield item
        if usage is not None:
            self._bench.finished(self._request, usage)

    def cancel(self) -> None:
        return None


class DirectActor:
    """The runtime core behind the client's methods."""

    def __init__(self, runtime: AgentRuntime) -> None:
        self._runtime = runtime

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        return self._runtime.exchange(request)

    async def state(self, tenant: str | None) -> dict[str, Any]:
        return self._runtime.state(tenant)

    async def predict(self, tenant: str, session: str, horizon: int) -> dict[str, Any] | None:
        return self._runtime.predict(tenant, session, horizon)

    async def set_policy(self, name: str, changes: dict[str, Any]) -> dict[str, Any]:
        return self._runtime.set_policy(name, changes)


class SimulatedBench:
    """`ask` sends a request as `tenant`; `gateway` overrides parts of the configuration's section."""

    def __init__(
        self, *, keys: bool = True, runtime: RuntimeSettings | None = None, cost: CostModel = COST, **gateway: Any
    ) -> None:
        self.runtime = AgentRuntime(runtime or RuntimeSettings(), time.time)
        self.engine = TellingEngine(SimpleNamespace(model_id=MODEL), cost, ValueSettings())  # type: ignore[arg-type]
        self._numbers = itertools.count()
        self._events: list[dict[str, Any]] = []
        config = load({"model": {"id": MODEL, "source": "x"}, "gateway": {**(_keys() if keys else {}), **gateway}})
        self._config = config
        self.take_over()

    def take_over(self) -> None:
        """From now on another gateway answers, which knows what the actor tells it."""
        self.gateway = self._make(self._config)
        self.asgi = make_app(self._config.gateway)
        for name, route in application.ENDPOINTS.items():
            route(self.asgi)(getattr(self.gateway, name))

    def _make(self, config: AppConfig) -> Any:
        settings = GatewaySettings(config, SECRET, {}, 1, COST.max_model_len, COST.max_model_len, True)
        made = assembled(settings, DirectActor(self.runtime), RoutingState())
        made._get_configured_serve_handle = lambda _: self
        return made

    # --- the replica's side -----------------------------------------------------------------------------

    @property
    def chat(self) -> Any:
        return SimpleNamespace(remote=lambda r, raw: ReplicaCall(self, self.engine.chat(r), r))

    @property
    def completions(self) -> Any:
        return SimpleNamespace(remote=lambda r, raw: ReplicaCall(self, self.engine.completions(r), r))

    @property
    def responses(self) -> Any:
        """By vLLM's own parts as far as they need no engine of vLLM's."""
        serving = SimpleNamespace(openai_serving_responses=SimulatedResponses(self.engine))
        engine = SimpleNamespace(_app_state=serving)
        return SimpleNamespace(remote=lambda r, raw: ReplicaCall(self, create_response(engine, r, raw), r))

    @property
    def tokenize(self) -> Any:
        return SimpleNamespace(remote=lambda r, raw: ReplicaCall(self, self.engine.tokenize(r), r))

    @property
    def detokenize(self) -> Any:
        return SimpleNamespace(remote=lambda r, raw: ReplicaCall(self, self.engine.detokenize(r), r))

    def finished(self, request: Any, usage: Usage) -> None:
        """What the replica would tell the actor."""
        tag = OwnerTag.decode(request.vllm_xargs[OWNER_XARG])
        self._events.append(
            RequestFinished(
                f"r{next(self._numbers)}", time.time(), tag.workload, tag.workload, tag.session, tag.agent, "sim",
                usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, "length", 0.1, 0.2,
            ).to_wire()
        )  # fmt: skip

    def report(self) -> None:
        """One exchange of the replica with the actor."""
        blocks = self.engine.core.cost.num_blocks
        report = ReplicaReport(
            "sim", "n", time.time(), "reach", COST.block_size, blocks, blocks, 0, 0,
            self.engine.core.cache.residency(), {}, [], 0, 0, 0, 0,
        )  # fmt: skip
        events, self._events = self._events, []
        self.runtime.exchange(ExchangeRequest("sim", "replica", self.runtime.epoch, 0, events, report.to_wire()))

    # --- the client's side ------------------------------------------------------------------------------

    async def send(self, method: str, path: str, tenant: str | None = "one", **options: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {KEYS[tenant]}"} if tenant else {}
        headers |= options.pop("headers", {})
        transport = httpx.ASGITransport(self.asgi, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, headers=headers, **options)


def _keys() -> dict[str, Any]:
    entries = [
        {"tenant": name, "sha256": hashlib.sha256(key.encode()).hexdigest(), "operator": name == "ops"}
        for name, key in KEYS.items()
    ]
    return {"api_keys": entries}
