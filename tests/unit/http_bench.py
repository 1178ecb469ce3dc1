"""The bench's gateway behind a real HTTP server on loopback, for clients that need a socket."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn

from tests.unit.gateway_bench import Bench

START_S = 20.0


@dataclass(frozen=True, slots=True)
class Served:
    """`stop` closes the listener and every connection, whatever is still going on."""

    bench: Bench
    url: str
    server: uvicorn.Server
    thread: threading.Thread

    def stop(self) -> None:
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(START_S)
        assert not self.thread.is_alive()


@contextmanager
def served(bench: Bench) -> Iterator[Served]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(bench.asgi, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
    thread.start()
    deadline_s = time.monotonic() + START_S
    while not server.started:
        assert time.monotonic() < deadline_s, "the HTTP server did not start"
        thread.join(0.01)
    running = Served(bench, f"http://127.0.0.1:{listener.getsockname()[1]}", server, thread)
    try:
        yield running
    finally:
        running.stop()
        listener.close()
