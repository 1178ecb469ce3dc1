"""Policies side by side on real vLLM, through the whole stack: `python -m benchmarks.engine`."""
