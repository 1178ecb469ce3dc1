"""Run as a program: an MCP server over standard input and output whose runs are written to a file. ARGS: file."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from mcp import stdio_server
from mcp.server.lowlevel import Server
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool, ToolAnnotations


class Shop:
    """Users with orders; `cancel` changes one, and says so."""

    def __init__(self, log: str) -> None:
        self._log = log

    def server(self) -> Server[Any]:
        return Server("shop", version="1", on_list_tools=self.list_tools, on_call_tool=self.call_tool)

    async def list_tools(self, *_: Any) -> ListToolsResult:
        schema = {"type": "object"}
        writes = ToolAnnotations(read_only_hint=False)
        reads = [Tool(name=name, input_schema=schema) for name in ("user", "order")]
        return ListToolsResult(tools=[*reads, Tool(name="cancel", input_schema=schema, annotations=writes)])

    async def call_tool(self, _: Any, params: Any) -> CallToolResult:
        told = params.arguments or {}
        with open(self._log, "a", encoding="utf-8") as file:
            file.write(f"{params.name} {json.dumps(told)}\n")
        if params.name == "user":
            found: Any = {"orders": [f"{told['user_id']}-{n}" for n in range(3)]}
        else:
            found = {"did": params.name, "order": told["order_id"]}
        failed = told.get("order_id", "").startswith("lost")
        return CallToolResult(content=[TextContent(type="text", text=json.dumps(found))], is_error=failed)


async def main(log: str) -> None:
    server = Shop(log).server()
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
