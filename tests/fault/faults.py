"""Faults by process id: kill, pause, slow, no more disk, cut and garble connections. Linux, own processes only.

Sockets are meddled with from outside by borrowing the process's own socket (`pidfd_getfd`), which needs the right to
trace it: the same user, or root.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import struct
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import psutil

SYS_PIDFD_GETFD = 438
LOOK_EVERY_S = 0.05
STOPS_WITHIN_S = 20.0
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
_DROP = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
DROP_ALL = struct.pack("HP", 1, ctypes.addressof(_DROP))
"""A packet filter of one instruction: keep 0 bytes."""

GARBAGE_BYTES = 128

_libc = ctypes.CDLL(None, use_errno=True)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def pause(pid: int) -> None:
    """As `paused`, for good."""
    os.kill(pid, signal.SIGSTOP)
    _await_stop(pid)


@contextlib.contextmanager
def paused(pid: int) -> Iterator[None]:
    """The process does nothing, and nobody is told. Raises TimeoutError where it doesn't stop in `STOPS_WITHIN_S`."""
    try:
        pause(pid)
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
def cut(pid: int, others: Collection[int]) -> Iterator[list[int]]:
    """Nothing that the processes `others` send reaches `pid`, as behind a wall that says nothing: each socket between
    them drops what comes in, and so do those that listen. Yields a list of one number: how many sockets."""
    stop = threading.Event()
    walled: set[int] = set()
    met = [0]

    def wall_up() -> None:
        while not stop.is_set():
            for descriptor in {*_between(pid, others), *_listening(pid)} - walled:
                if _set_filter(pid, descriptor, SO_ATTACH_FILTER, DROP_ALL):
                    walled.add(descriptor)
            met[0] = len(walled)
            stop.wait(LOOK_EVERY_S)

    try:
        with _in_thread(wall_up, stop):
            yield met
    finally:
        for descriptor in walled:
            _set_filter(pid, descriptor, SO_DETACH_FILTER, struct.pack("i", 0))


@contextlib.contextmanager
def meddling(pid: int, others: Collection[int], garble: bool = False) -> Iterator[list[int]]:
    """Again and again every connection between `pid` and the processes `others` is shut, or gets bytes that its
    protocol doesn't know. Yields a list of one number: how many were met so far."""
    stop = threading.Event()
    met = [0]

    def keep_on() -> None:
        while not stop.is_set():
            met[0] += meddle(pid, others, garble)
            stop.wait(LOOK_EVERY_S)

    with _in_thread(keep_on, stop):
        yield met


def meddle(pid: int, others: Collection[int], garble: bool = False) -> int:
    """Once; returns the number of connections."""
    found = 0
    for descriptor in _between(pid, others):
        with contextlib.suppress(OSError), _borrowed(pid, descriptor) as borrowed:
            if garble:
                borrowed.send(os.urandom(GARBAGE_BYTES), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
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


def _await_stop(pid: int) -> None:
    """A signal is sent at once and taken later: a thread that runs on another core goes on until it meets it."""
    deadline_s = time.monotonic() + STOPS_WITHIN_S
    while not all(state in "TtZX" for state in _thread_states(pid)):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"process {pid} still ran {STOPS_WITHIN_S:.0f} s after SIGSTOP")
        time.sleep(0.001)


def _thread_states(pid: int) -> Iterator[str]:
    """A letter a thread, as in proc(5): `T` is stopped by a signal."""
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            yield thread.read_text().rpartition(")")[2].split()[0]


def _go_on(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _connections(pid: int) -> list[Any]:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return [found for found in psutil.Process(pid).net_connections("tcp") if found.fd >= 0]
    return []


def _between(pid: int, others: Collection[int]) -> list[int]:
    """Descriptors of `pid` whose other end is a socket of `others`."""
    ports = {connection.laddr.port for other in others for connection in _connections(other)}
    return [found.fd for found in _connections(pid) if found.raddr and found.raddr.port in ports]


def _listening(pid: int) -> list[int]:
    return [found.fd for found in _connections(pid) if found.status == psutil.CONN_LISTEN]


def _set_filter(pid: int, descriptor: int, option: int, value: bytes) -> bool:
    with contextlib.suppress(OSError), _borrowed(pid, descriptor) as borrowed:
        borrowed.setsockopt(socket.SOL_SOCKET, option, value)
        return True
    return False


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
