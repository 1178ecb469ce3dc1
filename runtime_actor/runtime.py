"""AgentRuntime: the third tier's core. Events in; tables, forecasts and actions out. No I/O, no threads.

One exchange is: take events -> take the caller's report -> let time pass -> score -> act -> answer.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable
from typing import Any, Self

from runtime_actor.dispatch import PrefetchDispatch
from runtime_actor.downlink import Downlink
from runtime_actor.errors import CheckpointError, ConfigurationError, MessageError
from runtime_actor.intake import Registration, ReplicasLost
from runtime_actor.learned import Changes, LearnedState
from runtime_actor.messages import ExchangeReply, ExchangeRequest, PrefetchAction, ReplicaReport
from runtime_actor.pace import Pace
from runtime_actor.policies import catalogue
from runtime_actor.policies.adapters import AdaptersPolicy
from runtime_actor.policies.base import ACTOR, ENGINE, AdapterSuggestion, CacheOwner
from runtime_actor.policies.host import PolicyHost
from runtime_actor.policies.kv_cache import KvCachePolicy
from runtime_actor.settings import (
    PluggedSettings,
    PolicySettings,
    PrefetchSettings,
    RuntimeSettings,
    replace_checked,
    to_dict,
)
from runtime_actor.shared import SharedState
from runtime_actor.state_view import engine_policy_rows, shared_state_view
from runtime_actor.stats import RuntimeStats, runtime_stats

logger = logging.getLogger(__name__)

GATEWAY = "gateway"
REPLICA = "replica"
STATE_FORMAT = 1
MAX_REGISTERED = 4096
"""Sessions taken from one report, the newest: some 100 ms of work, in which nobody else is answered."""
STOCK_ORDER = {"mode": "lru", "weight": 0.0, "prefetch": False}
"""What replicas do while the KV-cache policy is off: the engine's own order, no warm-ups."""


class AgentRuntime:
    """Owner of the shared state; it hosts the policies and answers replicas and gateways.

    Not thread-safe. `clock` gives wall-clock seconds. `epoch` names this incarnation: greater than that
    of any earlier one.
    """

    def __init__(self, settings: RuntimeSettings, clock: Callable[[], float], epoch: int = 1) -> None:
        self.settings = settings
        self.config_version = 0
        self.epoch = epoch
        self.exchanges = 0
        self.reports_invalid = 0
        self._clock = clock
        self._pace = Pace(settings.max_calls_per_s, settings.idle_call_s, settings.replica_timeout_s)
        self.shared = SharedState(settings, clock())
        self._downlink = Downlink(settings.max_ended)
        self._dispatch = PrefetchDispatch(self.shared)
        self._adapters: dict[str, dict[str, float]] = {}
        self.host = self._make_host()

    def _make_host(self) -> PolicyHost:
        seats = {policy.name: catalogue.seat_of(policy) for policy in self.settings.policies}
        # One that can't be made here may be one that an engine, started with newer code, can make.
        self._in_engines = frozenset(name for name, seat in seats.items() if seat in (ENGINE, None))
        policies = catalogue.make_seated(self.settings.policies, ACTOR, self.shared)
        return PolicyHost(policies, self.settings.policy_failure_limit)

    @property
    def version(self) -> int:
        """Grows with every change, within an epoch and over a checkpoint."""
        return self._downlink.version

    # --- observe ------------------------------------------------------------------------------------

    def handle(self, events: Iterable[Any]) -> int:
        """Take events as plain dicts; invalid, known and foreign ones are dropped and counted.

        Returns the number of events applied.
        """
        self.shared.now_s = self._clock()
        learned = self.shared.learned
        ingested = learned.ingest(events, self.shared.now_s)
        for anchor in ingested.anchors:
            try:
                self.shared.anchors.record(anchor)
            except MessageError:
                learned.refused["events_invalid"] += 1
        applied = ingested.changes.applied
        self.host.observe_all(applied)
        # After it: what policies keep of a workload that was dropped goes with it.
        self._take_changes(ingested.changes)
        if applied:
            self._downlink.changed()
        return len(applied)

    def _take_changes(self, changes: Changes) -> None:
        if changes.ended:
            self._downlink.sessions_ended(changes.ended)
        for workload in changes.dropped:
            self._downlink.forget_workload(workload)
            self.shared.anchors.forget_workload(workload)
            self.host.forget(workload)

    def _take_report(self, wire: Any, caller: str) -> None:
        """A bad report is counted and left aside: the caller's events and the answer don't depend on it."""
        try:
            report = ReplicaReport.from_wire(wire)
            if report.replica != caller:
                raise MessageError(f"replica_report: {caller!r} reports for {report.replica!r}")
            self._replicas_lost(self.shared.replica_map.update(report, self.shared.now_s))
        except MessageError:
            self.reports_invalid += 1
            return
        if report.sessions:
            newest = sorted(report.sessions, key=lambda row: row[4])[-MAX_REGISTERED:]
            rows = tuple((r[0], r[1], r[2], r[3], float(r[4])) for r in newest)
            entry = Registration(self.shared.now_s, report.replica, rows)
            self._take_changes(self.shared.learned.apply(entry))
            self._downlink.changed()

    def _let_time_pass(self) -> None:
        now_s = self.shared.now_s
        self._replicas_lost(self.shared.replica_map.drop_silent(now_s, self.settings.replica_timeout_s))
        self._take_changes(self.shared.learned.advance(now_s))

    def _replicas_lost(self, replicas: list[str]) -> None:
        if replicas:
            for replica in replicas:
                self._dispatch.forget_replica(replica)
            entry = ReplicasLost(self.shared.now_s, tuple(replicas))
            self._take_changes(self.shared.learned.apply(entry))
            self._downlink.changed()

    # --- score, predict, act ------------------------------------------------------------------------

    def score(self, workload: str, agent: str, session: str) -> float | None:
        """Priority within [0, 1] of an agent's KV to a session, by all policies; None: no opinion."""
        return self.host.score(CacheOwner(workload, agent, session))

    def _refresh_tables(self) -> None:
        for workload, tables in self.host.score_tables().items():
            self._downlink.put_table(workload, tables.to_bytes())

    def predict(self, tenant: str, session: str, horizon: int) -> dict[str, Any] | None:
        """Forecast for a live session of `tenant`, most likely agent first; None if there is none.

        Raises:
            ConfigurationError: `horizon` isn't a whole number from 1 to `max_horizon`.
        """
        allowed = self.settings.max_horizon
        if isinstance(horizon, bool) or not isinstance(horizon, int) or not 1 <= horizon <= allowed:
            raise ConfigurationError(
                f"horizon: {horizon!r} is not allowed; allowed: a whole number from 1 to {allowed}"
            )
        for workload in self.shared.learned.workloads.values():
            record = workload.sessions.get(session)
            if workload.tenant != tenant or record is None:
                continue
            forecast = self.host.predict(workload.name, session, horizon)
            if forecast is not None:
                ranked = sorted(forecast.items(), key=lambda item: (-item[1], item[0]))
                rows = [{"agent": a, "probability": min(max(p, 0.0), 1.0)} for a, p in ranked if p > 0.0]
                return {"session": session, "agent": record.agent, "horizon": horizon, "forecast": rows}
        return None

    def _act(self) -> None:
        for suggestion in self.host.act():
            hosted = self.host.get(suggestion.policy)
            if hosted is not None:
                settings = hosted.policy.settings
                limits = settings.prefetch if isinstance(settings, PolicySettings) else PrefetchSettings()
                self._dispatch.admit([suggestion], limits)
        self._take_adapter_values()

    def _take_adapter_values(self) -> None:
        """Of replicas that don't report too: one that is new, or was cut off, is told when it does."""
        for values in self.host.suggestions(AdapterSuggestion):
            self._adapters.pop(values.replica, None)
            if values.values:
                self._adapters[values.replica] = dict(values.values)
        while len(self._adapters) > self.settings.max_replicas:
            del self._adapters[next(iter(self._adapters))]

    def _adapter_values(self, replica: str) -> dict[str, float]:
        """What a replica's adapters are worth; nothing while no policy says so."""
        hosted = self.host.get(AdaptersPolicy.name)
        return self._adapters.get(replica, {}) if hosted is not None and hosted.enabled else {}

    def actions(self, replica: str) -> list[PrefetchAction]:
        """Hand over the prefetches queued for `replica`; they count as issued from here on."""
        actions = self._dispatch.collect(replica, self.epoch)
        if actions:
            self._downlink.changed()
        return actions

    # --- exchange -----------------------------------------------------------------------------------

    def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        """One call of a replica or gateway.

        Raises:
            MessageError: `caller_kind` is neither of them.
        """
        if request.caller_kind not in (REPLICA, GATEWAY):
            raise MessageError(
                f"exchange_request: caller_kind {request.caller_kind!r} is not allowed; allowed: replica, gateway"
            )
        self.exchanges += 1
        self.handle(request.events)
        self._pace.heard(request.caller, self.shared.now_s)
        is_replica = request.caller_kind == REPLICA
        if is_replica and request.report is not None:
            self._take_report(request.report, request.caller)
        self._let_time_pass()
        self._refresh_tables()
        self._act()
        actions = self.actions(request.caller) if is_replica else []
        known = request.version if request.epoch == self.epoch else 0
        return ExchangeReply(
            epoch=self.epoch,
            version=self.version,
            tables=self._downlink.tables_since(known),
            actions=[action.to_wire() for action in actions],
            ended=self._downlink.ended_since(known, self._has_ended),
            next_call_s=self._pace.next_call_s,
            need_sessions=is_replica and request.epoch != self.epoch,
            cluster=None if is_replica else self.shared.replica_map.routing_view(self.shared.now_s),
            policy=self.replica_policy(),
            min_gap_s=self._pace.min_gap_s,
            policies=[to_dict(p) for p in self._plugged() if not is_replica or p.name in self._in_engines],
            config_version=self.config_version,
            adapters=self._adapter_values(request.caller) if is_replica else {},
        )

    def _plugged(self) -> list[PluggedSettings]:
        return [policy for policy in self.settings.policies if isinstance(policy, PluggedSettings)]

    def _has_ended(self, workload: str, session: str) -> bool:
        record = self.shared.session(workload, session)
        return record is None or record.ended

    def replica_policy(self) -> dict[str, Any]:
        """How replicas order their cache now."""
        hosted = self.host.get(KvCachePolicy.name)
        settings = hosted.policy.settings if hosted is not None and hosted.enabled else None
        if not isinstance(settings, PolicySettings):
            return dict(STOCK_ORDER)
        return {"mode": settings.mode, "weight": settings.weight, "prefetch": settings.prefetch.enabled}

    def snapshot(self) -> dict[str, Any]:
        """Everything that a caller who knows nothing gets: epoch, version, tables, policy, cluster."""
        return {
            "epoch": self.epoch,
            "version": self.version,
            "tables": self._downlink.tables_since(0),
            "policy": self.replica_policy(),
            "cluster": self.shared.replica_map.routing_view(self.shared.now_s),
        }

    # --- configuration ------------------------------------------------------------------------------

    def configure(self, settings: RuntimeSettings, version: int) -> bool:
        """Take other settings if `version` is newer than the one in force; what was learned stays."""
        if version <= self.config_version:
            return False
        self.config_version = version
        if settings == self.settings:
            return True
        self.settings = settings
        dropped = self.shared.configure(settings)
        self._pace = Pace(settings.max_calls_per_s, settings.idle_call_s, settings.replica_timeout_s)
        self._downlink.resize(settings.max_ended)
        self.host.close()
        self.host = self._make_host()
        self._adapters.clear()
        self._take_changes(Changes(dropped=dropped))
        self._replicas_lost(self.shared.replica_map.resize(settings.max_replicas))
        self._downlink.changed()
        return True

    def set_policy(self, name: str, changes: dict[str, Any]) -> dict[str, Any]:
        """Change a policy at run time, until the next newer `configure`; returns all its settings.

        Raises:
            ConfigurationError: no such policy, or a change that isn't allowed.
        """
        current = next((policy for policy in self.settings.policies if policy.name == name), None)
        if current is None:
            known = ", ".join(policy.name for policy in self.settings.policies) or "none"
            raise ConfigurationError(f"policies: {name!r} is not configured; allowed: {known}")
        settings = replace_checked(current, changes, f"policies.{name}")
        if settings.name != name:
            raise ConfigurationError(f"policies.{name}.name: {settings.name!r} is not allowed; allowed: {name}")
        if getattr(settings, "path", None) != getattr(current, "path", None):
            raise ConfigurationError(f"policies.{name}.path: can't be changed while it runs; allowed: a new deployment")
        policy = catalogue.make(settings, self.shared if self.host.get(name) else catalogue.NoClock())
        self.host.replace(name, policy)
        if name == AdaptersPolicy.name:
            # What the one before said; this one has seen nothing yet.
            self._adapters.clear()
        policies = tuple(settings if p.name == name else p for p in self.settings.policies)
        self.settings = dataclasses.replace(self.settings, policies=policies)
        self._downlink.changed()
        return to_dict(settings)

    # --- state --------------------------------------------------------------------------------------

    def state(self, tenant: str | None = None) -> dict[str, Any]:
        """GET /runtime/state, for one tenant or (None) for the operator."""
        self.shared.now_s = self._clock()
        self._let_time_pass()
        view = {
            "version": self.version,
            "epoch": self.epoch,
            **shared_state_view(self.shared, self.host, tenant),
        }
        in_engines = [policy for policy in self._plugged() if policy.name in self._in_engines]
        view["policies"] += engine_policy_rows(in_engines, self.shared.replica_map, tenant)
        if tenant is None:
            view["caps"]["reports_invalid"] = self.reports_invalid
            view["config_version"] = self.config_version
        return view

    def stats(self) -> RuntimeStats:
        return runtime_stats(self.shared, exchanges=self.exchanges, callers=len(self._pace))

    def dump(self) -> dict[str, Any]:
        """What a checkpoint holds, not to be changed: JSON types only, no token ids, no salts."""
        learned = self.shared.learned.dump()
        self.shared.learned.log.rebase(learned)
        return {
            "format": STATE_FORMAT,
            "epoch": self.epoch,
            "version": self.version,
            "config_version": self.config_version,
            "settings": self.settings.to_dict(),
            "learned": learned,
        }

    @classmethod
    def restore(
        cls, values: Any, settings: RuntimeSettings, config_version: int, clock: Callable[[], float], epoch: int
    ) -> Self:
        """Back from a dump, under the newer of its settings and `settings`; at the same version the
        dump's, which also hold what `set_policy` changed. Settings that this code refuses are `settings` again.

        Raises:
            CheckpointError: an unknown format or damaged content.
        """
        try:
            if values["format"] != STATE_FORMAT:
                raise CheckpointError(f"runtime state of unknown format {values['format']!r}")
            if int(values["config_version"]) >= config_version:
                try:
                    settings = RuntimeSettings.from_dict(values["settings"])
                    config_version = int(values["config_version"])
                except ConfigurationError as error:
                    logger.warning("what was learnt is used, the settings beside it are not: %s", error)
            runtime = cls(settings, clock, max(epoch, int(values["epoch"]) + 1))
            runtime.config_version = config_version
            runtime._downlink.version = int(values["version"]) + 1
            runtime.shared.learned = LearnedState.restore(values["learned"], settings)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(f"runtime state is damaged: {error!r}") from error
        runtime.host = runtime._make_host()
        ended = [(w.name, s.session) for w in runtime.shared.learned.workloads.values() for s in w.sessions if s.ended]
        runtime._downlink.sessions_ended(ended)
        return runtime

    def invariant_checks(self) -> list[Callable[[], None]]:
        """Checks in short pieces; each raises AssertionError or ValueError with what doesn't hold."""
        return self.shared.invariant_checks()

    def check_invariants(self) -> None:
        """Raises AssertionError or ValueError with what doesn't hold."""
        for check in self.invariant_checks():
            check()
