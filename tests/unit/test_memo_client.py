"""The helper against a gateway: decorators, concurrency across processes, errors, an absent runtime, MCP."""

from __future__ import annotations

import asyncio
import collections
import enum
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client
from mcp.server.lowlevel import Server
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool, ToolAnnotations

from agent_client.mcp_proxy import MemoProxy
from agent_client.memo import Memo
from tests.unit.gateway_bench import Bench, listening

PROCESSES = 4
CALLERS = 64
TOOLS = [
    {"tool": "search", "version": "1", "ignored": ["trace"], "invalidated_by": ["write"]},
    {"tool": "add", "ttl_s": 60.0},
    {"tool": "drop", "ttl_s": 60.0},
]
POLICIES = [{"name": "memo", "options": {"tools": TOOLS}}]


@pytest.fixture
def served() -> Iterator[str]:
    with listening(Bench(policies=POLICIES, max_in_flight=256)) as url:
        yield url


def test_64_concurrent_callers_in_4_processes_run_it_once(served: str, tmp_path: Path) -> None:
    log = tmp_path / "runs"
    program = str(Path(__file__).with_name("memo_caller.py"))
    root = str(Path(__file__).parents[2])
    command = [sys.executable, program, served, str(CALLERS // PROCESSES), str(log)]
    running = [
        subprocess.Popen(command, cwd=root, env={"PYTHONPATH": root}, stdout=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0] * PROCESSES
    assert len({output.split()[0] for output in outputs}) == PROCESSES
    assert log.read_text() == "ran\n"


def test_the_same_call_however_it_is_written(served: str) -> None:
    memo = Memo(served, "k1")
    runs: list[Any] = []

    @memo.tool(version="1")
    def search(query: str, limit: int = 5, trace: str = "") -> list[Any]:
        runs.append(query)
        return [query, limit]

    assert search("a") == search(query="a", limit=5, trace="other") == search("a", 5) == ["a", 5]
    assert runs == ["a"]
    assert search("a", 6) == ["a", 6] and search("b") == ["b", 5]
    assert runs == ["a", "a", "b"]
    assert memo.invalidate("search") == 3
    assert search("a") == ["a", 5] and len(runs) == 4
    memo.close()


def test_errors_and_what_is_no_json_are_not_kept(served: str) -> None:
    memo = Memo(served, "k1")
    runs: list[Any] = []

    @memo.tool("search", version="1")
    def broken(query: str) -> None:
        runs.append(query)
        raise LookupError(query)

    @memo.tool("add")
    def add(a: Any) -> Any:
        runs.append(a)
        return (a, a)

    for _ in range(2):
        with pytest.raises(LookupError):
            broken("x")
        assert add(1) == (1, 1)
        assert add(object) == (object, object)
    assert len(runs) == 6
    memo.close()


class Colour(enum.StrEnum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


Pair = collections.namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    "result",
    [Colour.RED, Number.ONE, Pair(1, 2), collections.OrderedDict(a=1), [Colour.RED], {"a": Number.ONE}, {1: "a"}, (1,)],
    ids=repr,
)
def test_a_later_caller_gets_what_the_first_one_got_or_runs_it(served: str, result: Any) -> None:
    memo = Memo(served, "k1")
    for _ in range(2):
        answer = memo.call("add", {"a": repr(result)}, lambda: result)
        assert type(answer) is type(result) and answer == result
    memo.close()


def test_keys_that_json_writes_alike_are_two_calls(served: str) -> None:
    memo = Memo(served, "k1")

    @memo.tool("add")
    def add(of: dict[Any, Any]) -> str:
        return ",".join(type(key).__name__ for key in of)

    assert [add({1: "x"}), add({"1": "x"}), add({1: "x"})] == ["int", "str", "int"]
    memo.close()


def nested_result(depth: int) -> Any:
    made: Any = 1
    for _ in range(depth):
        made = [made]
    return made


@pytest.mark.parametrize(
    "result", ["x" * (9 << 20), nested_result(100), [2**70], "\ud800"], ids=["big", "deep", "number", "half"]
)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_result_that_the_runtime_does_not_take_holds_up_nobody(served: str, result: Any, is_async: bool) -> None:
    """Its lease is a minute; who comes next runs the tool at once."""

    async def twice() -> None:
        async with Memo(served, "k1") as memo:

            async def run() -> Any:
                return result

            for _ in range(2):
                assert await memo.acall("add", {"a": 1}, run) == result

    began_s = time.monotonic()
    if is_async:
        asyncio.run(twice())
    else:
        memo = Memo(served, "k1")
        assert [memo.call("add", {"a": 1}, lambda: result) for _ in range(2)] == [result, result]
        memo.close()
    assert time.monotonic() - began_s < 30.0


def test_a_closed_memo_just_runs_tools(served: str) -> None:
    memo = Memo(served, "k1")
    memo.close()
    assert memo.call("add", {}, lambda: 7) == 7

    async def main() -> int:
        async with Memo(served, "k1") as closed:
            pass

        async def run() -> int:
            return 8

        return await closed.acall("add", {}, run)

    assert asyncio.run(main()) == 8


def test_tools_that_are_not_allowed_are_just_run(served: str) -> None:
    memo = Memo(served, "k1")
    runs: list[str] = []

    @memo.tool("search", version="2")
    def other_version() -> str:
        runs.append("version")
        return "x"

    @memo.tool("delete")
    def delete() -> str:
        runs.append("delete")
        return "x"

    assert [other_version(), other_version(), delete(), delete()] == ["x"] * 4
    assert runs == ["version", "version", "delete", "delete"]
    memo.close()


def test_without_a_runtime_every_tool_is_run() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("nobody there", request=request)

    for transport in (httpx.MockTransport(refuse), httpx.MockTransport(lambda _: httpx.Response(502, text="no"))):
        memo = Memo("http://127.0.0.1:1", transport=transport)
        runs = iter((7, 8))
        assert [memo.call("search", {}, runs.__next__) for _ in range(2)] == [7, 8]
        memo.close()


def test_async_callers_share_one_run() -> None:
    bench = Bench(policies=POLICIES, max_in_flight=256)
    runs: list[str] = []

    async def main() -> None:
        async with Memo("http://test", "k1", async_transport=httpx.ASGITransport(bench.asgi)) as memo:

            @memo.tool("search", version="1")
            async def search(query: str) -> str:
                runs.append(query)
                await asyncio.sleep(0.05)
                if len(runs) == 1:
                    raise LookupError("the first one fails")
                return query.upper()

            answers = await asyncio.gather(*(search("a") for _ in range(CALLERS)), return_exceptions=True)
            (failed,) = (answer for answer in answers if answer != "A")
            assert isinstance(failed, LookupError)

    asyncio.run(main())
    assert runs == ["a", "a"], "a failed run is not kept, and one other caller takes its place"


# --- MCP ----------------------------------------------------------------------------------------------------


class Upstream:
    """An MCP server with three tools that count what they run."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def server(self) -> Server[Any]:
        return Server("upstream", version="1", on_list_tools=self.list_tools, on_call_tool=self.call_tool)

    async def list_tools(self, *_: Any) -> ListToolsResult:
        schema = {"type": "object"}
        destructive = ToolAnnotations(destructive_hint=True)
        return ListToolsResult(
            tools=[
                Tool(name="search", input_schema=schema),
                Tool(name="add", input_schema=schema),
                Tool(name="drop", input_schema=schema, annotations=destructive),
            ]
        )

    async def call_tool(self, _: Any, params: Any) -> CallToolResult:
        self.runs.append(params.name)
        await asyncio.sleep(0.02)
        failed = bool((params.arguments or {}).get("fail"))
        text = TextContent(type="text", text=f"{params.name} {len(self.runs)}")
        return CallToolResult(content=[text], structured_content={"n": len(self.runs)}, is_error=failed)


def test_the_mcp_proxy() -> None:
    bench = Bench(policies=POLICIES, max_in_flight=256)
    upstream = Upstream()

    async def main() -> None:
        transport = httpx.ASGITransport(bench.asgi)
        async with (
            Memo("http://test", "k1", async_transport=transport) as memo,
            Client(upstream.server()) as behind,
            Client(MemoProxy(behind, memo).server()) as client,
        ):
            assert [tool.name for tool in (await client.list_tools()).tools] == ["search", "add", "drop"]
            calls = (client.call_tool("search", {"query": "a", "trace": n}) for n in range(16))
            answers = await asyncio.gather(*calls)
            assert upstream.runs == ["search"]
            assert {answer.content[0].text for answer in answers} == {"search 1"}
            assert all(answer.structured_content == {"n": 1} for answer in answers)
            for _ in range(2):
                assert (await client.call_tool("add", {"fail": True})).is_error
                assert not (await client.call_tool("drop", {})).is_error
            assert upstream.runs[1:] == ["add", "drop"] * 2, "errors and destructive tools are never kept"

    asyncio.run(main())
