"""How much memory gateway and actor take once all they remember is at its bound: `python -m tests.fault.full_tables`.

The requests of the soak (`tests.fault.soak`), each a session of its own and every fifth a new agent's, go through the
gateway's identity and routing, or the actor's runtime, without HTTP and without an engine. Prints resident MiB.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import psutil

from serve_app.identity import IdentityResolver
from serve_app.routing_state import RoutingState
from tests.fault.soak import AGENTS, system_prompt
from tests.unit.runtime_kit import Kit

EXCHANGE_EVERY, DUMP_EVERY = 20, 1000
PROMPT_TOKENS = 300


def gateway() -> Callable[[int], None]:
    identities, routing = IdentityResolver(b"x" * 32), RoutingState()

    def request(number: int) -> None:
        messages = [
            {"role": "system", "content": system_prompt(_agent(number))},
            {"role": "user", "content": f"step {number} of {number % 64}"},
        ]
        resolved = identities.resolve("t", {}, {"messages": messages})
        identities.accept(resolved)
        identities.answered(resolved, "simulated " * 24)
        found = resolved.identity
        routing.record(found.workload, found.session, found.agent, "r1", PROMPT_TOKENS)

    return request


def actor() -> Callable[[int], None]:
    kit = Kit()

    def request(number: int) -> None:
        kit.clock.advance(0.1)
        session, agent = f"s{number}", f"a{_agent(number)}"
        kit.runtime.handle([kit.arrived(session, agent), kit.finished(session, agent)])
        if number % EXCHANGE_EVERY == 0:
            kit.exchange(report=kit.report())
        if number % DUMP_EVERY == 0:
            kit.runtime.dump()

    return request


def _agent(number: int) -> int:
    return AGENTS + number if number % 5 == 4 else number % AGENTS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.full_tables")
    parser.add_argument("part", choices=("gateway", "actor"))
    parser.add_argument("--requests", type=int, default=60_000)
    options = parser.parse_args()
    request = {"gateway": gateway, "actor": actor}[options.part]()
    process = psutil.Process()
    for number in range(options.requests + 1):
        request(number)
        if number % 5000 == 0:
            print(f"{number:6d} requests  {process.memory_info().rss / 2**20:6.1f} MiB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
