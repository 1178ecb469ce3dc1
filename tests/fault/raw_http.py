"""HTTP by the byte, for what a client library wouldn't send."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class RawAnswer:
    """`headers` by lower-case name."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Line:
    """One connection to a server at `url`; reads raise TimeoutError after `timeout_s`, EOFError at its end."""

    def __init__(self, url: str, key: str, timeout_s: float = 120.0) -> None:
        address = urlsplit(url)
        self._host = address.netloc
        self._key = key
        self.socket = socket.create_connection((address.hostname, address.port), timeout=timeout_s)
        self._buffer = b""

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def head(self, path: str, *headers: str) -> bytes:
        lines = [
            f"POST {path} HTTP/1.1",
            f"host: {self._host}",
            f"authorization: Bearer {self._key}",
            "content-type: application/json",
            *headers,
        ]
        return "\r\n".join([*lines, "", ""]).encode()

    def request(self, path: str, body: Any, *headers: str) -> bytes:
        """All bytes of one request; `body` is an object or bytes."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.head(path, f"content-length: {len(content)}", *headers) + content

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> RawAnswer:
        """The next one; further bytes stay for the one after it."""
        head = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        status = int(head[0].split()[1])
        if 100 <= status < 200:
            return RawAnswer(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            return RawAnswer(status, headers, self._chunks())
        return RawAnswer(status, headers, self._exactly(int(headers.get("content-length", "0"))))

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self._until(b"\r\n").split(b";")[0], 16):
            body += self._exactly(size)
            self._until(b"\r\n")
        self._until(b"\r\n")
        return body

    def read_until(self, mark: bytes, count: int) -> None:
        """Until `mark` has come `count` times."""
        while self._buffer.count(mark) < count:
            self._more()

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            self._more()
        found, _, self._buffer = self._buffer.partition(mark)
        return found

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._more()
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found

    def _more(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise EOFError("the server closed the connection")
        self._buffer += data


def closed_within(lines: Sequence[Line], seconds: float) -> list[Line]:
    """Those that the server closes, or says something on, while nobody sends anything for `seconds`."""
    readable, _, _ = select.select([line.socket for line in lines], [], [], seconds)
    return [line for line in lines if line.socket in readable]
