"""Fairness: whoever has had least service goes next, among tenants first and among a tenant's agents then.

Virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024), two levels deep:
each request adds its weighted cost to its tenant's and its agent's counter, the least it can cost when it is
sent and the rest when it is served. So counters only grow, and a flow that starts at the least one keeps its
turn. A flow that comes back after a pause starts at the least counter of those that wait or run, so that time
away earns no credit. It only orders: no place is kept empty for anybody.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from runtime_actor.errors import ConfigurationError
from runtime_actor.policies.base import (
    GATEWAY,
    Clock,
    Observation,
    Ordered,
    Refusal,
    RequestRefused,
    RequestSent,
    RequestServed,
    RequestView,
)
from runtime_actor.policies.own import OwnPolicy
from runtime_actor.settings import AnyPolicySettings, number

MAX_TENANTS = 4096
MAX_AGENTS = 256
"""Of a tenant. Of both the idle ones are remembered; beyond a bound the one idle for longest is forgotten, which costs
nothing: it would start at the least counter of the active ones anyhow."""
MAX_REQUESTS = 100_000


@dataclass(frozen=True, slots=True)
class FairnessOptions:
    """What a token costs, and a second of a token's place in the cache. `weights`: a tenant with 2 gets twice
    the service of one with 1, the default. `max_waiting_per_tenant` keeps one tenant from taking all places in
    the gateway's queue; beyond it its requests are refused with 429."""

    prefill_cost: float = number(1.0, 0.0, 1000.0)
    cached_cost: float = number(0.1, 0.0, 1000.0)
    decode_cost: float = number(2.0, 0.0, 1000.0)
    held_cost_per_s: float = number(0.01, 0.0, 1000.0)
    max_waiting_per_tenant: int = number(128, 1, 100_000)
    weights: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Flow:
    """A tenant, or an agent of one. `active`: its requests that wait or run."""

    counter: float = 0.0
    active: int = 0
    waiting: int = 0


class Level:
    """Flows that compete with each other; of idle ones no more than make `cap` in all."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._flows: OrderedDict[str, Flow] = OrderedDict()
        self._active: dict[str, Flow] = {}
        self._floor = 0.0
        """The least counter of the active flows when there last were some."""

    def join(self, name: str) -> Flow:
        """A request of the flow has come."""
        flow = self._flows.get(name)
        if flow is None:
            flow = self._flows[name] = Flow(self.floor)
        elif not flow.active:
            flow.counter = max(flow.counter, self.floor)
        flow.active += 1
        self._active[name] = flow
        self._flows.move_to_end(name)
        self._trim()
        return flow

    def leave(self, name: str, flow: Flow) -> None:
        """One of its requests is over."""
        flow.active -= 1
        if not flow.active and self._active.get(name) is flow:
            self._floor = min(other.counter for other in self._active.values())
            del self._active[name]

    def get(self, name: str) -> Flow | None:
        return self._flows.get(name)

    @property
    def floor(self) -> float:
        if self._active:
            self._floor = min(flow.counter for flow in self._active.values())
        return self._floor

    def _trim(self) -> None:
        if len(self._flows) > self._cap:
            idle = next((name for name, flow in self._flows.items() if not flow.active), None)
            if idle is not None:
                del self._flows[idle]

    def __len__(self) -> int:
        return len(self._flows)


@dataclass(slots=True)
class Charge:
    """What a request was charged so far; `is_sent`: it is no longer waiting."""

    tenant: Flow
    agent: Flow
    weight: float
    amount: float = 0.0
    is_sent: bool = False

    def add(self, amount: float) -> None:
        self.amount += amount
        self.tenant.counter += amount / self.weight
        self.agent.counter += amount


class FairnessPolicy(OwnPolicy[FairnessOptions]):
    """Order: the tenant's counter, then the agent's; of equal ones, whoever has less in the engines. Without that
    a flow that comes back, and starts at the least counter, would wait behind the one that holds it."""

    name: ClassVar[str] = "fairness"
    seat: ClassVar[str] = GATEWAY
    kind: ClassVar[type[Any]] = FairnessOptions
    lets_lead: ClassVar[bool] = True

    def __init__(self, settings: AnyPolicySettings, substrate: Clock) -> None:
        super().__init__(settings, substrate)
        for tenant, weight in self.options.weights.items():
            if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0.001 <= weight <= 1000.0:
                raise ConfigurationError(
                    f"policies.fairness.options.weights.{tenant}: {weight!r} is not allowed; allowed: a number from "
                    "0.001 to 1000"
                )
        self._tenants = Level(MAX_TENANTS)
        self._agents: OrderedDict[str, Level] = OrderedDict()
        self._charges: dict[int, Charge] = {}

    def admit(self, request: RequestView) -> Refusal | None:
        """Enters the request in the account. Refused are those of a tenant that fills the queue by itself."""
        known = self._tenants.get(request.tenant)
        if (known is not None and known.waiting >= self.options.max_waiting_per_tenant) or (
            len(self._charges) >= MAX_REQUESTS
        ):
            self._counts["refused"] += 1
            return Refusal(429, "tenant_overloaded", "Too many requests of this tenant wait.", retry_after_s=1.0)
        tenant = self._tenants.join(request.tenant)
        agent = self._level(request.tenant).join(request.agent)
        tenant.waiting += 1
        weight = float(self.options.weights.get(request.tenant, 1.0))
        self._charges[request.request_id] = Charge(tenant, agent, weight)
        return None

    def _level(self, tenant: str) -> Level:
        level = self._agents.get(tenant)
        if level is None:
            level = self._agents[tenant] = Level(MAX_AGENTS)
            if len(self._agents) > MAX_TENANTS:
                self._drop_idle_level()
        self._agents.move_to_end(tenant)
        return level

    def _drop_idle_level(self) -> None:
        for tenant in self._agents:
            flow = self._tenants.get(tenant)
            if flow is None or not flow.active:
                del self._agents[tenant]
                return

    def order(self, items: Sequence[Ordered]) -> Sequence[tuple[float, ...] | None]:
        return [self._key(item) for item in items]

    def _key(self, item: Ordered) -> tuple[float, ...] | None:
        charge = self._charges.get(item.request_id) if isinstance(item, RequestView) else None
        if charge is None:
            return None
        tenant, agent = charge.tenant, charge.agent
        return tenant.counter, tenant.active - tenant.waiting, agent.counter, agent.active

    def observe(self, event: Observation) -> None:
        if isinstance(event, RequestSent):
            charge = self._charges.get(event.request.request_id)
            if charge is not None and not charge.is_sent:
                charge.is_sent = True
                charge.tenant.waiting -= 1
                charge.add(self.options.cached_cost * event.request.prompt_tokens)
                self._counts["sent"] += 1
        elif isinstance(event, (RequestServed, RequestRefused)):
            charge = self._charges.pop(event.request.request_id, None)
            if charge is not None:
                self._settle(charge, event)

    def _settle(self, charge: Charge, event: RequestServed | RequestRefused) -> None:
        """From the least it could cost to what it did; a request that never left the queue costs nothing. One whose
        client left before its first token was computed for as much as any: its estimate stands for that."""
        if isinstance(event, RequestServed):
            prompt_tokens = event.prompt_tokens or event.request.prompt_tokens
            cost = self._cost(prompt_tokens, event.cached_tokens, event.output_tokens, event.held_s)
            charge.add(max(0.0, cost - charge.amount))
        if not charge.is_sent:
            charge.tenant.waiting -= 1
        tenant, agent = event.request.tenant, event.request.agent
        self._tenants.leave(tenant, charge.tenant)
        level = self._agents.get(tenant)
        if level is not None:
            level.leave(agent, charge.agent)

    def _cost(self, prompt_tokens: int, cached_tokens: int, output_tokens: int, held_s: float) -> float:
        options = self.options
        computed = max(0, prompt_tokens - cached_tokens)
        held = (prompt_tokens + output_tokens) * held_s * options.held_cost_per_s
        service = options.prefill_cost * computed + options.cached_cost * cached_tokens
        return service + options.decode_cost * output_tokens + held

    def counters(self) -> Mapping[str, int]:
        return {**self._counts, "tenants": len(self._tenants), "in_account": len(self._charges)}
