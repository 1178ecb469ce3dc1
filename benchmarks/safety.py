"""How often a safety rule takes a recorded step for a strange one, and how often it sees that an agent is another.

    python -m benchmarks.safety [SOURCE] [--set NAME] [--seeds 1,2,3] [--min-seen 1,10,50] [--json]

The policy that serves learns the transitions of one half of a set's sessions (drawn by the seed). In the other half
each step after a session's first is judged twice: as recorded, which should pass, and with another agent of the set,
drawn by the seed, in the place of the recorded one, which should not. The recorded step is learnt then, as in service,
the other one isn't. What comes after an agent in some session of the set can't be told from what should: `strange`
swaps are those that no session of the set has. A step whose rule has seen too little isn't judged and passes.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Sequence
from itertools import count, pairwise
from typing import Any

from benchmarks.arguments import agents_of, given_sets, numbers, set_parser, show, shuffled
from benchmarks.trace_source import Recording
from runtime_actor.messages import RequestArrived, SessionEnded
from runtime_actor.policies.base import Refusal, RequestView
from runtime_actor.policies.safety import SafetyPolicy, audit_log
from runtime_actor.settings import PluggedSettings

TENANT = "t"


class Clock:
    now_s = 1000.0


class Watched:
    """Sessions of one set as the gateway tells them to the policy."""

    def __init__(self, **rule: Any) -> None:
        options = {"rules": [{"transitions": "refuse", **rule}]}
        self._policy = SafetyPolicy(PluggedSettings("safety", options=options), Clock())
        self._ids = count()

    def passes(self, session: str, agent: str) -> bool:
        view = RequestView(next(self._ids), TENANT, TENANT, session, agent, 0.0, 0, 0, 0, None, {})
        return not isinstance(self._policy.admit(view), Refusal)

    def arrived(self, session: str, agent: str) -> None:
        self._policy.observe(RequestArrived(str(next(self._ids)), 0.0, TENANT, TENANT, session, agent, agent, "r"))

    def ended(self, session: str) -> None:
        self._policy.observe(SessionEnded(str(next(self._ids)), 0.0, TENANT, TENANT, session))


def judge(recordings: Sequence[Recording], seed: int, **rule: Any) -> Counter[str]:
    """Of the steps after a session's first: `steps`, `alarms`, `seen` (swaps refused), `strange`, `strange_seen`."""
    order = shuffled(recordings, seed)
    rng, agents = random.Random(seed), agents_of(recordings)
    had = {(a.agent, b.agent) for recording in order for a, b in pairwise(recording.steps)}
    watched, counts = Watched(**rule), Counter[str]()
    for number, recording in enumerate(order):
        before = None
        for step in recording.steps:
            if before is not None and number >= len(order) // 2:
                other = rng.choice([agent for agent in agents if agent != step.agent])
                is_strange, is_seen = (before, other) not in had, not watched.passes(recording.session, other)
                counts["steps"] += 1
                counts["alarms"] += not watched.passes(recording.session, step.agent)
                counts["seen"] += is_seen
                counts["strange"] += is_strange
                counts["strange_seen"] += is_seen and is_strange
            watched.arrived(recording.session, step.agent)
            before = step.agent
        watched.ended(recording.session)
    return counts


def row(name: str, recordings: Sequence[Recording], seeds: Sequence[int], min_seen: int) -> dict[str, Any]:
    """Shares over all seeds; of no step they are 0."""
    counts: Counter[str] = sum((judge(recordings, seed, min_seen=min_seen) for seed in seeds), Counter())
    steps, strange = max(1, counts["steps"]), max(1, counts["strange"])
    return {
        "set": name,
        "agents": len(agents_of(recordings)),
        "min_seen": min_seen,
        "steps": counts["steps"],
        "false alarms": counts["alarms"] / steps,
        "swaps refused": counts["seen"] / steps,
        "swaps strange": counts["strange"] / steps,
        "strange refused": counts["strange_seen"] / strange,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = set_parser("safety", __doc__ or "")
    parser.add_argument("--min-seen", type=numbers, default=(1, 10, 50), metavar="N,N", help="50 is the default")
    given = parser.parse_args(arguments)
    audit_log.addHandler(logging.NullHandler())
    sets = given_sets(given, least_sessions=4)
    cases = ((name, found, seen) for name, found in sets.items() for seen in given.min_seen)
    show((row(name, found, given.seeds, seen) for name, found, seen in cases), given.json)


if __name__ == "__main__":
    main()
