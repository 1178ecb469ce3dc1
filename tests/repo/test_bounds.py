"""docs/reliability.md's table of bounds against the code."""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path

ROW = re.compile(r"^\| [^|]+ \| `([\w.]+):([\w.]+)` \| (\d+) \|", re.MULTILINE)


def value_of(module: str, name: str) -> int:
    owner = importlib.import_module(module)
    kind, _, field = name.partition(".")
    if not field:
        return int(getattr(owner, name))
    (found,) = (f for f in dataclasses.fields(getattr(owner, kind)) if f.name == field)
    return int(found.default)  # type: ignore[call-overload]


def test_each_bound_is_the_codes(root: Path) -> None:
    rows = ROW.findall((root / "docs" / "reliability.md").read_text())
    assert len(rows) > 40
    wrong = [f"{module}:{name} is {value_of(module, name)}, not {told}" for module, name, told in rows
             if value_of(module, name) != int(told)]  # fmt: skip
    assert not wrong


def test_each_cap_in_the_code_is_in_the_table(root: Path) -> None:
    """Constants that bound entries of a map; sizes of texts and messages, times and limits of one call aside."""
    named = {f"{module}:{name}" for module, name, _ in ROW.findall((root / "docs" / "reliability.md").read_text())}
    caps = re.compile(
        r"^(MAX_(?:SESSIONS|AGENTS|ENDS|LINES|TEXTS|WORKLOADS|DIGESTS|PREFIXES|HANDED_OVER|EVENTS|CALLERS|PENDING|TENANTS))\b",
        re.M,
    )
    missing = []
    for package in ("serve_app", "runtime_actor", "replicas"):
        for path in (root / package).rglob("*.py"):
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            missing += [f"{module}:{name}" for name in caps.findall(path.read_text())]
    assert not sorted(set(missing) - named - {"replicas.cache.anchor_finder:MAX_PENDING"})
