"""Faults by process id: kill, pause, slow, no more disk, cut and garble connections. Linux, own processes only.

Connections are cut from outside by borrowing the process's own socket (`pidfd_getfd`), which needs the right to
trace it: the same user, or root.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import psutil

SYS_PIDFD_GETFD = 438
CUT_EVERY_S = 0.05
GARBAGE = b"\x00garbled\xff" * 16

_libc = ctypes.CDLL(None, use_errno=True)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def paused(pid: int) -> Iterator[None]:
    """The process does nothing, and nobody is told."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        _go_on(pid)


@contextlib.contextmanager
def slowed(pid: int, by_s: float = 2.0, runs_s: float = 0.2) -> Iterator[None]:
    """Paused for `by_s` seconds again and again, so that a call takes up to that much longer."""
    stop = threading.Event()

    def alternate() -> None:
        while not stop.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
            stop.wait(by_s)
            _go_on(pid)
            stop.wait(runs_s)

    with _in_thread(alternate, stop):
        yield


@contextlib.contextmanager
def disk_full(pid: int, limit_bytes: int = 0) -> Iterator[None]:
    """The process can write no file beyond `limit_bytes`: the write fails (EFBIG) as on a full disk (ENOSPC)."""
    process = psutil.Process(pid)
    soft, hard = process.rlimit(resource.RLIMIT_FSIZE)
    process.rlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.rlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def cut(pid: int, others: Collection[int], garble: bool = False) -> Iterator[list[int]]:
    """Every connection between `pid` and the processes `others` is shut, also the ones they make anew; or gets bytes
    that its protocol doesn't know. Yields a list of one number: how many were met so far."""
    stop = threading.Event()
    met = [0]

    def keep_cutting() -> None:
        while not stop.is_set():
            met[0] += meddle(pid, others, garble)
            stop.wait(CUT_EVERY_S)

    with _in_thread(keep_cutting, stop):
        yield met


def meddle(pid: int, others: Collection[int], garble: bool = False) -> int:
    """Once; returns the number of connections."""
    ports = {connection.laddr.port for other in others for connection in _connections(other)}
    found = 0
    for connection in _connections(pid):
        if connection.raddr and connection.raddr.port in ports and connection.fd >= 0:
            with contextlib.suppress(OSError), _borrowed(pid, connection.fd) as borrowed:
                if garble:
                    borrowed.send(GARBAGE, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                else:
                    borrowed.shutdown(socket.SHUT_RDWR)
                found += 1
    return found


def truncate(path: Path) -> None:
    """Half of the file is left."""
    os.truncate(path, path.stat().st_size // 2)


def corrupt(path: Path) -> None:
    """One bit of the body is another."""
    content = bytearray(path.read_bytes())
    content[-len(content) // 3] ^= 4
    path.write_bytes(content)


def _go_on(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _connections(pid: int) -> list[psutil._common.pconn]:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return list(psutil.Process(pid).net_connections("tcp"))
    return []


@contextlib.contextmanager
def _borrowed(pid: int, descriptor: int) -> Iterator[socket.socket]:
    """The same open socket as the process's. Raises OSError."""
    process = os.pidfd_open(pid)
    try:
        own = _libc.syscall(SYS_PIDFD_GETFD, process, descriptor, 0)
        if own < 0:
            raise OSError(ctypes.get_errno(), f"no access to descriptor {descriptor} of process {pid}")
        with socket.socket(fileno=own) as opened:
            yield opened
    finally:
        os.close(process)


@contextlib.contextmanager
def _in_thread(work: object, stop: threading.Event) -> Iterator[None]:
    thread = threading.Thread(target=work, daemon=True)  # type: ignore[arg-type]
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)
