"""6,900 requests with anything in identity, hints and fields: each is answered with 2xx or a well-formed 4xx."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serve_app.hints import REJECTED_FIELDS, REJECTED_HEADERS
from serve_app.identity import AGENT_HEADERS, FINAL_HEADERS, SESSION_HEADERS
from tests.simulated_bench import KEYS, SimulatedBench

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
LAST_EVENT = {RESPONSES: b"event: response.completed\n", MESSAGES: b"event: message_stop\n"}
LEAST_SERVED = 0.2
"""Of the inputs to each route: what never gets past the checks doesn't try what comes after them."""

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-5, 40)
    | st.sampled_from([2**31, -(2**31), 2**63, -(2**63) - 1, 10**30])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", " ", "null", "none", "s-0123456789abcdef", "a\x00b", "\u202e", "x" * 5000, "auto", "text"])
    | st.text(st.characters(codec="utf-8"), max_size=12)
)
NAMES = st.sampled_from(
    ["agent_hints", "agent_id", "workflow_id", "priority", "agent_context", "session_id", "trajectory_id", "type",
     "trajectory_final", "session_type_id", "text", "role", "content", "function", "name", "arguments", "id", "url"]
)  # fmt: skip
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6) | NAMES, inner, max_size=3),
    max_leaves=8,
)
HINTS = st.fixed_dictionaries(
    {},
    optional={
        "session_id": ANYTHING,
        "agent_hints": ANYTHING | st.dictionaries(NAMES, ANYTHING, max_size=3),
        "nvext": ANYTHING | st.fixed_dictionaries({}, optional={"agent_hints": ANYTHING, "agent_context": ANYTHING}),
        "vllm_xargs": ANYTHING | st.dictionaries(st.sampled_from(["session_id", "agent_runtime_owner"]), ANYTHING),
        "priority": ANYTHING,
        "user": ANYTHING,
        "metadata": ANYTHING,
        **dict.fromkeys(REJECTED_FIELDS, ANYTHING),
    },
)
PARTS = st.sampled_from(["text", "input_text", "image_url", "refusal", "thinking", "", None])
CONTENT = ANYTHING | st.lists(st.fixed_dictionaries({"type": PARTS}, optional={"text": ANYTHING}), max_size=3)
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", "other", "", None])
MESSAGE = st.fixed_dictionaries(
    {"role": ROLES}, optional={"content": CONTENT, "tool_calls": ANYTHING, "tool_call_id": ANYTHING, "name": ANYTHING}
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["m", "other", None, 5]),
        "stream": st.booleans() | ANYTHING,
        "stream_options": ANYTHING | st.fixed_dictionaries({"include_usage": ANYTHING}),
        "max_tokens": st.integers(-1, 8) | SCALARS.filter(lambda v: not isinstance(v, int) or v < 50),
        "n": st.integers(-1, 3) | ANYTHING,
        "temperature": ANYTHING,
        "top_p": ANYTHING,
        "stop": ANYTHING,
        "seed": ANYTHING,
        "logprobs": ANYTHING,
        "top_logprobs": ANYTHING,
        "logit_bias": ANYTHING,
        "tools": ANYTHING | st.lists(st.fixed_dictionaries({"type": ANYTHING, "function": ANYTHING}), max_size=2),
        "tool_choice": ANYTHING,
        "response_format": ANYTHING,
        "structured_outputs": ANYTHING,
        "stop_token_ids": ANYTHING,
        "allowed_token_ids": ANYTHING,
        "prompt_logprobs": ANYTHING,
        "echo": ANYTHING,
    },
)
GOOD = [{"role": "user", "content": "hi"}]
CHAT_BODY = st.builds(
    lambda messages, hints, fields: {"messages": messages, "max_tokens": 2, **fields, **hints},
    st.just(GOOD) | st.lists(MESSAGE, max_size=4) | ANYTHING,
    HINTS,
    FIELDS,
)
PROMPTS = st.text(max_size=30) | st.lists(st.integers(-1, 70_000), max_size=5) | ANYTHING
TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
WELL_FORMED = st.fixed_dictionaries(
    {"model": st.just("m")},
    optional={"stream": st.booleans(), "temperature": st.floats(0, 2), "top_p": st.floats(0.1, 1)},
)
"""Fields of a request that is served; what varies with it are texts and headers."""

COMPLETION_BODY = st.builds(
    lambda prompt, hints, fields: {"prompt": prompt, "max_tokens": 2, **fields, **hints}, PROMPTS, HINTS, FIELDS
) | st.builds(lambda prompt, fields: {"prompt": prompt, "max_tokens": 2, **fields}, TEXT, WELL_FORMED)

VALUES = st.binary(max_size=40).filter(lambda v: not set(v) & {0, 10, 13}) | st.sampled_from([b"null", b"x" * 20_000])
HEADER_NAMES = st.sampled_from(
    [name for names in (SESSION_HEADERS, AGENT_HEADERS, FINAL_HEADERS, REJECTED_HEADERS) for name in names]
).map(str.encode)
SPELLINGS = st.sampled_from([bytes.lower, bytes.upper, lambda name: name.replace(b"-", b"_")])
HEADERS = st.lists(st.tuples(st.builds(lambda n, s: s(n), HEADER_NAMES, SPELLINGS), VALUES), max_size=4)
OTHER_HEADERS = st.lists(
    st.tuples(
        st.sampled_from([b"content-type", b"content-encoding", b"content-length", b"origin", b"host", b"accept",
                         b"x-api-key", b"authorization", b"x-request-id", b"expect", b"traceparent", b"cookie"]),
        VALUES | st.sampled_from([b"application/json", b"gzip", b"identity", b"-1", b"99999999999", b"Bearer key-one"]),
    ),
    max_size=3,
)  # fmt: skip

MANY = {"deadline": None, "suppress_health_check": list(HealthCheck)}


class Client:
    """Raw ASGI, since HTTP clients refuse to send some of this; one loop for all requests."""

    def __init__(self) -> None:
        self.bench = SimulatedBench()
        self.loop = asyncio.new_event_loop()
        self.asked: Counter[str] = Counter()
        self.served: Counter[str] = Counter()

    def send(
        self, path: str, body: bytes, headers: list[tuple[bytes, bytes]], method: str = "POST", query: bytes = b""
    ) -> tuple[int, dict[str, str], bytes]:
        return self.loop.run_until_complete(self._send(path, body, headers, method, query))

    async def _send(
        self, path: str, body: bytes, headers: list[tuple[bytes, bytes]], method: str, query: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        pending = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[dict[str, Any]] = []
        over = asyncio.Event()

        async def receive() -> Any:
            if pending:
                return pending.pop()
            await over.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query,
            "headers": headers, "client": ("127.0.0.1", 1),
        }  # fmt: skip
        await self.bench.asgi(scope, receive, send)
        assert sum(message["type"] == "http.response.start" for message in sent) == 1
        answer = {name.decode(): value.decode("latin-1") for name, value in sent[0]["headers"]}
        return sent[0]["status"], answer, b"".join(message.get("body", b"") for message in sent[1:])

    def check(self, path: str, body: Any, headers: list[tuple[bytes, bytes]], **more: Any) -> int:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        key = (b"authorization", f"Bearer {KEYS['one']}".encode())
        status, answer, content = self.send(path, raw, [key, *headers], **more)
        assert 200 <= status < 300 or 400 <= status < 500, content
        assert all(len(value) <= 1024 and value.isprintable() for value in answer.values())
        assert "xxxxxxxxxxxxxxxx" not in str(answer)
        if status >= 400:
            error = json.loads(content)["error"]
            assert set(error) == {"message", "type", "param", "code"} and isinstance(error["message"], str)
            assert answer["content-type"].startswith("application/json") and len(content) < 4096
        elif answer["content-type"].startswith("text/event-stream"):
            check_end(path, content)
        else:
            json.loads(content)
        assert self.bench.gateway._admission.in_flight == 0
        self.asked[path] += 1
        self.served[path] += status < 300
        return status


def check_end(path: str, content: bytes) -> None:
    """A stream says once, and last, that it is complete."""
    last = LAST_EVENT.get(path)
    if last is None:
        assert content.endswith(b"data: [DONE]\n\n") and content.count(b"[DONE]") == 1
    else:
        assert content.count(last) == 1 and content.rstrip(b"\n").split(b"\n\n")[-1].startswith(last), content[-500:]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    made = Client()
    made.bench.gateway._quotas._quota_of = lambda _: made.bench.gateway._settings.config.gateway.quota
    yield made
    made.bench.runtime.check_invariants()
    made.bench.engine.core.cache.check_invariants()
    task = made.bench.gateway._exchange._task
    task.cancel()
    made.loop.run_until_complete(asyncio.wait({task}))
    made.loop.close()


@settings(max_examples=1300, **MANY)
@given(body=CHAT_BODY, headers=HEADERS)
def test_chat(client: Client, body: Any, headers: list[tuple[bytes, bytes]]) -> None:
    client.check(CHAT, body, headers)


@settings(max_examples=1000, **MANY)
@given(body=COMPLETION_BODY, headers=HEADERS)
def test_completions(client: Client, body: Any, headers: list[tuple[bytes, bytes]]) -> None:
    client.check(COMPLETIONS, body, headers)


RESPONSES_OWN = st.fixed_dictionaries(
    {},
    optional={
        "instructions": st.text(max_size=20) | ANYTHING,
        "max_output_tokens": st.integers(1, 8) | SCALARS,
        "store": ANYTHING,
        "metadata": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2) | ANYTHING,
    },
)
RESPONSES_BODY = st.builds(
    lambda input_, own, fields, hints: {"input": input_, "max_output_tokens": 2, **own, **fields, **hints},
    st.just("hi") | st.just(GOOD) | TEXT | st.lists(MESSAGE, max_size=4) | ANYTHING,
    RESPONSES_OWN,
    FIELDS,
    HINTS,
) | st.builds(
    lambda input_, instructions, fields: {"input": input_, "instructions": instructions, **fields},
    st.just(GOOD) | TEXT,
    TEXT,
    WELL_FORMED,
)
BLOCKS = st.lists(st.fixed_dictionaries({"type": PARTS}, optional={"text": ANYTHING, "source": ANYTHING}), max_size=3)
MESSAGES_OWN = st.fixed_dictionaries(
    {},
    optional={
        "system": st.text(max_size=20) | BLOCKS | ANYTHING,
        "stop_sequences": st.lists(st.text(max_size=5), max_size=2) | ANYTHING,
        "thinking": ANYTHING,
    },
)
MESSAGES_BODY = st.builds(
    lambda messages, own, fields, hints: {"messages": messages, "max_tokens": 2, **own, **fields, **hints},
    st.just(GOOD) | st.lists(MESSAGE, max_size=4) | ANYTHING,
    MESSAGES_OWN,
    FIELDS,
    HINTS,
) | st.builds(
    lambda text, system, fields: {
        "messages": [{"role": "user", "content": text}], "system": system, "max_tokens": 2, **fields,
    },
    TEXT,
    TEXT | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}), min_size=1, max_size=2),
    WELL_FORMED,
)  # fmt: skip


@settings(max_examples=800, **MANY)
@given(body=RESPONSES_BODY, headers=HEADERS)
def test_responses(client: Client, body: Any, headers: list[tuple[bytes, bytes]]) -> None:
    client.check(RESPONSES, body, headers)


@settings(max_examples=700, **MANY)
@given(body=MESSAGES_BODY, headers=HEADERS)
def test_messages(client: Client, body: Any, headers: list[tuple[bytes, bytes]]) -> None:
    client.check(MESSAGES, body, headers)


@settings(max_examples=1800, **MANY)
@given(hints=HINTS, headers=HEADERS)
def test_identity_and_hints_never_refuse_a_good_request(
    client: Client, hints: dict[str, Any], headers: list[tuple[bytes, bytes]]
) -> None:
    """Advice that makes no sense is reported, not answered with an error; fields of the engine's own are checked."""
    own = {name: value for name, value in hints.items() if name in ("agent_hints", "nvext", "session_id")}
    fitting = [(name, value) for name, value in headers if sum(len(v) for _, v in headers) < 30_000]
    assert client.check(CHAT, {"messages": GOOD, "max_tokens": 1, **own}, fitting) in (200, 400)


@settings(max_examples=600, **MANY)
@given(
    path=st.sampled_from(["/tokenize", "/detokenize", "/runtime/events", "/runtime/policy"]),
    body=ANYTHING
    | st.fixed_dictionaries(
        {},
        optional={"prompt": ANYTHING, "messages": ANYTHING | st.just(GOOD), "tokens": ANYTHING, "type": ANYTHING,
                  "session_id": ANYTHING, "tool": ANYTHING, "duration_s": ANYTHING, "events": ANYTHING},
    ),
)  # fmt: skip
def test_the_other_endpoints(client: Client, path: str, body: Any) -> None:
    client.bench.gateway._quotas._uses.clear()
    client.check(path, body, [(b"content-type", b"application/json"), (b"host", b"test")])


@settings(max_examples=500, **MANY)
@given(body=st.binary(max_size=60) | st.just(b'{"messages":[{"role":"user","content":"hi"}]}'), headers=OTHER_HEADERS)
def test_bytes_and_ordinary_headers(client: Client, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    client.check(CHAT, body, headers)


@settings(max_examples=200, **MANY)
@given(
    path=st.sampled_from(["/runtime/state", "/runtime/predict", "/v1/models", "/v1/models/x", "/healthz"]),
    query=st.binary(max_size=30) | st.sampled_from([b"session_id=s&horizon=3", b"session_id=%00", b"horizon=1e9"]),
)
def test_queries(client: Client, path: str, query: bytes) -> None:
    client.bench.gateway._quotas._uses.clear()
    client.check(path, b"", [(b"host", b"test")], method="GET", query=query)


def test_a_share_of_the_inputs_to_each_route_was_served(client: Client) -> None:
    """Of what the tests above have sent, those to the routes that generate."""
    sent = {path: client.asked[path] for path in (CHAT, COMPLETIONS, RESPONSES, MESSAGES) if client.asked[path]}
    shares = {path: client.served[path] / asked for path, asked in sent.items()}
    assert all(share >= LEAST_SERVED for share in shares.values()), shares
