"""Facts about the tree as a whole: nothing of one machine in it, links that resolve, commands that exist."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import pytest

APACHE_2_SHA256 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
TEXT_SUFFIXES = {".py", ".md", ".txt", ".toml", ".yaml", ".yml", ".json", ".html", ".js", ".css", ""}

# Written in parts, so that this file doesn't hold what it forbids.
FORBIDDEN = {
    "a package index's host": re.compile(
        r"py"
        r"pi\.org|python"
        r"hosted\.org|download\.py"
        r"torch\.org|registry\.np"
        r"mjs|index-url\s*[= ]\s*http"
    ),
    "a path of one machine": re.compile(r"(?<![\w.])/(?:root|home/[a-z]+|work|tmp/w|opt/wheels)/[\w.]"),
}


def texts(files: list[Path]) -> list[tuple[Path, str]]:
    return [(path, path.read_text(encoding="utf-8")) for path in files if path.suffix in TEXT_SUFFIXES]


@pytest.mark.parametrize("what", sorted(FORBIDDEN))
def test_nothing_of_one_machine(what: str, root: Path, tracked_files: list[Path]) -> None:
    found = [
        f"{path.relative_to(root)}: {match.group(0)!r}"
        for path, text in texts(tracked_files)
        for match in FORBIDDEN[what].finditer(text)
    ]
    assert not found, "\n".join(found)


def test_lock_files_name_no_address(root: Path) -> None:
    for path in (root / "requirements").glob("*.txt"):
        assert "://" not in path.read_text(encoding="utf-8"), path


def test_licence(root: Path) -> None:
    assert hashlib.sha256((root / "LICENSE").read_bytes()).hexdigest() == APACHE_2_SHA256
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    assert "Apache-2.0" in (root / "README.md").read_text()


def test_locks_hold_what_the_project_pins(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for kind in ("cpu", "gpu"):
        lock = (root / "requirements" / f"{kind}.txt").read_text()
        pinned = dict(re.findall(r"^([\w.-]+)==([\w.+!-]+)", lock, re.MULTILINE))
        wanted = [*project["dependencies"], *extras[kind], *extras["demo"], *extras["test"], *extras["lint"]]
        for line in wanted:
            name = re.split(r"[\[=><~ ]", line)[0].lower().replace("_", "-")
            assert name in pinned, f"{name} is not in requirements/{kind}.txt; run scripts/lock"
            if "==" in line:
                assert pinned[name].split("+")[0] == line.split("==")[1], f"{kind}: {line}; run scripts/lock"


def test_locks_of_the_examples_hold_their_groups(root: Path) -> None:
    groups = tomllib.loads((root / "pyproject.toml").read_text())["dependency-groups"]
    for group, wanted in groups.items():
        lock = (root / "requirements" / f"{group}.txt").read_text()
        pinned = dict(re.findall(r"^([\w.-]+)==([\w.+!-]+)", lock, re.MULTILINE))
        for line in wanted:
            name, _, version = re.sub(r"\[.*\]", "", line).partition("==")
            name = name.split(">=")[0]
            assert name in pinned and version in ("", pinned[name]), f"{group}: {line}; run scripts/lock"
    served, used = (
        re.search(r"^openai==(\S+)", (root / "requirements" / f"{kind}.txt").read_text(), re.MULTILINE)
        for kind in ("cpu", "frameworks")
    )
    assert served and used and served.group(1) == used.group(1), "the examples' openai is the one of the demo"


def test_links_of_documents_resolve(root: Path, tracked_files: list[Path]) -> None:
    broken = []
    for path in tracked_files:
        if path.suffix == ".md" and "prompts" not in path.parts:
            for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
                if "://" not in target and not (path.parent / target).exists():
                    broken.append(f"{path.relative_to(root)}: {target}")
    assert not broken, "\n".join(broken)


def test_tests_named_in_documents_exist(root: Path, tracked_files: list[Path]) -> None:
    defined = "\n".join(path.read_text(encoding="utf-8") for path in tracked_files if path.match("test_*.py"))
    missing = [
        f"{path.relative_to(root)}: {name}"
        for path in tracked_files
        if path.suffix == ".md"
        for name in re.findall(r"`(test_\w+)`", path.read_text(encoding="utf-8"))
        if f"def {name}(" not in defined
    ]
    assert not missing, "\n".join(missing)


def test_commands_of_documents_exist(root: Path, tracked_files: list[Path]) -> None:
    missing = []
    for path in tracked_files:
        if path.suffix != ".md":
            continue
        text = path.read_text(encoding="utf-8")
        for script in re.findall(r"(?<![\w/])scripts/[a-z_]+", text):
            if not (root / script).exists():
                missing.append(f"{path.relative_to(root)}: {script}")
        for module in re.findall(
            r"python -m ((?:serve_app|replicas|runtime_actor|cluster|demo|benchmarks)[\w.]*)", text
        ):
            base = root / module.replace(".", "/")
            if not base.with_suffix(".py").exists() and not (base / "__main__.py").exists():
                missing.append(f"{path.relative_to(root)}: python -m {module}")
    assert not missing, "\n".join(missing)


def test_readme_tree_names_what_is_there(root: Path) -> None:
    block = re.search(r"```text\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
    assert block, "README.md has no file tree"
    folder = root
    for line in block.group(1).splitlines():
        name = line.split("#")[0].strip()
        if name:
            folder = root / name if name.endswith("/") and not line.startswith(" ") else folder
            path = folder if folder == root / name else (folder if line.startswith(" ") else root) / name
            assert path.exists(), f"README.md names {path.relative_to(root)}"


def test_scripts_are_executable(root: Path) -> None:
    for path in [*(root / "scripts").iterdir(), root / ".ci" / "run"]:
        assert path.stat().st_mode & 0o100, f"{path.name} is not executable"
