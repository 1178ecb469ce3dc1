"""End what this program started, and nothing else.

The program becomes the subreaper of its descendants: one whose parent ends is handed to it rather than to
the system's first process, so `descendants()` stays complete, also for an engine whose replica was killed.
"""

from __future__ import annotations

import ctypes

import psutil

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> bool:
    """False where the system can't do it (not Linux): then orphans of killed parents are not found."""
    try:
        return ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    except (OSError, AttributeError):
        return False


def descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def end_descendants(patience_s: float = 10.0) -> int:
    """Ask every descendant to end, kill those that don't within `patience_s`; returns how many there were."""
    left = descendants()
    for process in left:
        _signal(process, kill=False)
    _, alive = psutil.wait_procs(left, timeout=patience_s)
    # Asking may have made new orphans, so look again.
    stubborn = {process.pid: process for process in [*alive, *descendants()]}.values()
    for process in stubborn:
        _signal(process, kill=True)
    psutil.wait_procs(list(stubborn), timeout=patience_s)
    return len(left)


def _signal(process: psutil.Process, *, kill: bool) -> None:
    try:
        # psutil compares the creation time first: a pid that was given out again is left alone.
        process.kill() if kill else process.terminate()
    except psutil.NoSuchProcess:
        return
