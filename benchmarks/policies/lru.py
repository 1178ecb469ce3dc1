"""Stock vLLM: least recently used first, a request's tail before its head."""

from __future__ import annotations

from benchmarks.policies.base import PassivePolicy


class LruPolicy(PassivePolicy):
    pass
