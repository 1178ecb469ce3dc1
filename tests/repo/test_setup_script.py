"""scripts/setup: quick when done, one clear line when something outside is wrong. Run on a copy of the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """What scripts/setup reads, in a folder without an environment."""
    for name in ("scripts", "requirements"):
        shutil.copytree(root / name, tmp_path / name)
    shutil.copy(root / "pyproject.toml", tmp_path)
    return tmp_path


def run_setup(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(folder / "scripts" / "setup"), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def stub(folder: Path, name: str, text: str) -> Path:
    path = folder / "stubs" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def only_error_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_second_run_installs_nothing(root: Path) -> None:
    first = run_setup(root)
    assert first.returncode == 0, first.stderr
    second = run_setup(root, PIP_NO_INDEX="1", UV_OFFLINE="1")
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")


def test_wrong_python(copy: Path) -> None:
    old = stub(copy, "python3", 'case "$1" in --version) echo Python 3.9.2;; *) exit 1;; esac')
    assert "Python 3.11 is needed; " + str(old) + " is Python 3.9.2" in only_error_line(
        run_setup(copy, PYTHON=str(old))
    )


def test_no_python(copy: Path) -> None:
    assert "is not there" in only_error_line(run_setup(copy, PYTHON="/absent/python3.11"))


def test_no_venv_module(copy: Path) -> None:
    bare = stub(copy, "python3.11", f'case "$*" in *ensurepip*) exit 1;; *) exec {sys.executable} "$@";; esac')
    assert "has no venv module" in only_error_line(run_setup(copy, PYTHON=str(bare)))


def test_no_disk(copy: Path) -> None:
    stubs = stub(copy, "df", "echo header; echo disk 100 90 2097152 90% /").parent
    done = run_setup(copy, PATH=f"{stubs}:{os.environ['PATH']}")
    assert "no disk: the environment needs 6 GB" in only_error_line(done)
    assert "2 GB are free" in done.stderr


def test_no_network(copy: Path) -> None:
    """Nothing listens on the discard port of this machine."""
    done = run_setup(copy, PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="0", PIP_EXTRA_INDEX_URL="")
    assert "no network: the package index did not answer" in only_error_line(done)
    assert not (copy / ".venv" / ".agent-runtime-stamp").exists()


def test_unknown_option(copy: Path) -> None:
    assert "unknown option --tpu" in only_error_line(run_setup(copy, "--tpu"))
