"""Ray 2.60 looks for vLLM's tokenization handler under a name that vLLM 0.29 no longer uses."""

from __future__ import annotations

from typing import Any


def restore_tokenization(engine: Any) -> None:
    """Hand the handler over; an engine that has one, or has none to give, is left as it is."""
    if getattr(engine, "_oai_serving_tokenization", None) is None:
        handler = getattr(getattr(engine, "_app_state", None), "serving_tokenization", None)
        if handler is not None:
            engine._oai_serving_tokenization = handler
