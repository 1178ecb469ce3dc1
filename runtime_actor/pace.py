"""When each caller should call again, so that all of them together stay within what the actor answers."""

from __future__ import annotations

from collections import OrderedDict

MIN_GAP_S = 0.1
MAX_CALLERS = 4096


class Pace:
    """Counts callers heard within `timeout_s`; at most MAX_CALLERS, the one silent for longest goes first."""

    def __init__(self, max_calls_per_s: float, idle_call_s: float, timeout_s: float) -> None:
        self._max_calls_per_s = max_calls_per_s
        self._idle_call_s = idle_call_s
        self._timeout_s = timeout_s
        self._callers: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._callers)

    def heard(self, caller: str, now_s: float) -> None:
        self._callers[caller] = now_s
        self._callers.move_to_end(caller)
        while len(self._callers) > MAX_CALLERS:
            self._callers.popitem(last=False)
        while now_s - next(iter(self._callers.values())) > self._timeout_s:
            self._callers.popitem(last=False)

    @property
    def min_gap_s(self) -> float:
        """Least time between two calls of one caller."""
        return max(MIN_GAP_S, len(self._callers) / self._max_calls_per_s)

    @property
    def next_call_s(self) -> float:
        """Time after which a caller without news calls again."""
        return max(self._idle_call_s, self.min_gap_s)
