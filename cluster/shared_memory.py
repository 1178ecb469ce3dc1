"""Files in /dev/shm that killed processes leave behind.

vLLM's engines share memory under names that Python gives (`psm_...`), and unlink them when they end in
order, which Ray doesn't wait for. A file is removed here only if a process of ours had it mapped and no
process has it any more.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

PROC = Path("/proc")
SHARED = Path("/dev/shm")
_NAME = re.compile(r"(?:psm_|sem\.mp-)[\w-]+")


def held_below(pid: int, proc: Path = PROC, shared: Path = SHARED) -> set[Path]:
    """The shared files mapped by the descendants of `pid`."""
    return _mapped(_descendants(pid, proc), proc, shared)


def unlink_unmapped(paths: set[Path], proc: Path = PROC, shared: Path = SHARED) -> int:
    """Remove those of `paths` that nobody maps any more; returns how many there were."""
    removed = 0
    for path in paths - _mapped(_pids(proc), proc, shared):
        # Its owner may have unlinked it after all.
        with contextlib.suppress(OSError):
            path.unlink()
            removed += 1
    return removed


def _pids(proc: Path) -> Iterator[int]:
    """Of every process; none where the system has no such folder."""
    with contextlib.suppress(OSError):
        yield from [int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()]


def _descendants(pid: int, proc: Path) -> Iterator[int]:
    children: defaultdict[int, list[int]] = defaultdict(list)
    for other in _pids(proc):
        # "pid (name) state parent ...", where the name may hold blanks and brackets.
        fields = _read(proc / str(other) / "stat").rpartition(")")[2].split()
        if len(fields) > 1:
            children[int(fields[1])].append(other)
    waiting = list(children[pid])
    while waiting:
        found = waiting.pop()
        yield found
        waiting += children[found]


def _mapped(pids: Iterable[int], proc: Path, shared: Path) -> set[Path]:
    paths: set[Path] = set()
    for pid in pids:
        for line in _read(proc / str(pid) / "maps").splitlines():
            # Address, rights, offset, device, inode, path; an unlinked file's path ends in " (deleted)".
            fields = line.split(maxsplit=5)
            path = Path(fields[5]) if len(fields) == 6 else None
            if path is not None and path.parent == shared and _NAME.fullmatch(path.name):
                paths.add(path)
    return paths


def _read(path: Path) -> str:
    """Empty for a process that has ended or is another user's."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
