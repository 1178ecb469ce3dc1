"""The fault kit against a process of the test's own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from runtime_actor import checkpoint
from runtime_actor.errors import CheckpointError
from tests.fault import faults

ECHO = """
import socket, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while True:
    try:
        data = peer.recv(1000)
        if data.startswith(b"write"):
            try:
                open(sys.argv[2], "wb", buffering=0).write(b"x" * 10)
                data = b"written"
            except OSError:
                data = b"refused"
        if data:
            peer.sendall(data)
            continue
    except OSError:
        pass
    peer.close()
    peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
"""


class Peer:
    """A process that answers on a connection that it makes, and makes again when it is cut."""

    def __init__(self, folder: Path) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        port = str(self.listener.getsockname()[1])
        self.process = subprocess.Popen([sys.executable, "-c", ECHO, port, str(folder / "file")])
        self.connection = self.accept()

    def accept(self) -> socket.socket:
        self.listener.settimeout(20)
        connection, _ = self.listener.accept()
        connection.settimeout(20)
        return connection

    def ask(self, data: bytes) -> bytes:
        self.connection.sendall(data)
        return self.connection.recv(1000)


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    made = Peer(tmp_path)
    yield made
    with contextlib.suppress(ProcessLookupError):
        faults.kill(made.process.pid)
    made.process.wait(20)
    made.connection.close()
    made.listener.close()


def test_kill(peer: Peer) -> None:
    faults.kill(peer.process.pid)
    assert peer.process.wait(20) == -9


def test_a_paused_process_answers_when_it_goes_on(peer: Peer) -> None:
    with faults.paused(peer.process.pid):
        peer.connection.sendall(b"hello")
        assert psutil.Process(peer.process.pid).status() == psutil.STATUS_STOPPED
        peer.connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            peer.connection.recv(10)
    peer.connection.settimeout(20)
    assert peer.connection.recv(10) == b"hello"


def test_a_slowed_process_takes_longer_and_answers(peer: Peer) -> None:
    with faults.slowed(peer.process.pid, by_s=0.5, runs_s=0.1):
        began_s = time.monotonic()
        for _ in range(3):
            assert peer.ask(b"x") == b"x"
            threading.Event().wait(0.15)
        assert time.monotonic() - began_s > 0.5
    assert peer.ask(b"y") == b"y"


def test_no_more_disk(peer: Peer) -> None:
    assert peer.ask(b"write") == b"written"
    with faults.disk_full(peer.process.pid):
        assert peer.ask(b"write") == b"refused"
    assert peer.ask(b"write") == b"written"


def test_what_is_cut_gets_nothing_and_gets_it_when_the_wall_is_gone(peer: Peer) -> None:
    with faults.cut(peer.process.pid, [os.getpid()]) as met:
        while not met[0]:
            threading.Event().wait(0.01)
        peer.connection.sendall(b"hello")
        peer.connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            peer.connection.recv(10)
    peer.connection.settimeout(20)
    assert peer.connection.recv(10) == b"hello"


def test_a_connection_that_is_shut_ends_and_the_next_one_too(peer: Peer) -> None:
    with faults.meddling(peer.process.pid, [os.getpid()]) as met:
        for _ in range(2):
            assert peer.connection.recv(10) == b""
            peer.connection.close()
            peer.connection = peer.accept()
    assert met[0] >= 2


def test_a_garbled_connection_gets_other_bytes(peer: Peer) -> None:
    assert faults.meddle(peer.process.pid, [os.getpid()], garble=True) == 1
    assert len(peer.connection.recv(1000)) == faults.GARBAGE_BYTES


def test_connections_of_others_are_left_alone(peer: Peer) -> None:
    assert faults.meddle(peer.process.pid, []) == 0
    assert peer.ask(b"x") == b"x"


def test_files_are_damaged(tmp_path: Path) -> None:
    for damage in (faults.truncate, faults.corrupt):
        path = tmp_path / "checkpoint"
        path.write_bytes(checkpoint.encode({"n": list(range(100))}))
        damage(path)
        with pytest.raises(CheckpointError, match="truncated or damaged"):
            checkpoint.read_checkpoint(path)
