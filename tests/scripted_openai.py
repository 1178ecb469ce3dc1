"""A small OpenAI-compatible server that answers from a script and keeps what it was sent.

For recording what an agent framework sends, without a model: `BASE/NAME/v1` serves the run NAME.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Message = dict[str, Any]
Answer = Callable[[str, dict[str, Any]], Message]
"""(run, body) -> the assistant's message."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request of a run and its answer."""

    run: str
    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    answer: Message


def call(name: str, arguments: dict[str, Any], call_id: str) -> Message:
    """An assistant's message that calls one tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def text(content: str) -> Message:
    return {"role": "assistant", "content": content}


def completion(body: dict[str, Any], answer: Message, number: int) -> dict[str, Any]:
    reason = "tool_calls" if answer.get("tool_calls") else "stop"
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1,
        "model": body.get("model"),
        "choices": [{"index": 0, "message": answer, "finish_reason": reason, "logprobs": None}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }


def chunks(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same answer as a stream's events: all of the text in one, then the end, then the usage."""
    choice = whole["choices"][0]
    calls = [{**one, "index": index} for index, one in enumerate(choice["message"].get("tool_calls") or ())]
    delta = {**choice["message"], **({"tool_calls": calls} if calls else {})}
    head = {**whole, "object": "chat.completion.chunk", "usage": None}
    yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    yield {**head, "choices": [], "usage": whole["usage"]}


class ScriptedServer(ThreadingHTTPServer):
    """`exchanges` in the order of arrival; one request at a time is answered."""

    daemon_threads = True

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.exchanges: list[Exchange] = []
        self._answer = answer
        self._lock = threading.Lock()

    def base_url(self, run: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{run}/v1"

    def serve_exchange(self, method: str, path: str, headers: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        _, run, rest = path.split("/", 2)
        with self._lock:
            answer = self._answer(run, body)
            self.exchanges.append(Exchange(run, method, f"/{rest}", headers, body, answer))
            return completion(body, answer, len(self.exchanges))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptedServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        whole = self.server.serve_exchange(self.command, self.path, dict(self.headers.items()), body)
        if body.get("stream"):
            events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks(whole)) + "data: [DONE]\n\n"
            self._send("text/event-stream", events)
        else:
            self._send("application/json", json.dumps(whole))

    def _send(self, kind: str, content: str) -> None:
        data = content.encode()
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what was sent is in `exchanges`."""


@contextmanager
def scripted_server(answer: Answer) -> Iterator[ScriptedServer]:
    server = ScriptedServer(answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
