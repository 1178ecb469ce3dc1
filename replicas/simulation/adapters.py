"""The simulated engine's adapters: slots, the one unused for longest goes, loading takes time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from replicas.adapters import AdapterFailed


class SimulatedAdapters:
    """`load_s` seconds an adapter; `loads` counts them all, those of requests that found none too."""

    def __init__(self, slots: int, load_s: float) -> None:
        self.slots = slots
        self.loads = 0
        self._load_s = load_s
        self._held: OrderedDict[str, None] = OrderedDict()
        self._loading = asyncio.Lock()

    async def loaded(self) -> set[str]:
        return set(self._held)

    async def load(self, adapter: str) -> None:
        await self.use(adapter)

    async def unload(self, adapter: str) -> None:
        if adapter not in self._held:
            raise AdapterFailed(f"{adapter}: not loaded")
        del self._held[adapter]

    async def use(self, adapter: str) -> None:
        """What the engine does before a request's first step."""
        async with self._loading:
            if adapter not in self._held:
                if self._load_s:
                    await asyncio.sleep(self._load_s)
                self.loads += 1
                self._held[adapter] = None
                if len(self._held) > self.slots:
                    self._held.popitem(last=False)
            self._held.move_to_end(adapter)
