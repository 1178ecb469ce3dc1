"""The routes that generate text: what each asks of the engine, and how its answers look."""
