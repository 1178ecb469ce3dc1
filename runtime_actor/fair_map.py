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
        # Entries of each owner and of all when they were last trimmed: to add them up takes longer the more owners.
        self._counted: dict[str, int] = {}
        self._total = 0

    def __len__(self) -> int:
        return sum(map(len, self._parts.values()))

    def __iter__(self) -> Iterator[tuple[str, OrderedDict[Key, Value]]]:
        return iter(self._parts.items())

    def part(self, owner: str) -> OrderedDict[Key, Value]:
        """The owner's entries, oldest first, to be read and written; call `trim` after adding, `pop` to take out."""
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
        self._count(owner)
        return value

    def drop(self, owner: str) -> list[Value]:
        """Forget all of an owner's entries."""
        gone = list(self._parts.pop(owner, {}).values())
        self._count(owner)
        return gone

    def oldest(self, owner: str) -> tuple[str, Key]:
        """Owner and key of the entry that has to go when `owner` adds one; there must be one."""
        own = self._parts.get(owner)
        if own is None or len(own) <= max(1, self.cap // len(self._parts)):
            owner = max(self._parts, key=lambda name: len(self._parts[name]))
        return owner, next(iter(self._parts[owner]))

    def trim(self, owner: str) -> list[Value]:
        """Back to the cap after `owner` added; returns what had to go."""
        self._count(owner)
        gone: list[Value] = []
        while self._total > self.cap:
            name, key = self.oldest(owner)
            gone.append(self._parts[name].pop(key))
            if not self._parts[name]:
                del self._parts[name]
            self._count(name)
        return gone

    def _count(self, owner: str) -> None:
        size, before = len(self._parts.get(owner, ())), self._counted.get(owner, 0)
        if size != before:
            self._total += size - before
            if size:
                self._counted[owner] = size
            else:
                del self._counted[owner]
