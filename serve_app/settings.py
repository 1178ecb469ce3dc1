"""What one gateway process is told when it is built."""

from dataclasses import dataclass
from typing import Any

from serve_app.config import AppConfig


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """`version` grows from one deployment to the next; `runtime` are the actor's settings as a plain dict.

    `usable_tokens` is what prompt and answer may take together, `model_tokens` the model's own limit.
    """

    config: AppConfig
    secret: bytes
    runtime: dict[str, Any]
    version: int
    usable_tokens: int
    model_tokens: int
    has_priorities: bool
