"""The replica: Ray's LLMServer with the runtime layer beside its engine.

`chat`, `completions` and `responses` yield `RequestAccepted(...).to_wire()` (a dict) before their items; a
response without it is a refusal. `responses` is vLLM's own, which the base class doesn't offer. Everything else is
the base class's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import ray
from ray import serve
from ray.serve.llm import LLMConfig
from ray.serve.llm.deployment import LLMServer
from ray.serve.llm.openai_api_models import CompletionRequest

from replicas.adapters import AdapterKeeper, AdapterPort
from replicas.engine.adapters import VllmAdapters
from replicas.engine.port import EnginePort
from replicas.engine.ray_engine import client_of, models_of, restore_tokenization
from replicas.engine.responses import create_response
from replicas.engine.vllm_port import VllmPort
from replicas.exchange import ReplicaName
from replicas.garbage import freeze_what_stays
from replicas.internal_port import bind_to_node_address
from replicas.requests import RequestLedger
from replicas.responses_call import ResponsesCall
from replicas.settings import ReplicaSettings
from replicas.sidecar import Sidecar
from runtime_actor.client import RuntimeClient


class AgentLLMServer(LLMServer):
    """One engine, its exchange with the runtime actor, its warm-ups and its watchdog.

    Args:
        replica: values of ReplicaSettings.
        runtime: values of RuntimeSettings, for the actor if this replica is the first to miss it.
        config_version: grows from one deployment to the next; the actor follows the newest.
        adapters: name -> folder of each LoRA adapter that requests may name as their model.
    """

    _sidecar: Sidecar | None = None
    _settings = ReplicaSettings()
    _runtime: Mapping[str, Any] = MappingProxyType({})
    _config_version = 1
    _adapters: Mapping[str, str] = MappingProxyType({})

    async def __init__(
        self,
        llm_config: LLMConfig,
        *,
        replica: dict[str, Any] | None = None,
        runtime: dict[str, Any] | None = None,
        config_version: int = 1,
        adapters: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        bind_to_node_address()
        self._settings = ReplicaSettings.from_dict(replica)
        self._runtime = runtime or {}
        self._config_version = config_version
        self._adapters = adapters or {}
        await super().__init__(llm_config, **kwargs)

    async def start(self) -> None:
        """Start the engine, then what runs beside it."""
        await super().start()
        await self._answer_once()
        restore_tokenization(self.engine)
        name = ReplicaName(
            replica=serve.get_replica_context().replica_id.unique_id,
            node=ray.get_runtime_context().get_node_id(),
        )
        client = RuntimeClient(dict(self._runtime), self._config_version)
        self._sidecar = Sidecar(
            name=name,
            port_of=self._port,
            call=client.exchange,
            settings=self._settings,
            adapters=self._keeper(),
            config_version=self._config_version,
        )
        self._sidecar.start()
        freeze_what_stays()

    async def _answer_once(self) -> None:
        """One token, nobody's: a replica that Serve calls healthy has answered a request.

        Raises:
            RuntimeError: the engine refused it.
        """
        request = CompletionRequest(model=self._llm_config.model_id, prompt=[1], max_tokens=1)
        async for item in self.engine.completions(request, None):
            refused = getattr(item, "error", None)
            if refused is not None:
                raise RuntimeError(f"the engine refused its first request: {refused.message}")

    def _keeper(self) -> AdapterKeeper | None:
        """Who loads adapters ahead; None where there are none."""
        return AdapterKeeper(self._adapter_port(), frozenset(self._adapters)) if self._adapters else None

    def _adapter_port(self) -> AdapterPort:
        timeout_s = self._settings.exchange.engine_timeout_s
        made = VllmAdapters(client_of(self.engine), self._adapters, timeout_s=timeout_s)
        made.announce(models_of(self.engine))
        return made

    def _port(self, ledger: RequestLedger) -> EnginePort:
        return VllmPort(
            self.engine,
            ledger,
            model_id=self._llm_config.model_id,
            timeout_s=self._settings.exchange.engine_timeout_s,
        )

    async def chat(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        return self._beside.respond(request, partial(super().chat, request, raw_request_info))

    async def completions(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        return self._beside.respond(request, partial(super().completions, request, raw_request_info))

    async def responses(self, request: ResponsesCall, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        return self._beside.respond(request, partial(self._open_responses, request, raw_request_info))

    async def _open_responses(self, request: ResponsesCall, raw_request_info: Any) -> AsyncGenerator[Any, None]:
        raw_request = raw_request_info.to_starlette_request() if raw_request_info is not None else None
        return create_response(self.engine, request, raw_request)

    async def record_routing_stats(self) -> dict[str, Any]:
        stats = await super().record_routing_stats()
        return {**stats, "agent_runtime": self._sidecar.routing_stats()} if self._sidecar else stats

    async def __del__(self) -> None:
        sidecar, self._sidecar = self._sidecar, None
        if sidecar is not None:
            await sidecar.stop()
        await super().__del__()

    @property
    def _beside(self) -> Sidecar:
        if self._sidecar is None:
            raise RuntimeError("the replica's engine is not started")
        return self._sidecar
