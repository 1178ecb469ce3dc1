"""Requests and clocks for tests of the policies."""

from __future__ import annotations

import itertools
from typing import Any

from runtime_actor.policies.base import Policy, RequestView
from runtime_actor.settings import PluggedSettings

_NUMBERS = itertools.count()


class ManualClock:
    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s


def view(tenant: str = "t", agent: str = "a", **changes: Any) -> RequestView:
    values: dict[str, Any] = {
        "request_id": next(_NUMBERS),
        "tenant": tenant,
        "workload": tenant,
        "session": "s",
        "agent": agent,
        "arrived_s": 1000.0,
        "prompt_tokens": 100,
        "output_tokens": 10,
        "priority": 0,
        "ttft_slo_s": None,
        "fields": {},
    }
    return RequestView(**{**values, **changes})


def settings(kind: type[Policy], enabled: bool = True, fail_closed: bool = False, **options: Any) -> PluggedSettings:
    return PluggedSettings(kind.name, enabled=enabled, fail_closed=fail_closed, options=options)
