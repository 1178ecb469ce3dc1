"""Imports run one way: serve_app -> replicas -> runtime_actor; the other rooms are imported by none of them."""

from __future__ import annotations

import ast
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
    "examples": set(),
}
EXCEPTIONS = {
    # `source: embedded` in a configuration means a folder that only cluster knows how to make.
    ("serve_app", "cluster.embedded_model"),
    ("serve_app", "cluster.errors"),
}
HEAVY = {"ray", "vllm", "torch", "transformers"}
WITHOUT_RAY = {
    "runtime_actor": {"actor.py", "client.py"},
}
PURE_REPLICA_FILES = (
    "free_queue.py",
    "owner.py",
    "owner_order.py",
    "owner_values.py",
    "ownership.py",
    "claim.py",
    "reuse.py",
    "sharing.py",
    "residency.py",
)


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
    for name in PURE_REPLICA_FILES:
        path = root / "replicas" / name
        if path.exists():
            wrong += [f"{path.relative_to(root)}: {m}" for m, _ in imports_of(path) if m.split(".")[0] in HEAVY]
    assert not wrong, "\n".join(wrong)


def test_builder_module_has_real_annotations(root: Path) -> None:
    """With postponed annotations Ray hands the builder a raw dict without validating it."""
    path = root / "serve_app" / "app.py"
    if path.exists():
        assert "__future__" not in {module for module, _ in imports_of(path)}
