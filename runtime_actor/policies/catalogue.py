"""From the settings of a policy to the policy: the project's own by name, any other by its path."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable

from runtime_actor.errors import ConfigurationError
from runtime_actor.policies.adapters import AdaptersPolicy
from runtime_actor.policies.base import SEATS, Clock, Policy
from runtime_actor.policies.batch_shaping import BatchShapingPolicy
from runtime_actor.policies.deadline import DeadlinePolicy
from runtime_actor.policies.fairness import FairnessPolicy
from runtime_actor.policies.kv_cache import KvCachePolicy
from runtime_actor.policies.memo import MemoPolicy
from runtime_actor.policies.routing import RoutingPolicy
from runtime_actor.policies.safety import SafetyPolicy
from runtime_actor.policies.speculation import SpeculationPolicy
from runtime_actor.settings import AnyPolicySettings, PluggedSettings

logger = logging.getLogger(__name__)

OWN: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        KvCachePolicy,
        MemoPolicy,
        FairnessPolicy,
        DeadlinePolicy,
        BatchShapingPolicy,
        SafetyPolicy,
        SpeculationPolicy,
        RoutingPolicy,
        AdaptersPolicy,
    )
}


class NoClock:
    """For a policy that is only made to have its options checked."""

    now_s = 0.0


def class_of(settings: AnyPolicySettings) -> type[Policy]:
    """Raises ConfigurationError: no policy of that name, or nothing usable at its path."""
    path = settings.path if isinstance(settings, PluggedSettings) else None
    if path is None:
        if settings.name not in OWN:
            known = ", ".join(sorted(OWN))
            raise ConfigurationError(
                f"policies.{settings.name}.path: missing; allowed: module:Class (without one, a name of {known})"
            )
        return OWN[settings.name]
    if settings.name in OWN:
        raise ConfigurationError(
            f"policies.{settings.name}.path: {path!r} is not allowed; allowed: none, the project has one of this name"
        )
    module, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # noqa: BLE001 - somebody's module may raise anything
        raise ConfigurationError(f"policies.{settings.name}.path: {path!r} can't be imported: {error}") from None
    if not isinstance(found, type) or not issubclass(found, Policy) or found.seat not in SEATS:
        raise ConfigurationError(
            f"policies.{settings.name}.path: {path!r} is not allowed; allowed: a subclass of "
            f"runtime_actor.policies.base.Policy with a seat of {', '.join(SEATS)}"
        )
    return found


def make_seated(settings: Iterable[AnyPolicySettings], seat: str, substrate: Clock) -> list[Policy]:
    """Those of the list that run in that seat, in its order; one that can't be made is left out and named."""
    made = []
    for entry in settings:
        try:
            if class_of(entry).seat == seat:
                made.append(make(entry, substrate))
        except ConfigurationError as error:
            logger.error("policy %s left out: %s", entry.name, error)
    return made


def seat_of(settings: AnyPolicySettings) -> str | None:
    """None for one that can't be made."""
    try:
        return class_of(settings).seat
    except ConfigurationError:
        return None


def make(settings: AnyPolicySettings, substrate: Clock) -> Policy:
    """Raises ConfigurationError naming the policy, the option and what is allowed."""
    kind = class_of(settings)
    try:
        return kind(settings, substrate)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(f"policies.{settings.name}: can't be made: {error!r}") from error


def check(settings: Iterable[AnyPolicySettings]) -> None:
    """Raises ConfigurationError if one of them could not be made."""
    for entry in settings:
        if isinstance(entry, PluggedSettings):
            make(entry, NoClock())
