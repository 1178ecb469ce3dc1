"""Which adapters a replica holds: loaded before they are needed, within the engine's slots, the least needed go first.

The engine itself loads an adapter when a request needs it and drops the one unused for longest. This works ahead of
it through the engine's own load and unload, so that a request finds its adapter there, and so that not the one that
is needed next has to go. Without values from the runtime nothing is done here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

from runtime_actor.errors import AgentRuntimeError, EngineBusy, EngineGone

logger = logging.getLogger(__name__)

WAIT_S = 1.0
"""Longest wait between two looks; new values wake it."""


class AdapterFailed(AgentRuntimeError):
    """Raised when the engine refused to load or unload an adapter."""


class AdapterPort(Protocol):
    """The engine's adapters. Calls raise AdapterFailed, EngineBusy or EngineGone."""

    slots: int
    """Adapters that the engine holds at once."""

    async def loaded(self) -> set[str]: ...

    async def load(self, adapter: str) -> None: ...

    async def unload(self, adapter: str) -> None: ...


class AdapterKeeper:
    """Lives on the replica's event loop. `names` are the adapters that there are."""

    def __init__(self, port: AdapterPort, names: frozenset[str]) -> None:
        self._port = port
        self._names = names
        self._values: dict[str, float] = {}
        self._in_use: Counter[str] = Counter()
        self._loaded: set[str] = set()
        self._ahead: set[str] = set()
        """Loaded here and not used since."""
        self._wake = asyncio.Event()
        self.counts: Counter[str] = Counter()

    def take_values(self, values: Mapping[str, Any]) -> None:
        """What each adapter is worth now; unknown names and what is no probability are left out."""
        self._values = {
            name: float(value)
            for name, value in values.items()
            if name in self._names and isinstance(value, (int, float)) and 0.0 < value <= 1.0
        }
        self._wake.set()

    def request_began(self, adapter: str) -> None:
        """A client's request needs it from now on."""
        if adapter not in self._names:
            return
        self._in_use[adapter] += 1
        if adapter in self._ahead:
            self._ahead.discard(adapter)
            self.counts["hidden"] += 1
        elif adapter not in self._loaded:
            self.counts["on_demand"] += 1
        self._loaded.add(adapter)

    def request_ended(self, adapter: str) -> None:
        """A request for the model itself frees nothing, and wakes nobody."""
        if adapter not in self._names:
            return
        self._in_use[adapter] -= 1
        if self._in_use[adapter] <= 0:
            del self._in_use[adapter]
            self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._wake.clear()
            await self.step()
            try:
                async with asyncio.timeout(WAIT_S):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def step(self) -> None:
        """Load what is worth more than what would have to go."""
        if not self._values:
            return
        try:
            self._loaded = await self._port.loaded()
            # What the engine dropped for another before anybody used it.
            self.counts["wasted"] += len(self._ahead - self._loaded)
            self._ahead &= self._loaded
            for adapter in sorted(self._values, key=lambda name: (-self._values[name], name))[: self._port.slots]:
                if adapter not in self._loaded:
                    await self._load(adapter)
        except EngineBusy:
            self.counts["busy"] += 1
        except EngineGone:
            return

    async def _load(self, adapter: str) -> None:
        try:
            if len(self._loaded) >= self._port.slots and not await self._made_room(adapter):
                self.counts["no_room"] += 1
                return
            await self._port.load(adapter)
        except AdapterFailed as error:
            self.counts["failed"] += 1
            logger.warning("Adapter %s was not loaded ahead: %s", adapter, error)
            return
        self._loaded.add(adapter)
        if not self._in_use[adapter]:
            self._ahead.add(adapter)
        self.counts["loaded_ahead"] += 1

    async def _made_room(self, wanted: str) -> bool:
        """The least needed one goes, unless it is needed as much."""
        idle = [name for name in self._loaded if not self._in_use[name]]
        victim = min(idle, key=lambda name: (self._values.get(name, 0.0), name), default=None)
        if victim is None or self._values.get(victim, 0.0) >= self._values[wanted]:
            return False
        await self._port.unload(victim)
        self._loaded.discard(victim)
        if victim in self._ahead:
            self._ahead.discard(victim)
            self.counts["wasted"] += 1
        self.counts["unloaded"] += 1
        return True

    def as_row(self) -> dict[str, Any]:
        """For the replica's report."""
        return {
            "name": "adapters",
            "slots": self._port.slots,
            "loaded": sorted(self._loaded)[:64],
            "counters": {**self.counts},
        }
