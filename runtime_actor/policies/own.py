"""What the project's own policies have in common beside the interface."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from runtime_actor.policies.base import Clock, Policy
from runtime_actor.settings import AnyPolicySettings

Options = TypeVar("Options")


class OwnPolicy(Policy, Generic[Options]):
    """It returns at once, has its options as the dataclass `kind`, and counts what it does."""

    in_place: ClassVar[bool] = True
    kind: ClassVar[type[Any]]

    def __init__(self, settings: AnyPolicySettings, substrate: Clock) -> None:
        """Raises ConfigurationError naming the option."""
        super().__init__(settings, substrate)
        self.options: Options = self.options_as(self.kind)
        self._counts: Counter[str] = Counter()

    def counters(self) -> Mapping[str, int]:
        return dict(self._counts)
