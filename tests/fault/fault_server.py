"""A simulated replica that fault tests can look into."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from ray import serve

from replicas.adapters import AdapterKeeper
from replicas.simulated import SimulatedLLMServer


class FaultServer(SimulatedLLMServer):
    async def view(self, _: Any) -> dict[str, Any]:
        """Plain values, a moment later: tests ask until they see a change."""
        await asyncio.sleep(0.05)
        sidecar = self._beside
        return {
            "replica": self._name(),
            "pid": os.getpid(),
            "failures": sidecar.stats.exchange_failures,
            "last_failure": sidecar.exchange.last_failure,
            "epoch": sidecar.exchange.epoch,
            "waiting_events": len(sidecar.events),
            "adapters": self._adapter_keeper.as_row(),
        }

    def _keeper(self) -> AdapterKeeper | None:
        made = super()._keeper()
        assert made is not None, "these tests deploy adapters"
        self._adapter_keeper = made
        return made

    async def die_if(self, replica: str) -> None:
        if replica == self._name():
            await self.simulate_fault("die")

    def _name(self) -> str:
        return serve.get_replica_context().replica_id.unique_id
