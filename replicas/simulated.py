"""A replica without a model: the runtime layer of a real one beside a simulated engine."""

from __future__ import annotations

from functools import partial
from typing import Any

from ray.serve.llm import LLMConfig

from replicas.adapters import AdapterPort
from replicas.engine.messages import EngineSettings
from replicas.engine.port import EnginePort
from replicas.requests import RequestLedger
from replicas.server import AgentLLMServer
from replicas.simulation.engine import CostModel
from replicas.simulation.openai import SimulatedEngine
from replicas.simulation.port import SimulatedPort
from runtime_actor.settings import from_dict


class SimulatedLLMServer(AgentLLMServer):
    """AgentLLMServer with a cost model instead of vLLM.

    Args:
        simulated: values of CostModel.
        values: what `additional_config` says of the eviction order for vLLM (EngineSettings).

    Raises:
        ConfigurationError: names the key, the value and what is allowed.
    """

    async def __init__(
        self,
        llm_config: LLMConfig,
        *,
        simulated: dict[str, Any] | None = None,
        values: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        cost = from_dict(CostModel, simulated or {}, "simulated")
        engine_cls = partial(SimulatedEngine, cost=cost, values=EngineSettings.from_config(values or {}).values)
        await super().__init__(llm_config, engine_cls=engine_cls, **kwargs)

    def _adapter_port(self) -> AdapterPort:
        return self.engine.core.adapters

    def _port(self, ledger: RequestLedger) -> EnginePort:
        engine = self.engine
        engine.ledger = ledger
        return SimulatedPort(engine.core, timeout_s=self._settings.exchange.engine_timeout_s)

    async def simulate_fault(self, fault: str) -> None:
        """For fault tests: `die`, `freeze` or `thaw` the engine."""
        faults = {
            "die": self.engine.core.die,
            "freeze": self.engine.core.freeze,
            "thaw": self.engine.core.thaw,
        }
        if fault not in faults:
            raise ValueError(f"fault must be one of {', '.join(faults)}, got {fault!r}")
        faults[fault]()
