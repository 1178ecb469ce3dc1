"""Hypothesis: no deadline for one example, since a busy machine makes any of them slow once."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("busy-machine", deadline=None)
settings.load_profile("busy-machine")
