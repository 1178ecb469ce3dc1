"""A cache counts as empty only when prompts that were in it aren't found any more."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.engine.drive import Endpoint
from benchmarks.engine.emptying import ATTEMPTS, NotEmptied, empty


class CachingServer(ThreadingHTTPServer):
    """Finds a prompt that it has seen since its last reset; the first `refused` resets do nothing, as vLLM's do while a
    request still holds blocks."""

    def __init__(self, refused: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: set[str] = set()
        self.resets = 0
        self._refused = refused

    def reset(self) -> None:
        self.resets += 1
        if self.resets > self._refused:
            self.seen.clear()


class Handler(BaseHTTPRequestHandler):
    server: CachingServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = body["messages"][0]["content"]
        cached = 64 if text in self.server.seen else 0
        self.server.seen.add(text)
        answer = json.dumps({"usage": {"prompt_tokens_details": {"cached_tokens": cached}}}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(refused: int) -> Iterator[tuple[CachingServer, Endpoint]]:
    with CachingServer(refused) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server, Endpoint(f"http://127.0.0.1:{server.server_port}", "m")
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("refused", [0, 1, 3])
def test_it_is_reset_until_nothing_is_found(refused: int) -> None:
    with serving(refused) as (server, endpoint):
        server.seen.add("of the cell before")
        assert empty(endpoint, 2, server.reset) == refused + 1
        assert "of the cell before" not in server.seen


def test_a_cache_that_is_never_emptied_is_said_so() -> None:
    with serving(ATTEMPTS) as (server, endpoint):
        with pytest.raises(NotEmptied, match=f"still has cached prompts after {ATTEMPTS} resets"):
            empty(endpoint, 1, server.reset)
        assert server.resets == ATTEMPTS


def test_a_server_that_is_gone_is_said_so() -> None:
    with serving(0) as (_, endpoint):
        pass
    with pytest.raises(NotEmptied, match="doesn't answer"):
        empty(endpoint, 1, lambda: None)
