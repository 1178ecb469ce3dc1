"""What Ray's VLLMEngine has under private names: all of them that this project uses stand here.

Tests name the one that moved when Ray is upgraded.
"""

from __future__ import annotations

from typing import Any

CLIENT = "_engine_client"
STATE = "_app_state"
MODELS = "_oai_models"
TOKENIZATION = "_oai_serving_tokenization"


def client_of(engine: Any) -> Any:
    """vLLM's AsyncLLM behind Ray's engine, or the engine itself where it is one."""
    return getattr(engine, CLIENT, engine)


def models_of(engine: Any) -> Any:
    """vLLM's OpenAIServingModels, which knows the names that requests may use."""
    return getattr(engine, MODELS)


def responses_of(engine: Any) -> Any | None:
    """vLLM's OpenAIServingResponses, which Ray's engine makes and doesn't offer; None if it has none."""
    return getattr(getattr(engine, STATE, None), "openai_serving_responses", None)


def restore_tokenization(engine: Any) -> None:
    """Ray 2.60 looks for vLLM's tokenization handler under a name that vLLM 0.29 no longer uses: hand it over.

    An engine that has one, or has none to give, is left as it is.
    """
    if getattr(engine, TOKENIZATION, None) is None:
        handler = getattr(getattr(engine, STATE, None), "serving_tokenization", None)
        if handler is not None:
            setattr(engine, TOKENIZATION, handler)
