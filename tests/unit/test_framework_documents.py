"""README and docs/frameworks.md against the examples that they are made of."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.py")}


def rows() -> dict[str, str]:
    """Example -> the cell that points it here."""
    table = re.findall(r"^\| \[.+?\]\(examples/(\w+\.py)\) \| (.+) \|$", (ROOT / "README.md").read_text("utf-8"), re.M)
    found = dict(table)
    assert len(found) == len(table)
    return found


def test_each_example_has_its_line_in_the_readme() -> None:
    assert set(rows()) == set(EXAMPLES)


def test_each_word_of_a_line_stands_in_its_example() -> None:
    missing = {
        (name, word)
        for name, cell in rows().items()
        for code in re.findall(r"`(.+?)`", cell)
        for word in re.findall(r"\w+", code)
        if word not in EXAMPLES[name]
    }
    assert not missing


def test_each_example_has_its_rows_in_the_documents() -> None:
    text = (ROOT / "docs" / "frameworks.md").read_text("utf-8")
    sends = text.split("## What they send")[1].split("##")[0]
    assert all(f"`{name.removesuffix('.py')}`" in sends for name in EXAMPLES)
    line = text.split("## Identity in one line")[1].split("##")[0]
    assert len(re.findall(r"^\| (?!framework|-)", line, re.M)) == len(EXAMPLES)
    assert all("Identity in one line" in source for source in EXAMPLES.values())
