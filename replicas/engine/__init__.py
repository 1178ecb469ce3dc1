"""The engine as a replica sees it: one port, vLLM behind it."""
