"""The gateway's policies while they change and fail: nothing of the others is lost, and no queue stays behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from runtime_actor.errors import ConfigurationError
from runtime_actor.messages import RequestAccepted
from runtime_actor.policies import catalogue
from runtime_actor.policies.base import GATEWAY, Clock, Ordered, Policy, RequestView
from runtime_actor.settings import AnyPolicySettings, RuntimeSettings
from serve_app.hints import HintReport
from serve_app.identity import Identity
from serve_app.policies.desk import PolicyDesk
from serve_app.policies.ticket import Ticket
from tests.unit.policy_kit import ManualClock

HERE = "tests.unit.test_policy_desk"


class Broken(Policy):
    name = "broken"
    seat = GATEWAY
    in_place = True

    def order(self, items: Sequence[Ordered]) -> Sequence[tuple[float, ...] | None]:
        raise RuntimeError("broken on purpose")

    def admit(self, request: RequestView) -> None:
        if request.agent == "bad":
            raise RuntimeError("broken on purpose")


class Unmade(Policy):
    name = "unmade"
    seat = GATEWAY

    def __init__(self, settings: AnyPolicySettings, substrate: Clock) -> None:
        raise KeyError("nobody thought of this")


def named(name: str, kind: str = "Broken", **options: Any) -> dict[str, Any]:
    return {"name": name, "path": f"{HERE}:{kind}", **options}


def desk(*policies: dict[str, Any], failure_limit: int = 1, places: int = 1) -> PolicyDesk:
    settings = RuntimeSettings.from_dict({"policies": list(policies)}).policies
    return PolicyDesk(settings, failure_limit, places, 1000, clock=ManualClock())


async def enter(made: PolicyDesk, agent: str, prompt: str = "hi") -> Ticket:
    identity = Identity("t", "t", "s", agent, "", "new", "content", True, False)
    return await made.enter(identity, {"prompt": prompt}, {"prompt": prompt}, 0, {}, HintReport())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_queue_ends_with_the_policy_that_wanted_it() -> None:
    """Switched off for its faults, as by an operator: what it bounded is bounded no more."""

    async def main() -> None:
        made = desk(named("broken"))
        first = await enter(made, "a")
        waiting = [asyncio.create_task(enter(made, agent)) for agent in "bc"]
        await settle()
        assert made.queue_state()["waiting"] == 2
        first.leave()
        await settle()
        assert not made.has("order") and made.queue_state()["waiting"] == 1
        late = await enter(made, "d")
        tickets = [late, *await asyncio.gather(*waiting)]
        assert made.queue_state()["inside"] == 3 and made.queue_state()["waiting"] == 0
        for ticket in tickets:
            ticket.leave()
        assert made.queue_state()["inside"] == 0

    asyncio.run(main())


def test_the_queue_is_bounded_by_what_is_to_be_computed() -> None:
    """Four prompts of 800 tokens, 700 of them cached, pass a bound of 1,000; where nothing was cached one does."""

    async def main() -> None:
        made = desk({"name": "fairness"}, places=8)
        prompt = "word " * 640
        for agent, cached_tokens in (("cached", 700), ("new", 0)):
            first = await enter(made, agent, prompt)
            first.accepted(RequestAccepted("r", 800, cached_tokens), False)
            first.leave()
        for agent, inside in (("cached", 4), ("new", 1)):
            tasks = [asyncio.create_task(enter(made, agent, prompt)) for _ in range(4)]
            await settle()
            assert made.queue_state()["inside"] == inside
            for task in tasks:
                (await task).leave()

    asyncio.run(main())


def test_a_change_of_one_policy_forgives_no_other_its_faults() -> None:
    async def main() -> None:
        made = desk(named("broken"), named("other"), failure_limit=3, places=8)
        for agent in ("bad", "good", "bad"):
            (await enter(made, agent)).leave()
        made.configure(RuntimeSettings.from_dict({"policies": [named("broken"), named("other", weight=0.5)]}).policies)
        failures = {row["name"]: row["failures"] for row in made.as_state(None)}
        assert failures == {"broken": 2, "other": 0}
        for _ in range(2):
            (await enter(made, "bad")).leave()
        assert {row["name"]: row["switched_off"] for row in made.as_state(None)} == {"broken": True, "other": False}
        made.configure(RuntimeSettings.from_dict({"policies": [named("broken"), named("other", weight=0.25)]}).policies)
        assert made.host.policies[0].switched_off, "it is the operator's to switch it on again"
        made.configure(RuntimeSettings.from_dict({"policies": [named("broken", weight=0.5), named("other")]}).policies)
        assert made.host.policies[0].enabled

    asyncio.run(main())


def test_a_policy_that_can_not_be_made_is_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    made = desk({"name": "fairness"})
    made.follow([{"name": "fairness"}, named("unmade", "Unmade")], 1)
    assert [row["name"] for row in made.as_state(None)] == ["fairness"] and "unmade" in caplog.text
    with pytest.raises(ConfigurationError, match=r"policies\.unmade: can't be made: KeyError"):
        catalogue.check(RuntimeSettings.from_dict({"policies": [named("unmade", "Unmade")]}).policies)
