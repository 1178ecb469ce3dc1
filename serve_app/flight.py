"""One request on its way: its place among those in flight, and what must be given back exactly once."""

from collections.abc import Callable

from serve_app.http.errors import overloaded
from serve_app.quotas import TenantQuotas


class Admission:
    """At most `limit` requests in flight, and of a tenant what its quota allows; beyond it a 429 that says when
    to come back."""

    def __init__(self, limit: int, retry_after_s: int, quotas: TenantQuotas) -> None:
        self._limit = limit
        self._retry_after_s = retry_after_s
        self._quotas = quotas
        self.in_flight = 0
        self.refused = 0

    def admit(self, tenant: str) -> "Slot":
        """Raises ApiError 429."""
        if self.in_flight >= self._limit:
            self.refused += 1
            raise overloaded(self._retry_after_s)
        self._quotas.enter(tenant)
        self.in_flight += 1
        return Slot(lambda: self._release(tenant))

    def _release(self, tenant: str) -> None:
        self.in_flight -= 1
        self._quotas.leave(tenant)


class Slot:
    """Held until `free`. A response that is never started is freed when it is collected."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def free(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()

    def __del__(self) -> None:
        self.free()
