"""Memory that tenants share and none can push another out of."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class FairMap(Generic[Key, Value]):
    """One ordered part for each owner, at most `cap` entries in all.

    At the cap the owner who adds gives its own oldest entry if it holds more than an equal share, else whoever
    holds most does. So an owner within `cap // owners` entries loses none to others; one alone may have all.
    """

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self._parts: dict[str, OrderedDict[Key, Value]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._parts.values()))

    def __iter__(self) -> Iterator[tuple[str, OrderedDict[Key, Value]]]:
        return iter(self._parts.items())

    def part(self, owner: str) -> OrderedDict[Key, Value]:
        """The owner's entries, oldest first, to be read and written; call `trim` after adding."""
        found = self._parts.get(owner)
        if found is None:
            found = self._parts[owner] = OrderedDict()
        return found

    def get(self, owner: str, key: Key) -> Value | None:
        """Look up without counting as use."""
        found = self._parts.get(owner)
        return None if found is None else found.get(key)

    def pop(self, owner: str, key: Key) -> Value | None:
        found = self._parts.get(owner)
        if found is None:
            return None
        value = found.pop(key, None)
        if not found:
            del self._parts[owner]
        return value

    def drop(self, owner: str) -> list[Value]:
        """Forget all of an owner's entries."""
        return list(self._parts.pop(owner, {}).values())

    def oldest(self, owner: str) -> tuple[str, Key]:
        """Owner and key of the entry that has to go when `owner` adds one; there must be one."""
        own = self._parts.get(owner)
        if own is None or len(own) <= max(1, self.cap // len(self._parts)):
            owner = max(self._parts, key=lambda name: len(self._parts[name]))
        return owner, next(iter(self._parts[owner]))

    def trim(self, owner: str) -> list[Value]:
        """Back to the cap after `owner` added; returns what had to go."""
        gone: list[Value] = []
        for _ in range(len(self) - self.cap):
            name, key = self.oldest(owner)
            gone.append(self._parts[name].pop(key))
            if not self._parts[name]:
                del self._parts[name]
        return gone
