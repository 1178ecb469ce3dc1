"""An MCP server in front of another one: its tools, with results shared through the runtime.

    python -m agent_client.mcp_proxy --runtime http://127.0.0.1:8000 --url http://127.0.0.1:9000/mcp
    python -m agent_client.mcp_proxy --runtime http://127.0.0.1:8000 -- uvx some-mcp-server --its-option

It speaks MCP over standard input and output. A tool is looked up under its own name and the version that its
server gives of itself; one that calls itself destructive never is. One process is one session: calls that the
runtime expects next are run ahead where its configuration allows that, and where the server doesn't say that the
tool changes something. Only tools are passed on, neither prompts nor resources. The runtime's key comes from
AGENT_RUNTIME_API_KEY.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import secrets
from typing import Any

from mcp import Client, StdioServerParameters, stdio_server
from mcp.server.lowlevel import Server
from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, Tool

from agent_client.ahead import Offer
from agent_client.memo import Memo

MAX_PAGES = 1000


class MemoProxy:
    """The tools of `upstream`, which is connected, through `memo`."""

    def __init__(self, upstream: Client, memo: Memo) -> None:
        self._upstream = upstream
        self._memo = memo
        self._tools: dict[str, Tool] | None = None

    def server(self) -> Server[Any]:
        return Server("agent-runtime-memo", on_list_tools=self._list_tools, on_call_tool=self._call_tool)

    async def _list_tools(self, _: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        self._tools = None
        return await self._upstream.list_tools(cursor=params.cursor if params is not None else None)

    async def _call_tool(self, _: Any, params: CallToolRequestParams) -> CallToolResult:
        tool, arguments = params.name, params.arguments or {}

        async def run() -> dict[str, Any]:
            return await self._run(tool, params.arguments)

        told = arguments if await self._may_be_kept(tool) else None
        answer = await self._memo.acall(tool, told, run, self._version, keep=_is_right)
        return CallToolResult.model_validate(answer)

    async def _run(self, tool: str, arguments: dict[str, Any] | None) -> dict[str, Any]:
        result = await self._upstream.call_tool(tool, arguments)
        return result.model_dump(mode="json", by_alias=True, exclude_none=True)

    @property
    def _version(self) -> str | None:
        info = self._upstream.server_info
        return (info.version or None) if info is not None else None

    async def _may_be_kept(self, name: str) -> bool:
        if self._tools is None:
            self._tools = await self._listed()
            self._memo.async_ahead.offers = {
                name: Offer(self._version, functools.partial(self._run, name), _is_right)
                for name, tool in self._tools.items()
                if _changes_nothing(tool)
            }
        tool = self._tools.get(name)
        return tool is not None and not (tool.annotations is not None and tool.annotations.destructive_hint)

    async def _listed(self) -> dict[str, Tool]:
        tools: dict[str, Tool] = {}
        cursor = None
        for _ in range(MAX_PAGES):
            page = await self._upstream.list_tools(cursor=cursor)
            tools |= {tool.name: tool for tool in page.tools}
            cursor = page.next_cursor
            if cursor is None:
                break
        return tools


def _is_right(result: dict[str, Any]) -> bool:
    return not result.get("isError")


def _changes_nothing(tool: Tool) -> bool:
    """As far as its server says: one that says nothing is up to the runtime's configuration."""
    hints = tool.annotations
    return hints is None or not (hints.destructive_hint or hints.read_only_hint is False)


async def serve(runtime: str, api_key: str | None, upstream: str | StdioServerParameters) -> None:
    session = f"mcp-{secrets.token_hex(16)}"
    async with Memo(runtime, api_key, session=session) as memo, Client(upstream) as client:
        server = MemoProxy(client, memo).server()
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m agent_client.mcp_proxy", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--runtime", required=True, help="base URL of the runtime's gateway")
    parser.add_argument("--url", help="the MCP server, if it is reached over HTTP")
    parser.add_argument("command", nargs="*", help="after --: the command that starts the MCP server")
    given = parser.parse_args(arguments)
    if (given.url is None) == (not given.command):
        parser.error("either --url or a command after --")
    upstream = given.url or StdioServerParameters(command=given.command[0], args=given.command[1:])
    asyncio.run(serve(given.runtime, os.environ.get("AGENT_RUNTIME_API_KEY"), upstream))


if __name__ == "__main__":
    main()
