"""Who takes part: agents and sessions of one workload, in bounded registries with their statistics.

Statistics are sums and counts, so that a mean can be formed over any interval by a reader. At a cap the
least recently seen entry goes, with its statistics, and is counted in `dropped`.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from runtime_actor.messages import RequestArrived, RequestFinished

MAX_LABEL_CHARACTERS = 64
FINISH_REASONS = ("stop", "length", "tool_calls", "abort", "error", "other")


@dataclass(slots=True)
class AgentRecord:
    """Statistics of one agent. `requests` counts arrivals, `finished` their ends."""

    agent: str
    label: str = ""
    tenant: str = ""
    requests: int = 0
    finished: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish_reasons: dict[str, int] = field(default_factory=dict)
    ttft_sum_s: float = 0.0
    ttft_count: int = 0
    e2e_sum_s: float = 0.0
    last_seen_s: float = 0.0

    def arrived(self, event: RequestArrived) -> None:
        self.requests += 1
        self.tenant = event.tenant
        self.label = event.label[:MAX_LABEL_CHARACTERS] or self.label
        self.last_seen_s = max(self.last_seen_s, event.t_s)

    def completed(self, event: RequestFinished) -> None:
        self.finished += 1
        self.tenant = event.tenant
        self.prompt_tokens += event.prompt_tokens
        self.cached_tokens += event.cached_tokens
        self.completion_tokens += event.completion_tokens
        reason = event.finish_reason if event.finish_reason in FINISH_REASONS else "other"
        self.finish_reasons[reason] = self.finish_reasons.get(reason, 0) + 1
        if event.ttft_s is not None:
            self.ttft_sum_s += event.ttft_s
            self.ttft_count += 1
        self.e2e_sum_s += event.e2e_s
        self.last_seen_s = max(self.last_seen_s, event.t_s)

    def as_state(self) -> dict[str, Any]:
        """The agent's entry in GET /runtime/state."""
        return {
            **dataclasses.asdict(self),
            "ttft_mean_s": self.ttft_sum_s / self.ttft_count if self.ttft_count else None,
        }


@dataclass(slots=True)
class SessionRecord:
    """One session. `replica` is where its last request went; `last_arrival_s` orders its arrivals."""

    session: str
    agent: str = ""
    previous_agent: str = ""
    replica: str = ""
    requests: int = 0
    started_s: float = 0.0
    last_arrival_s: float = 0.0
    last_seen_s: float = 0.0
    ended_s: float | None = None

    @property
    def ended(self) -> bool:
        return self.ended_s is not None


Record = TypeVar("Record", AgentRecord, SessionRecord)


class Registry(Generic[Record]):
    """Records by id in order of use, at most `cap`; the least recently used goes first."""

    def __init__(self, cap: int, create: Callable[[str], Record], key_name: str) -> None:
        self._cap = cap
        self._create: Callable[[str], Record] = create
        self._key_name = key_name
        self._records: OrderedDict[str, Record] = OrderedDict()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records.values())

    def get(self, key: str) -> Record | None:
        """Look up without counting as use."""
        return self._records.get(key)

    def use(self, key: str) -> Record | None:
        """Look up as use: it is the last to go."""
        record = self._records.get(key)
        if record is not None:
            self._records.move_to_end(key)
        return record

    def oldest(self) -> Record | None:
        """The least recently used record."""
        return next(iter(self._records.values()), None)

    def touch(self, key: str) -> tuple[Record, list[Record]]:
        """The record of `key`, made if absent, and those that had to go for it."""
        record = self._records.get(key)
        if record is not None:
            self._records.move_to_end(key)
            return record, []
        record = self._records[key] = self._create(key)
        gone = []
        while len(self._records) > self._cap:
            gone.append(self._records.popitem(last=False)[1])
        self.dropped += len(gone)
        return record, gone

    def remove(self, key: str) -> None:
        self._records.pop(key, None)

    def dump(self) -> dict[str, Any]:
        """Plain values, in order of use."""
        return {"dropped": self.dropped, "records": [dataclasses.asdict(r) for r in self]}

    def restore(self, values: dict[str, Any]) -> None:
        """Replace the content by a dump's; the newest `cap` records are kept.

        Raises:
            KeyError, TypeError, ValueError: it isn't a dump; the field is named where one is wrong.
        """
        self._records.clear()
        self.dropped = int(values["dropped"])
        for entry in values["records"][-self._cap :]:
            key = entry[self._key_name]
            record = self._create(key)
            for f in dataclasses.fields(record):
                if f.name in entry:
                    value = entry[f.name]
                    if not _fits(value, getattr(record, f.name)):
                        raise ValueError(f"{self._key_name} {key!r}: {f.name} can't be {value!r}")
                    setattr(record, f.name, copy.copy(value))
            self._records[key] = record

    def check_invariants(self) -> None:
        assert len(self._records) <= self._cap, "registry over its cap"


def _fits(value: object, default: object) -> bool:
    """Whether a field that begins as `default` can have `value`; those that begin as None hold seconds."""
    if default is None and value is None:
        return True
    if default is None or isinstance(default, float):
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return type(value) is type(default)
