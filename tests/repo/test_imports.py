"""Imports run one way: serve_app -> replicas -> runtime_actor; the other rooms are imported by none of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ALLOWED = {
    "runtime_actor": {"runtime_actor"},
    "replicas": {"replicas", "runtime_actor"},
    "serve_app": {"serve_app", "replicas", "runtime_actor"},
    "cluster": {"cluster", "serve_app", "replicas", "runtime_actor"},
    "benchmarks": {"benchmarks", "cluster", "serve_app", "replicas", "runtime_actor"},
    "demo": {"demo"},
    "agent_client": {"agent_client"},
    "examples": set(),
}
EXCEPTIONS = {
    # `source: embedded` in a configuration means a folder that only cluster knows how to make.
    ("serve_app", "cluster.embedded_model"),
    ("serve_app", "cluster.errors"),
}
HEAVY = {"ray", "vllm", "torch", "transformers"}
WITHOUT_RAY = {
    "runtime_actor": {"actor.py", "client.py", "memo_actor.py"},
}
CACHE_FILES_OF_VLLM = {"block_pool.py", "cache_keeper.py", "plain_blocks.py"}
"""The files of replicas/cache that are made of vLLM's classes; the rest is pure, for replay and simulation."""


def imports_of(path: Path) -> Iterator[tuple[str, bool]]:
    """(module, inside a function or a TYPE_CHECKING block) of every import in the file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) not in top
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or "", id(node) not in top


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_direction(root: Path, package: str) -> None:
    wrong = []
    for path in sorted((root / package).rglob("*.py")):
        for module, _ in imports_of(path):
            room = module.split(".")[0]
            if room in ALLOWED and room not in ALLOWED[package] and (package, module) not in EXCEPTIONS:
                wrong.append(f"{path.relative_to(root)} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_core_needs_no_ray_and_no_vllm(root: Path) -> None:
    wrong = []
    for path in sorted((root / "runtime_actor").rglob("*.py")):
        if path.name not in WITHOUT_RAY["runtime_actor"]:
            wrong += [f"{path.relative_to(root)}: {m}" for m, _ in imports_of(path) if m.split(".")[0] in HEAVY]
    cache = root / "replicas" / "cache"
    assert {path.name for path in cache.glob("*.py")} > CACHE_FILES_OF_VLLM
    for path in (root / "replicas" / "free_queue.py", *sorted(cache.glob("*.py"))):
        if path.name not in CACHE_FILES_OF_VLLM:
            wrong += [f"{path.relative_to(root)}: {m}" for m, _ in imports_of(path) if m.split(".")[0] in HEAVY]
    assert not wrong, "\n".join(wrong)


def test_builder_module_has_real_annotations(root: Path) -> None:
    """With postponed annotations Ray hands the builder a raw dict without validating it."""
    assert "__future__" not in {module for module, _ in imports_of(root / "serve_app" / "app.py")}


def test_private_names_of_rays_engine_stand_in_one_file(root: Path) -> None:
    named = re.compile(r"\b(_engine_client|_app_state|_oai_\w+)\b")
    found = {
        str(path.relative_to(root))
        for package in ("replicas", "serve_app", "runtime_actor")
        for path in (root / package).rglob("*.py")
        if named.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"replicas/engine/ray_engine.py"}
