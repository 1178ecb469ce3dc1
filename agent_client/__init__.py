"""What an agent's own program may use of the runtime. Needs httpx; the MCP proxy needs mcp as well."""
