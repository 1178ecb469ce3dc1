"""What clients do to connections, by the byte, on a whole server with simulated engines: they fall silent, send in
pieces, send two at once, leave in every way, and leave by the dozen before a replica dies."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest
import yaml

from tests.fault import faults
from tests.fault.raw_http import Line, RawAnswer, closed_within
from tests.gateway_kit import MODEL, body, ours, state, wait_for
from tests.server_kit import KEYS, Server, running_server, server_config

CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
BODY_TIMEOUT_S = 10.0
ENGINE = {"prefill_s_per_token": 0.0002, "decode_s_per_token": 0.02, "num_blocks": 800, "max_num_seqs": 2}
PLACES = 4
"""Requests that the engines of both replicas run at once."""
WORDS = "Answer each question with one short sentence. " * 30


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("connections")
    content = server_config(folder, "unused")
    arguments = content["applications"][0]["args"]
    arguments |= {"engine": "simulated", "simulated": ENGINE}
    arguments["gateway"] |= {"body_timeout_s": BODY_TIMEOUT_S}
    config = folder / "serve_config.yaml"
    config.write_text(yaml.safe_dump(content))
    with running_server(config) as started:
        yield started


@pytest.fixture
def line(served: Server) -> Iterator[Line]:
    with Line(served.url, KEYS["one"]) as opened:
        yield opened


@pytest.fixture
def operator(served: Server) -> Iterator[httpx.Client]:
    with served.client("ops") as opened:
        yield opened


def identity(answer: RawAnswer) -> tuple[str, str]:
    assert answer.status == 200, answer.body
    return answer.headers["x-agent-runtime-agent"], answer.headers["x-agent-runtime-session"]


def busy(operator: httpx.Client) -> tuple[int, int, int]:
    """(in flight in the gateway, running, waiting in the engines)."""
    found = state(operator)
    replicas = found["replicas"]
    return found["gateway"]["in_flight"], sum(r["running"] for r in replicas), sum(r["waiting"] for r in replicas)


def until_idle(operator: httpx.Client, limit_s: float = 90.0) -> None:
    wait_for(lambda: busy(operator) == (0, 0, 0), limit_s, "nothing in flight, nothing in the engines")


# --- bodies ---------------------------------------------------------------------------------------------


def test_a_body_in_pieces_is_the_same_request(line: Line) -> None:
    fields = body("in pieces", WORDS)
    whole = json.dumps(fields).encode()
    session = "x-session-id: pieces"
    line.send(line.request(CHAT, whole, session))
    plain = identity(line.answer())
    line.send(line.head(CHAT, "transfer-encoding: chunked", session))
    third = len(whole) // 3
    for piece in (whole[:third], whole[third : 2 * third], whole[2 * third :]):
        assert closed_within([line], 0.5) == [], "nothing is answered before the body is whole"
        line.send(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
    line.send(b"0\r\n\r\n")
    assert identity(line.answer()) == plain


def test_two_requests_in_one_write_are_answered_in_order(line: Line) -> None:
    first, second = body("one", WORDS), body("two, a longer one " * 20, WORDS)
    line.send(line.request(CHAT, first) + line.request(CHAT, second))
    counts = [line.answer().json()["usage"]["prompt_tokens"] for _ in range(2)]
    assert counts[0] < counts[1]


def test_a_client_that_asks_before_it_sends(line: Line) -> None:
    content = json.dumps(body("expected", WORDS)).encode()
    line.send(line.head(CHAT, f"content-length: {len(content)}", "expect: 100-continue"))
    assert line.answer().status == 100
    line.send(content)
    assert line.answer().status == 200


def test_a_body_that_never_ends_is_given_up_and_reaches_nothing(line: Line, operator: httpx.Client) -> None:
    before = state(operator)["agents"]
    content = json.dumps(body("short", "An agent that nobody has met.")).encode()
    line.send(line.head(CHAT, f"content-length: {len(content) + 10}") + content)
    answer = line.answer()
    assert answer.status == 408 and set(answer.json()["error"]) == {"message", "type", "param", "code"}
    until_idle(operator)
    assert [agent["agent"] for agent in state(operator)["agents"]] == [agent["agent"] for agent in before]


@pytest.mark.parametrize("coding", ["gzip", "zstd", "br"])
def test_a_compressed_body_is_refused_by_name_and_not_unpacked(served: Server, coding: str) -> None:
    """2 GB of spaces are 2 MB of gzip: whoever unpacks first has lost."""
    plain = json.dumps(body("packed")).encode()
    for content in (gzip.compress(plain), plain, gzip.compress(b" " * (1 << 24))):
        with Line(served.url, KEYS["one"]) as line:
            line.send(line.request(CHAT, content, f"content-encoding: {coding}"))
            answer = line.answer()
            assert answer.status == 415 and answer.json()["error"]["code"] == "unsupported_encoding"


# --- idle connections -----------------------------------------------------------------------------------


@pytest.mark.long
def test_a_connection_may_be_idle_for_as_long_as_a_tool_takes(served: Server) -> None:
    """Clients keep theirs for 60 s and write into them again: they must still be open, or be seen to be closed."""
    first = {"plain": body("a", WORDS), "stream": body("a", WORDS, stream=True), "refused": body("a", temperature=-1)}
    lines = {name: Line(served.url, KEYS["one"]) for name in first}
    try:
        for name, line in lines.items():
            line.send(line.request(CHAT, first[name]))
            assert line.answer().status == (400 if name == "refused" else 200)
        for idle_s in (8.0, 65.0):
            assert closed_within(list(lines.values()), idle_s) == []
            for line in lines.values():
                line.send(line.request(CHAT, body("b", WORDS)))
                assert line.answer().status == 200
    finally:
        for line in lines.values():
            line.socket.close()


# --- a long wait ----------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(("route", "ending"), [(CHAT, b"data: [DONE]"), (MESSAGES, b"event: message_stop")])
def test_a_stream_may_wait_for_its_place(served: Server, operator: httpx.Client, route: str, ending: bytes) -> None:
    """90 s in the engine's queue, without a byte: well below `gateway.request_timeout_s`, the only limit there is."""
    until_idle(operator)
    with contextlib.ExitStack() as opened:
        for number in range(PLACES):
            line = opened.enter_context(Line(served.url, KEYS["team"]))
            fields = long_one(f"holds {number} {route}", stream=True, system=None)
            line.send(line.request(CHAT, fields | {"max_tokens": 5000}))
            line.read_until(b"data: ", 1)
        wait_for(lambda: busy(operator)[1] == PLACES, 30, "every place is taken")
        line = opened.enter_context(Line(served.url, KEYS["one"]))
        fields = {"messages": [{"role": "user", "content": "in line"}], "max_tokens": 2}
        line.send(line.request(route, {"model": MODEL, "stream": True, **fields}))
        wait_for(lambda: busy(operator)[2] == 1, 30, "it waits")
        began_s = time.monotonic()
        answer = line.answer()
        waited_s = time.monotonic() - began_s
    assert answer.status == 200 and ending in answer.body
    assert waited_s > 60.0, "the machine is so fast that nothing waited"
    until_idle(operator)


# --- clients that leave ---------------------------------------------------------------------------------


def long_one(session: str, stream: bool, system: str | None = WORDS) -> dict[str, Any]:
    """A minute and more of decoding."""
    return body(f"go on, {session}", system, session_id=session, max_tokens=4000, ignore_eos=True, stream=stream)


def test_whoever_leaves_while_it_runs_frees_the_engine(served: Server, operator: httpx.Client) -> None:
    until_idle(operator)
    with Line(served.url, KEYS["one"]) as line:
        line.send(line.request(CHAT, long_one("plain", stream=False)))
        wait_for(lambda: busy(operator)[1] == 1, 30, "it runs")
    until_idle(operator)
    with Line(served.url, KEYS["one"]) as line:
        line.send(line.request(CHAT, long_one("stream", stream=True)))
        line.read_until(b"data: ", 3)
    until_idle(operator)


def test_whoever_leaves_right_behind_its_last_byte(served: Server, operator: httpx.Client) -> None:
    for _ in range(5):
        with Line(served.url, KEYS["one"]) as line:
            line.send(line.request(CHAT, long_one("at once", stream=False)))
    until_idle(operator)


def test_whoever_leaves_while_it_waits_in_the_engine(served: Server, operator: httpx.Client) -> None:
    until_idle(operator)
    lines = [Line(served.url, KEYS["team"]) for _ in range(PLACES)]
    try:
        for number, line in enumerate(lines):
            # Nothing that one replica has cached: they are spread by load alone.
            line.send(line.request(CHAT, long_one(f"holds {number}", stream=True, system=None)))
            line.read_until(b"data: ", 1)
        wait_for(lambda: busy(operator)[1] == PLACES, 30, "every place is taken")
        with Line(served.url, KEYS["one"]) as line:
            line.send(line.request(CHAT, long_one("waits", stream=False, system=None)))
            wait_for(lambda: busy(operator)[2] == 1, 30, "one waits")
        wait_for(lambda: busy(operator) == (PLACES, PLACES, 0), 15, "it waits no more, and the others go on")
    finally:
        for line in lines:
            line.socket.close()
    until_idle(operator)


def test_its_session_goes_on_and_finds_what_was_computed(served: Server, operator: httpx.Client) -> None:
    with Line(served.url, KEYS["one"]) as line:
        line.send(line.request(CHAT, long_one("returns", stream=True)))
        line.read_until(b"data: ", 3)
    until_idle(operator)
    with served.client() as client:
        again = client.post(CHAT, json=body("go on, returns", WORDS, session_id="returns"))
        other = client.post(CHAT, json=body("go on, returns", WORDS, session_id="another"))
    assert again.status_code == 200 and int(ours(again, "cached-tokens")) > 0
    assert ours(again, "session") != ours(other, "session")


# --- many that leave, then a replica dies ----------------------------------------------------------------


def bodies(number: int, **fields: Any) -> tuple[str, dict[str, Any]]:
    """A route by turns, each with a prompt of its own."""
    text = f"number {number}: " + f"word{number} " * 200
    route = (CHAT, COMPLETIONS, MESSAGES)[number % 3]
    if route == COMPLETIONS:
        return route, {"model": MODEL, "prompt": text, "max_tokens": 2, **fields}
    return route, {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 2, **fields}


def leave_by_the_dozen(served: Server) -> None:
    for number in range(60):
        with Line(served.url, KEYS["one"]) as line:
            line.send(line.request(*bodies(1000 + number, max_tokens=2000)))
            closed_within([line], 0.05)


def served_by(served: Server, numbers: Iterator[int]) -> Counter[str]:
    """Replica -> of 24 requests, four at a time."""

    def ask(number: int) -> str:
        with served.client() as client:
            route, fields = bodies(number)
            answer = client.post(route, json=fields)
            assert answer.status_code == 200, answer.text
            return ours(answer, "replica")

    with ThreadPoolExecutor(4) as pool:
        return Counter(pool.map(ask, itertools.islice(numbers, 24)))


def replica_pids(served: Server) -> list[int]:
    found = []
    for process in psutil.Process(served.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            title = " ".join(process.cmdline())
            if "ServeReplica" in title and "Gateway" not in title:
                found.append(process.pid)
    return found


def kill_a_replica(served: Server, operator: httpx.Client) -> None:
    before = {replica["replica"] for replica in state(operator)["replicas"]}
    assert len(before) == 2
    faults.kill(replica_pids(served)[0])

    def is_whole() -> bool:
        names = {replica["replica"] for replica in state(operator)["replicas"] if replica["age_s"] < 5.0}
        return len(names) == 2 and names != before

    wait_for(is_whole, 400, "another replica in the dead one's place")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_no_count_is_left_behind_that_a_new_replica_would_draw_everything_by(
    served: Server, operator: httpx.Client
) -> None:
    numbers = itertools.count(3000)
    leave_by_the_dozen(served)
    until_idle(operator)
    kill_a_replica(served, operator)
    shares = served_by(served, numbers)
    assert len(shares) == 2 and min(shares.values()) >= 6, shares
    leave_by_the_dozen(served)
    until_idle(operator)
    shares = served_by(served, numbers)
    assert len(shares) == 2 and min(shares.values()) >= 6, shares


# --- a request that is large -----------------------------------------------------------------------------


def test_a_huge_request_holds_up_nobody(served: Server, operator: httpx.Client) -> None:
    """Twenty thousand tools, and two megabytes to be tokenized, while others ask and Serve checks health."""
    before = {replica["replica"] for replica in state(operator)["replicas"]}
    tool = {"type": "function", "function": {"name": "t", "parameters": {"type": "object"}}}
    tools = [{**tool, "function": {**tool["function"], "name": f"tool_{n}"}} for n in range(20_000)]
    huge = [(CHAT, body("use them", tools=tools)), ("/tokenize", {"model": MODEL, "prompt": "word " * 400_000})]
    ends: list[int] = []

    def ask(path: str, fields: dict[str, Any]) -> None:
        with served.client() as client:
            ends.append(client.post(path, json=fields).status_code)

    threads = [threading.Thread(target=ask, args=one) for one in huge]
    for thread in threads:
        thread.start()
    with served.client("two") as client:
        while any(thread.is_alive() for thread in threads):
            health = client.get("/-/healthz", timeout=20.0)
            assert health.status_code == 200
            assert client.post(CHAT, json=body("hi"), timeout=60.0).status_code == 200
    for thread in threads:
        thread.join()
    assert set(ends) <= {200, 400, 413}, ends
    assert {replica["replica"] for replica in state(operator)["replicas"]} == before
