"""A request of OpenAI's Responses on its way to a replica."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ResponsesCall:
    """Plain fields of vLLM's ResponsesRequest, which itself may hold lazy iterators that can't be pickled.

    The properties are what a router and a replica read of any request.
    """

    fields: dict[str, Any]

    @property
    def vllm_xargs(self) -> dict[str, Any] | None:
        xargs = self.fields.get("vllm_xargs")
        return xargs if isinstance(xargs, dict) else None

    @property
    def model(self) -> str:
        return str(self.fields.get("model") or "")

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Instructions and what follows them with a role, as far as it is plain."""
        instructions, items = self.fields.get("instructions"), self.fields.get("input")
        leading = [{"role": "system", "content": instructions}] if instructions else []
        return [*leading, *(item for item in items if isinstance(item, dict))] if isinstance(items, list) else leading
