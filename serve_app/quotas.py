"""What one tenant may use: requests in flight, requests and tokens a minute, calls of /runtime a second.

Rates are buckets that hold a minute's worth and fill continuously. Tokens are known only when they have been
used, so a request passes while anything is left and what it used is taken afterwards: a bucket can be in debt,
and the next request waits until it is paid. Counted per gateway process.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from serve_app.config import Quota
from serve_app.http.errors import quota_used_up

MAX_TENANTS = 4096
"""Tenants whose use is remembered; at the cap the one longest idle starts afresh."""

RUNTIME_CALLS_PER_S = 20.0
RUNTIME_BURST = 100.0
"""Calls of /runtime by a tenant that isn't an operator: each is work for the one actor."""

Clock = Callable[[], float]


@dataclass(slots=True)
class Bucket:
    """Fills by `per_s` up to `capacity`. Times are monotonic seconds."""

    capacity: float
    per_s: float
    level: float
    filled_s: float

    def wait_s(self, amount: float, now_s: float) -> float:
        """Seconds until `amount` is there; 0 if it is now."""
        self.level = min(self.capacity, self.level + max(0.0, now_s - self.filled_s) * self.per_s)
        self.filled_s = now_s
        return max(0.0, (min(amount, self.capacity) - self.level) / self.per_s)

    def take(self, amount: float) -> None:
        self.level -= amount


def _bucket(per_minute: int, now_s: float, before: Bucket | None) -> Bucket:
    """A full one, or the former one at another size: what was used stays used."""
    level = float(per_minute)
    if before is not None:
        level = min(level, before.level)
    return Bucket(float(per_minute), per_minute / 60.0, level, now_s)


@dataclass(slots=True)
class _Use:
    """One tenant's use under the quota that held when it was last looked at."""

    quota: Quota
    runtime: Bucket
    requests: Bucket | None = None
    tokens: Bucket | None = None
    in_flight: int = 0
    refused: dict[str, int] = field(default_factory=dict)


class TenantQuotas:
    """`quota_of` may give another answer after the keys were read again; the change holds at once."""

    def __init__(self, quota_of: Callable[[str], Quota], clock: Clock = time.monotonic) -> None:
        self._quota_of = quota_of
        self._clock = clock
        self._uses: OrderedDict[str, _Use] = OrderedDict()

    def __len__(self) -> int:
        return len(self._uses)

    def count_request(self, tenant: str) -> None:
        """One request came, whatever becomes of it. Raises ApiError 429."""
        use, now_s = self._use(tenant), self._clock()
        if use.tokens is not None:
            self._check(use, "tokens_per_minute", use.tokens, 1.0, now_s)
        if use.requests is not None:
            self._check(use, "requests_per_minute", use.requests, 1.0, now_s)
            use.requests.take(1.0)

    def enter(self, tenant: str) -> None:
        """Takes a place that `leave` gives back. Raises ApiError 429."""
        use = self._use(tenant)
        limit = use.quota.max_in_flight
        if limit is not None and use.in_flight >= limit:
            self._refuse(use, "max_in_flight", limit, 1.0)
        use.in_flight += 1

    def leave(self, tenant: str) -> None:
        self._use(tenant).in_flight -= 1

    def take_tokens(self, tenant: str, tokens: int) -> None:
        """Prompt and answer alike, cached or not."""
        use = self._use(tenant)
        if use.tokens is not None:
            use.tokens.wait_s(0.0, self._clock())
            use.tokens.take(tokens)

    def count_runtime_call(self, tenant: str) -> None:
        """Raises ApiError 429."""
        use, now_s = self._use(tenant), self._clock()
        wait_s = use.runtime.wait_s(1.0, now_s)
        if wait_s > 0.0:
            self._refuse(use, "calls of /runtime", int(RUNTIME_CALLS_PER_S), wait_s, "a second")
        use.runtime.take(1.0)

    def view(self, tenant: str) -> dict[str, object]:
        """For /runtime/state: the quota in force, what is in flight, and how often each limit was met."""
        use = self._use(tenant)
        return {"quota": use.quota.model_dump(), "in_flight": use.in_flight, "refused": dict(use.refused)}

    def _check(self, use: _Use, name: str, bucket: Bucket, amount: float, now_s: float) -> None:
        wait_s = bucket.wait_s(amount, now_s)
        if wait_s > 0.0:
            self._refuse(use, name, int(bucket.capacity), wait_s)

    def _refuse(self, use: _Use, name: str, limit: int, wait_s: float, unit: str = "") -> None:
        use.refused[name] = use.refused.get(name, 0) + 1
        raise quota_used_up(name, limit, max(1, math.ceil(wait_s)), unit)

    def _use(self, tenant: str) -> _Use:
        quota, now_s = self._quota_of(tenant), self._clock()
        use = self._uses.get(tenant)
        if use is None:
            use = self._uses[tenant] = _Use(quota, Bucket(RUNTIME_BURST, RUNTIME_CALLS_PER_S, RUNTIME_BURST, now_s))
            self._resize(use, quota, now_s)
            self._forget_idle()
        elif use.quota != quota:
            self._resize(use, quota, now_s)
        self._uses.move_to_end(tenant)
        return use

    def _resize(self, use: _Use, quota: Quota, now_s: float) -> None:
        use.quota = quota
        requests, tokens = quota.requests_per_minute, quota.tokens_per_minute
        use.requests = None if requests is None else _bucket(requests, now_s, use.requests)
        use.tokens = None if tokens is None else _bucket(tokens, now_s, use.tokens)

    def _forget_idle(self) -> None:
        if len(self._uses) > MAX_TENANTS:
            idle = next((name for name, use in self._uses.items() if use.in_flight == 0), None)
            if idle is not None:
                del self._uses[idle]
