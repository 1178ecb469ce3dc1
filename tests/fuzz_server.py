"""The tier over a simulated engine behind a plain HTTP server, for scripts/fuzz: `python -m tests.fuzz_server PORT`.

No Ray runs; requests are answered until the process is ended. Its key is "key-ops", an operator's, so that no quota
stands in the way.
"""

from __future__ import annotations

import sys

import uvicorn

from runtime_actor.settings import RuntimeSettings
from tests.simulated_bench import SimulatedBench


def main(port: int) -> None:
    bench = SimulatedBench(runtime=RuntimeSettings(replica_timeout_s=3600.0))
    bench.report()
    uvicorn.run(bench.asgi, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main(int(sys.argv[1]))
