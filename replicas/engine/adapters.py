"""vLLM's adapters: their names known from the start, loaded and unloaded through the engine's public calls."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from vllm.lora.request import LoRARequest
from vllm.v1.engine.exceptions import EngineDeadError

from replicas.adapters import AdapterFailed
from runtime_actor.errors import EngineBusy, EngineGone


class VllmAdapters:
    """`client` is vLLM's AsyncLLM. `paths`: adapter -> folder in PEFT's format."""

    def __init__(self, client: Any, paths: Mapping[str, str], *, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._requests = {
            name: LoRARequest(lora_name=name, lora_int_id=number, lora_path=path)
            for number, (name, path) in enumerate(sorted(paths.items()), 1)
        }
        config = client.vllm_config.lora_config
        self.slots = int(config.max_cpu_loras or config.max_loras)

    def announce(self, models: Any) -> None:
        """So that a request finds its adapter by name; `models` is vLLM's OpenAIServingModels. Nothing is loaded."""
        models.lora_requests.update(self._requests)
        models.lora_id_counter.inc(len(self._requests))

    async def loaded(self) -> set[str]:
        ids = await self._call(self._client.list_loras())
        return {name for name, request in self._requests.items() if request.lora_int_id in ids}

    async def load(self, adapter: str) -> None:
        if not await self._call(self._client.add_lora(self._requests[adapter])):
            raise AdapterFailed(f"{adapter}: the engine did not take it")

    async def unload(self, adapter: str) -> None:
        await self._call(self._client.remove_lora(self._requests[adapter].lora_int_id))

    async def _call(self, call: Any) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await call
        except TimeoutError as error:
            raise EngineBusy(f"adapters: no answer within {self._timeout_s} s") from error
        except EngineDeadError as error:
            raise EngineGone("the engine process died") from error
        except Exception as error:  # vLLM passes the worker's own exception on, of whatever class
            raise AdapterFailed(str(error)[:300]) from error
