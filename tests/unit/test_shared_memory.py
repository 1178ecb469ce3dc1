"""Which shared memory is removed when the server stops: what its own processes mapped and nobody maps now."""

from __future__ import annotations

import os
import shutil
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from cluster.shared_memory import held_below, unlink_unmapped


class Machine:
    """Folders in place of /proc and /dev/shm."""

    def __init__(self, root: Path) -> None:
        self.proc, self.shared = root / "proc", root / "shm"
        self.proc.mkdir()
        self.shared.mkdir()
        (self.proc / "meminfo").write_text("no process")

    def process(self, pid: int, parent: int, *names: str, name: str = "python") -> None:
        folder = self.proc / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} ({name}) S {parent} {pid} 1 0 -1")
        lines = ["7f00-7f10 r-xp 00000000 08:01 12   /usr/lib/libc.so.6", "7f20-7f30 rw-p 00000000 00:00 0"]
        lines += [f"7f30-7f40 rw-s 00000000 00:19 9    {self.shared / entry}" for entry in names]
        (folder / "maps").write_text("\n".join(lines) + "\n")

    def end(self, *pids: int) -> None:
        for pid in pids:
            shutil.rmtree(self.proc / str(pid))

    def files(self, *names: str) -> None:
        for name in names:
            (self.shared / name).write_text("x")

    def left(self) -> set[str]:
        return {path.name for path in self.shared.iterdir()}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.files("psm_a", "psm_b", "psm_strange", "sem.mp-c", "plasma")
    machine.process(10, 1)
    machine.process(11, 10, "psm_a", "plasma", name="ray::Replica (1) S 1")
    machine.process(12, 11, "psm_a", "psm_b", "sem.mp-c", "psm_gone (deleted)")
    machine.process(20, 1, "psm_strange")
    return machine


def test_descendants_alone_count(machine: Machine) -> None:
    held = held_below(10, machine.proc, machine.shared)
    assert {path.name for path in held} == {"psm_a", "psm_b", "sem.mp-c"}


def test_removed_once_nobody_maps_it(machine: Machine) -> None:
    held = held_below(10, machine.proc, machine.shared)
    machine.end(11, 12)
    machine.process(21, 20, "psm_b")
    (machine.shared / "sem.mp-c").unlink()
    assert unlink_unmapped(held, machine.proc, machine.shared) == 1
    assert machine.left() == {"psm_b", "psm_strange", "plasma"}


def test_nothing_is_removed_while_it_is_used(machine: Machine) -> None:
    before = machine.left()
    assert unlink_unmapped(held_below(10, machine.proc, machine.shared), machine.proc, machine.shared) == 0
    assert machine.left() == before


def test_a_system_without_these_folders(tmp_path: Path) -> None:
    assert held_below(1, tmp_path / "none", tmp_path) == set()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm")
def test_real_maps_are_read() -> None:
    memory = SharedMemory(create=True, size=16)
    try:
        assert Path("/dev/shm", memory.name) in held_below(os.getppid())
    finally:
        memory.close()
        memory.unlink()
