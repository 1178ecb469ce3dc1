"""vLLM's engine argument names and simple types, read from its source without importing it.

Importing vLLM takes seconds and a compiled torch; checking a configuration file must not.
"""

import ast
import difflib
import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any

from runtime_actor.errors import ConfigurationError

_SOURCES = (
    ("engine/arg_utils.py", ("EngineArgs", "AsyncEngineArgs")),
    ("entrypoints/launchers/cli_args.py", ("BaseFrontendArgs", "FrontendArgs")),
)

SET_BY_US = {
    "model": "model.source",
    "served_model_name": "model.id",
    "tokenizer": "model.source",
    "scheduler_cls": "policies",
    "additional_config": "policies",
    "distributed_executor_backend": "nothing; Ray sets it",
}
"""Arguments that a configuration must not name, and the key that decides them instead."""

_MAY_BE_NEGATIVE = frozenset({"max_model_len", "max_logprobs", "seed"})
_ONE_OR_MORE = frozenset(
    {
        "block_size",
        "num_gpu_blocks_override",
        "max_num_seqs",
        "max_num_batched_tokens",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "max_loras",
        "max_lora_rank",
    }
)
_FRACTIONS = frozenset({"gpu_memory_utilization"})


@lru_cache(maxsize=1)
def engine_argument_types() -> dict[str, frozenset[str]]:
    """Name -> the names in its annotation; empty where vLLM isn't installed (nothing is checked then)."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return {}
    root = Path(next(iter(spec.submodule_search_locations)))
    found: dict[str, frozenset[str]] = {}
    for name, classes in _SOURCES:
        path = root / name
        if path.is_file():
            found.update(_annotated_fields(path, classes))
    return found


def _annotated_fields(path: Path, classes: tuple[str, ...]) -> dict[str, frozenset[str]]:
    fields: dict[str, frozenset[str]] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name in classes:
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    names = {part.id for part in ast.walk(item.annotation) if isinstance(part, ast.Name)}
                    constants = {
                        "None"
                        for part in ast.walk(item.annotation)
                        if isinstance(part, ast.Constant) and part.value is None
                    }
                    fields[item.target.id] = frozenset(names | constants)
    return fields


def check_engine_kwargs(values: dict[str, Any], path: str = "engine_kwargs") -> None:
    """Raises ConfigurationError naming the key, its value and what is allowed."""
    known = engine_argument_types()
    for key, value in values.items():
        if key in SET_BY_US:
            raise ConfigurationError(f"{path}.{key}: {_shown(value)} is not allowed; it is set from {SET_BY_US[key]}")
        if known and key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "allowed: an argument name of vLLM's engine"
            raise ConfigurationError(f"{path}.{key}: unknown key (value {_shown(value)}); {hint}")
        wrong = _refused(key, value, known.get(key, frozenset()))
        if wrong:
            raise ConfigurationError(f"{path}.{key}: {_shown(value)} is not allowed; allowed: {wrong}")


def _refused(key: str, value: Any, types: frozenset[str]) -> str | None:
    """What would be allowed, if `value` isn't."""
    if key in _FRACTIONS:
        return None if _is_number(value) and 0 < value <= 1 else "a number above 0 up to 1"
    if key in _ONE_OR_MORE:
        return None if _is_integer(value) and value >= 1 else "an integer >= 1"
    simple = types - {"None", "Optional"}
    if value is None:
        return None if not simple or "None" in types or "Optional" in types else f"{' or '.join(sorted(simple))}"
    if simple == {"bool"} and not isinstance(value, bool):
        return "true or false"
    if simple == {"int"} and not _is_integer(value) and key != "max_model_len":
        return "an integer"
    if simple and simple <= {"int", "float"} and key != "max_model_len" and not _is_number(value):
        return "a number"
    if simple == {"str"} and not isinstance(value, str):
        return "a string"
    if _is_number(value) and value < 0 and key not in _MAY_BE_NEGATIVE:
        return "a number >= 0"
    if key == "max_model_len" and not (value == "auto" or (_is_integer(value) and (value >= 1 or value == -1))):
        return "an integer >= 1, or auto"
    return None


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
