"""The tier over a simulated engine behind a plain HTTP server, for scripts/fuzz and benchmarks/tenant_timing.py:
`python -m tests.fuzz_server PORT [PREFILL_S_PER_TOKEN]`.

No Ray runs; requests are answered until the process is ended. Its key is "key-ops", an operator's, so that no quota
stands in the way.
"""

from __future__ import annotations

import dataclasses
import sys

import uvicorn

from runtime_actor.settings import RuntimeSettings
from tests.simulated_bench import COST, SimulatedBench


def main(port: int, prefill_s_per_token: float = 0.0) -> None:
    cost = dataclasses.replace(COST, prefill_s_per_token=prefill_s_per_token)
    bench = SimulatedBench(runtime=RuntimeSettings(replica_timeout_s=3600.0), cost=cost)
    bench.report()
    uvicorn.run(bench.asgi, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main(int(sys.argv[1]), *map(float, sys.argv[2:3]))
