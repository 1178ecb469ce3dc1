"""The gateway's counters through Ray's metrics; labels are statuses and fixed words only."""

from collections.abc import Mapping, Sequence
from typing import Any

from ray.util import metrics

from serve_app.exchange import GatewayExchange
from serve_app.flight import Admission
from serve_app.routing_state import RoutingState


class GatewayMetrics:
    """One per gateway process."""

    def __init__(self) -> None:
        self._refusals = metrics.Counter(
            "agent_runtime_gateway_refusals", "Requests for an answer that got an error in its place.", ("status",)
        )
        self._retries = metrics.Counter(
            "agent_runtime_gateway_retries", "Requests sent again because their replica died."
        )
        self._routed = metrics.Counter(
            "agent_runtime_gateway_routed", "Requests routed, by how the order was found.", ("how",)
        )
        self._gauges = {
            name: metrics.Gauge(f"agent_runtime_gateway_{name}", text)
            for name, text in (
                ("in_flight", "Requests in flight."),
                ("buffered_events", "Events waiting for the actor."),
                ("dropped_events", "Events dropped because the buffer was full."),
                ("exchange_age_s", "Seconds since the actor last answered."),
            )
        }
        self._policies = metrics.Counter(
            "agent_runtime_gateway_policy", "What the gateway's policies did, by policy and kind.", ("policy", "what")
        )
        self._seen = {"ranked": 0, "fallback": 0}
        self._seen_policies: dict[tuple[str, str], int] = {}
        self.retries = 0

    def count_refusal(self, status: int) -> None:
        self._refusals.inc(1, {"status": str(status)})

    def count_retry(self) -> None:
        self._retries.inc(1)
        self.retries += 1

    def publish_policies(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """`rows` as in GET /runtime/state. Policies and the names of their counters are few and fixed."""
        for row in rows:
            totals = {"decisions": row["decisions"], "failures": row["failures"], **row["counters"]}
            for what, total in totals.items():
                key = (row["name"], what)
                grown = total - self._seen_policies.get(key, 0)
                self._seen_policies[key] = total
                if grown > 0:
                    self._policies.inc(grown, {"policy": row["name"], "what": what})

    def publish_gauges(self, admission: Admission, exchange: GatewayExchange, routing: RoutingState) -> None:
        self._gauges["in_flight"].set(admission.in_flight)
        self._gauges["buffered_events"].set(len(exchange.buffer))
        self._gauges["dropped_events"].set(exchange.buffer.dropped)
        if exchange.age_s != float("inf"):
            self._gauges["exchange_age_s"].set(exchange.age_s)
        for how, total in (("ranked", routing.ranked), ("fallback", routing.fallbacks)):
            if total > self._seen[how]:
                self._routed.inc(total - self._seen[how], {"how": how})
                self._seen[how] = total
