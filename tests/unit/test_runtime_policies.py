"""Policies: isolation of faults, composition, switching at run time and by configuration."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from runtime_actor.errors import ConfigurationError
from runtime_actor.messages import ExchangeRequest, Message
from runtime_actor.policies.base import CacheOwner, Policy, PrefetchSuggestion
from runtime_actor.policies.host import PolicyHost
from runtime_actor.runtime import AgentRuntime
from runtime_actor.settings import PluggedSettings, PolicySettings, RuntimeSettings, to_dict
from runtime_actor.shared import SharedState
from runtime_actor.tables import ReachTables
from tests.unit.runtime_kit import Kit


class Fixed(Policy):
    name = "fixed"

    def __init__(self, value: float | None, weight: float = 1.0, broken: bool = False) -> None:
        super().__init__(PolicySettings(weight=weight), SharedState(RuntimeSettings(), 0.0))
        self.value = value
        self.broken = broken

    def _maybe_raise(self) -> None:
        if self.broken:
            raise RuntimeError("broken on purpose")

    def observe(self, event: Message) -> None:
        self._maybe_raise()

    def score(self, item: CacheOwner) -> float | None:
        self._maybe_raise()
        return self.value

    def score_tables(self) -> Mapping[str, ReachTables]:
        self._maybe_raise()
        return {}

    def predict(self, workload: str, session: str, horizon: int) -> Mapping[str, float] | None:
        self._maybe_raise()
        return None if self.value is None else {"a": self.value}

    def act(self) -> list[PrefetchSuggestion]:
        self._maybe_raise()
        return [PrefetchSuggestion(self.name, "r", "w", "a", "s", 1.0, self.value or 0.0)]

    def forget(self, workload: str) -> None:
        self._maybe_raise()


ITEM = CacheOwner("w", "a", "s")


def test_composition() -> None:
    host = PolicyHost([Fixed(None), Fixed(0.2, 1.0), Fixed(0.8, 3.0), Fixed(1.0, 0.0)], 3)
    assert host.score(ITEM) == pytest.approx(0.65)
    assert host.predict("w", "s", 1) == {"a": 0.2}
    assert len(host.act()) == 1
    assert PolicyHost([Fixed(None)], 3).score(ITEM) is None
    assert PolicyHost([], 3).score(ITEM) is None


def test_a_broken_policy_is_isolated_and_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    host = PolicyHost([Fixed(0.9, broken=True), Fixed(0.4)], failure_limit=3)
    with caplog.at_level(logging.ERROR):
        assert [host.score(ITEM) for _ in range(5)] == [0.4] * 5
    broken, sound = host.as_state(None)
    assert (broken["failures"], broken["switched_off"], broken["enabled"]) == (3, True, False)
    assert sound["enabled"]
    assert len(caplog.records) == 2, "one for the first failure, one for the switch-off"


def test_replicas_fall_back_to_stock_order_when_the_policy_is_off() -> None:
    kit = Kit(policy_failure_limit=1)
    hosted = kit.runtime.host.get("kv_cache")
    assert hosted is not None
    hosted.policy = Fixed(0.5, broken=True)
    assert kit.exchange(events=[kit.arrived("s1", "a")]).policy == {"mode": "lru", "weight": 0.0, "prefetch": False}
    assert Kit(policies=[]).exchange().policy["mode"] == "lru"


def test_switching_at_run_time() -> None:
    kit = Kit()
    kit.teach("ab")
    assert kit.exchange().policy == {"mode": "reach", "weight": 1.0, "prefetch": True}
    changed = kit.runtime.set_policy("kv_cache", {"mode": "lru", "prefetch": {"enabled": False}})
    assert changed["mode"] == "lru"
    reply = kit.exchange(epoch=0)
    assert reply.policy == {"mode": "lru", "weight": 1.0, "prefetch": False}
    assert "t" in reply.tables, "learning goes on"
    kit.runtime.set_policy("kv_cache", {"enabled": False})
    assert kit.exchange().policy["weight"] == 0.0
    assert kit.runtime.predict("t", "taught-1", 1) is None


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        ("fairness", {}, "'fairness' is not configured"),
        ("kv_cache", {"mode": "magic"}, "policies.kv_cache.mode: 'magic'"),
        ("kv_cache", {"mood": "reach"}, "policies.kv_cache.mood: unknown key"),
        ("kv_cache", {"prefetch": {"max_per_s": -1}}, "policies.kv_cache.prefetch.max_per_s: -1"),
    ],
)
def test_bad_changes_are_named(name: str, changes: dict, text: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        Kit().runtime.set_policy(name, changes)
    assert text in str(error.value)


def test_policies_of_other_seats_are_switched_here_and_told_to_gateways() -> None:
    kit = Kit(policies=[{"name": "kv_cache"}, {"name": "fairness"}, {"name": "batch_shaping"}])
    assert [row["name"] for row in kit.runtime.state()["policies"]] == ["kv_cache", "batch_shaping"]
    told = kit.exchange(caller="g", kind="gateway").policies
    assert [(entry["name"], entry["enabled"]) for entry in told] == [("fairness", True), ("batch_shaping", True)]
    kit.runtime.set_policy("fairness", {"enabled": False, "options": {"decode_cost": 3.0}})
    (told, _) = kit.exchange(caller="g", kind="gateway").policies
    assert (told["enabled"], told["options"]) == (False, {"decode_cost": 3.0})
    for name, changes, text in (
        ("fairness", {"options": {"decode_cost": -1}}, "policies.fairness.options.decode_cost: -1"),
        ("fairness", {"path": "a:B"}, "policies.fairness.path"),
        ("batch_shaping", {"path": "a:B"}, "policies.batch_shaping.path: can't be changed while it runs"),
        ("batch_shaping", {"options": {"window": 1}}, "policies.batch_shaping.options.window: 1 is not allowed"),
        ("batch_shaping", {"options": {"windows": 4}}, "policies.batch_shaping.options.windows: unknown key"),
        ("batch_shaping", {"mode": "lru"}, "policies.batch_shaping.mode: unknown key"),
        ("batch_shaping", {"enabled": "no"}, "policies.batch_shaping.enabled: 'no'"),
        ("batch_shaping", {"name": "other"}, "policies.batch_shaping.name: 'other'"),
    ):
        with pytest.raises(ConfigurationError) as error:
            kit.runtime.set_policy(name, changes)
        assert text in str(error.value)
    assert kit.exchange().policies == [to_dict(PluggedSettings("batch_shaping"))], "what was refused changed nothing"
    restored = type(kit.runtime).restore(kit.runtime.dump(), RuntimeSettings(), 0, kit.clock, 2)
    assert restored.settings == kit.runtime.settings, "what was switched outlives a restart"


def test_policies_of_the_engines_are_switched_and_told_to_replicas() -> None:
    kit = Kit(policies=[{"name": "kv_cache"}, {"name": "fairness"}, {"name": "batch_shaping", "enabled": False}])

    def told(runtime: AgentRuntime, caller: str = "r1") -> list[tuple[str, bool, dict]]:
        policies = runtime.exchange(ExchangeRequest(caller, "replica", 0, 0, [])).policies
        return [(entry["name"], entry["enabled"], entry["options"]) for entry in policies]

    assert told(kit.runtime) == [("batch_shaping", False, {})], "what was configured is the start"
    version = kit.runtime.version
    changed = kit.runtime.set_policy("batch_shaping", {"enabled": True, "options": {"window": 8}})
    assert (changed["enabled"], changed["options"]) == (True, {"window": 8})
    assert kit.runtime.version > version, "so that a checkpoint is written"
    now = [("batch_shaping", True, {"window": 8})]
    assert told(kit.runtime) == told(kit.runtime, "r2") == now, "a new replica hears of it like the others"
    assert kit.exchange(caller="g", kind="gateway").policies[1]["enabled"]
    restored = AgentRuntime.restore(kit.runtime.dump(), RuntimeSettings(), 0, kit.clock, 2)
    assert told(restored) == now, "a restarted actor goes on with it"
    assert kit.runtime.configure(RuntimeSettings.from_dict({"policies": [{"name": "batch_shaping"}]}), 2)
    assert told(kit.runtime) == [("batch_shaping", True, {})], "a newer deployment wins over a switch"
    assert kit.runtime.configure(RuntimeSettings(), 3) and told(kit.runtime) == []


def test_what_runs_in_the_engines_has_one_row_in_the_state() -> None:
    kit = Kit(policies=[{"name": "kv_cache"}, {"name": "batch_shaping"}, {"name": "gone", "path": "no_such:Policy"}])

    def row(tenant: str | None = None) -> dict:
        (found,) = [row for row in kit.runtime.state(tenant)["policies"] if row["name"] == "batch_shaping"]
        return found

    def report(replica: str, enabled: bool, ordered: int, switched_off: bool = False) -> None:
        told = {"name": "batch_shaping", "seat": "engine", "enabled": enabled, "counters": {"ordered": ordered}}
        told |= {"decisions": 0, "failures": 16 * switched_off, "slow": 1, "switched_off": switched_off}
        other = {"name": "adapters", "seat": "actor", "enabled": True, "counters": {"ordered": 1000}}
        kit.exchange(caller=replica, report=kit.report(replica, policies=[other, told]))

    assert (row()["enabled"], row()["engines"], row()["counters"]) == (True, 0, {})
    report("r1", True, 5)
    report("r2", True, 7)
    assert row() == {
        "name": "batch_shaping", "seat": "engine", "weight": 1.0, "enabled": True, "counters": {"ordered": 12},
        "engines": 2, "engines_on": 2, "decisions": 0, "failures": 0, "slow": 2, "switched_off": False,
    }  # fmt: skip
    kit.runtime.set_policy("batch_shaping", {"enabled": False})
    report("r1", False, 6)
    assert (row()["enabled"], row()["engines_on"], row()["counters"]) == (False, 1, {"ordered": 13})
    kit.runtime.set_policy("batch_shaping", {"enabled": True})
    report("r1", False, 6, switched_off=True)
    assert (row()["enabled"], row()["switched_off"], row()["failures"]) == (True, True, 16), "one of two"
    report("r2", False, 8, switched_off=True)
    assert (row()["enabled"], row()["engines_on"]) == (False, 0)
    assert not {"counters", "engines", "engines_on"} & set(row("t")), "of all tenants together"
    assert [row["name"] for row in kit.runtime.state()["policies"]] == ["kv_cache", "batch_shaping"], "not what is gone"


def test_a_policy_that_cannot_be_made_here_may_be_one_that_an_engine_can() -> None:
    kit = Kit(policies=[{"name": "gone", "path": "no_such:Policy"}, {"name": "batch_shaping"}])
    assert [entry["name"] for entry in kit.exchange().policies] == ["gone", "batch_shaping"]


def test_a_policy_that_cannot_be_made_is_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        kit = Kit(policies=[{"name": "kv_cache"}, {"name": "gone", "path": "no_such_module:Policy"}])
    assert kit.exchange().policy["mode"] == "reach"
    assert ["gone" in record.getMessage() for record in caplog.records] == [True]


def test_configure_takes_only_newer_versions_and_keeps_what_was_learned() -> None:
    kit = Kit()
    kit.teach("abc")
    kit.exchange(report=kit.report())
    before = kit.runtime.state()
    other = RuntimeSettings.from_dict({"window": 100, "policies": [{"mode": "lru"}]})
    assert kit.runtime.configure(other, 2)
    assert not kit.runtime.configure(RuntimeSettings(), 2)
    assert kit.exchange().policy["mode"] == "lru"
    after = kit.runtime.state()
    assert after["transitions"] == before["transitions"]
    assert after["agents"] == before["agents"] and len(after["replicas"]) == 1
    kit.runtime.set_policy("kv_cache", {"mode": "reach"})
    assert kit.runtime.configure(other, 3)
    assert kit.exchange().policy["mode"] == "lru", "a newer configuration wins over a switch"
    assert kit.runtime.configure(RuntimeSettings.from_dict({"max_agents": 8}), 4)
    kit.teach("ab", tenant="t")
    kit.runtime.check_invariants()
