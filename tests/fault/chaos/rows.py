"""The rows of the matrix: one fault each, under load, and what it cost."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from runtime_actor.checkpoint import read_checkpoint
from runtime_actor.errors import CheckpointError
from tests.fault import faults
from tests.fault.chaos.load import CUT, OK, UNANSWERED, VARIED, WRONG, Load
from tests.fault.chaos.server import ChaosServer, counted
from tests.fault.chaos.service import service

RECOVERY_LIMIT_S = 480.0
"""A busy machine takes minutes to load a model for a replica that was killed."""

WARM_ANSWERS = 16
RATE_ANSWERS = 48
"""Before a replica is killed, and after it is replaced: enough to compare rates."""

Fault = Callable[[ChaosServer], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Row:
    """`hold_s`: how long the fault lasts; 0 for one that is over at once. `replaces`: a replica is gone, so that all is
    there again when another one has taken its place. `costs`: kinds of failures that this fault can't but cost. `check`
    looks at the state afterwards and says in a word what is to be known of it; it raises AssertionError for what must
    not be."""

    name: str
    fault: Fault
    hold_s: float = 0.0
    replaces: bool = False
    costs: frozenset[str] = frozenset()
    check: Callable[[dict[str, Any]], str] = lambda state: ""
    engines: tuple[str, ...] = ("vllm", "simulated")


@dataclass(frozen=True, slots=True)
class Result:
    """Counts of requests; `failed` in words, `unexpected` those of them that the row doesn't allow. `longest_gap_s`:
    without any answer, from the fault on. `whole_s`: from the fault's end until actor and all replicas are there again.
    `lost`: answered requests that nobody counted."""

    row: str
    requests: int
    failed: int
    unexpected: int
    retried: int
    wrong: int
    varied: int
    unanswered: int
    longest_gap_s: float
    whole_s: float | None
    lost: int
    notes: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_row(row: Row, server: ChaosServer, load: Load, hold_scale: float = 1.0) -> Result:
    """Raises RuntimeError when the server isn't whole to begin with, AssertionError by `row.check`."""
    if server.wait_until(server.is_whole, RECOVERY_LIMIT_S) is None:
        raise RuntimeError(f"{row.name}: the server is not whole to begin with")
    before = _state(server)
    load.start()
    notes = ""
    warm = RATE_ANSWERS if row.replaces else WARM_ANSWERS
    try:
        server.wait_until(lambda: load.answered >= warm, RECOVERY_LIMIT_S)
        began_s = time.monotonic()
        with row.fault(server):
            if row.hold_s:
                time.sleep(row.hold_s * hold_scale)
                notes = _while_it_lasts(server)
        old = {replica["replica"] for replica in before["replicas"]} if row.replaces else set()
        whole_s = server.wait_until(lambda: server.is_whole(other_than=old), RECOVERY_LIMIT_S)
        served = load.answered
        server.wait_until(lambda: load.answered >= served + warm, RECOVERY_LIMIT_S)
    finally:
        load.stop()
    after = _state(server)
    said = row.check(after)
    if row.replaces:
        remaining = 1.0 - 1.0 / len(old)
        said = service(load.outcomes, began_s, began_s + (whole_s or RECOVERY_LIMIT_S), remaining).told()
    return _result(row, load, before, after, began_s, whole_s, ", ".join(filter(None, (notes, said))))


def _result(
    row: Row,
    load: Load,
    before: dict[str, Any],
    after: dict[str, Any],
    began_s: float,
    whole_s: float | None,
    notes: str,
) -> Result:
    kinds = load.kinds()
    passed = kinds[OK] + kinds[VARIED]
    failures = {kind: n for kind, n in kinds.items() if kind not in (OK, VARIED, WRONG, UNANSWERED)}
    ends = sorted(outcome.ended_s for outcome in load.outcomes if outcome.kind in (OK, VARIED))
    times = [began_s, *(end for end in ends if end >= began_s)]
    told = ", ".join(f"{n} {kind}" for kind, n in sorted(failures.items()))
    return Result(
        row=row.name,
        requests=sum(kinds.values()),
        failed=sum(failures.values()),
        unexpected=sum(n for kind, n in failures.items() if kind not in row.costs),
        retried=max(0, after["gateway"]["retries"] - before["gateway"]["retries"]),
        wrong=kinds[WRONG],
        varied=kinds[VARIED],
        unanswered=kinds[UNANSWERED],
        longest_gap_s=round(max((b - a for a, b in itertools.pairwise(times)), default=0.0), 1),
        whole_s=None if whole_s is None else round(whole_s, 1),
        lost=max(0, passed - (counted(after) - counted(before))),
        notes="; ".join(filter(None, (told, notes))),
    )


def _state(server: ChaosServer) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def have() -> bool:
        state = server.state()
        if state is not None:
            found.append(state)
        return state is not None

    if server.wait_until(have, RECOVERY_LIMIT_S) is None:
        raise RuntimeError("no state can be had")
    return found[-1]


def _while_it_lasts(server: ChaosServer) -> str:
    """What an operator could see of it."""
    state = server.state()
    if state is None:
        return "state 503 meanwhile"
    failed = state["checkpoint"]["error"]
    return f"state says meanwhile: {failed}" if failed else ""


# --- faults --------------------------------------------------------------------------------------------


def at_once(do: Callable[[int], None], find: Callable[[ChaosServer], int]) -> Fault:
    """Done to the process found, and not undone."""

    @contextlib.contextmanager
    def fault(server: ChaosServer) -> Iterator[None]:
        do(find(server))
        yield

    return fault


killing = partial(at_once, faults.kill)
hung_for_good = partial(at_once, faults.pause)
"""Nobody lets it go on; whoever misses it has to end it."""


@contextlib.contextmanager
def head_and_actor_killed(server: ChaosServer) -> Iterator[None]:
    """The actor can't be started again before the head is."""
    faults.kill(server.head)
    faults.kill(server.actor)
    yield


def damaging(damage: Callable[[Any], None]) -> Fault:
    """The newest checkpoint is damaged while the actor can't write another, then the actor is killed."""

    @contextlib.contextmanager
    def fault(server: ChaosServer) -> Iterator[None]:
        actor = server.actor
        with faults.paused(actor):
            (path,) = server.checkpoints.glob("*.checkpoint")
            damage(path)
            try:
                read_checkpoint(path)
            except CheckpointError:
                pass
            else:
                raise RuntimeError("the damage does not show")
            faults.kill(actor)
        yield

    return fault


def between(disturb: Callable[..., AbstractContextManager[list[int]]], **how: bool) -> Fault:
    """Between the actor and all gateways and replicas."""

    @contextlib.contextmanager
    def fault(server: ChaosServer) -> Iterator[None]:
        others = [*server.gateways, *server.replicas]
        with disturb(server.actor, others, **how) as met:
            yield
            if not met[0]:
                raise RuntimeError("no connection was met")

    return fault


@contextlib.contextmanager
def nothing(server: ChaosServer) -> Iterator[None]:
    yield


def used_the_previous(state: dict[str, Any]) -> str:
    assert state["checkpoint"]["loaded"] == "previous", state["checkpoint"]
    assert state["checkpoint"]["refused"], "the damage must be told"
    return "the checkpoint before it was used"


def saves_again(state: dict[str, Any]) -> str:
    assert state["checkpoint"]["error"] is None and state["checkpoint"]["failed"] > 0, state["checkpoint"]
    return f"{state['checkpoint']['failed']} saves failed, the next succeeded"


def loaded_the_newest(state: dict[str, Any]) -> str:
    assert state["checkpoint"]["loaded"] == "checkpoint", state["checkpoint"]
    return ""


BEGUN = frozenset({CUT})
"""A stream whose replica dies after its first token."""

CONNECTIONS = frozenset({"ConnectError", "ReadError", "RemoteProtocolError"})
"""Those of the process that had them, and attempts at it until it is there again."""

ROWS = (
    Row("calm", nothing, 10.0),
    Row("actor killed", killing(lambda server: server.actor), check=loaded_the_newest),
    Row("actor hung (SIGSTOP) 15 s", lambda server: faults.paused(server.actor), 15.0),
    Row("actor slow (+2 s a call) 20 s", lambda server: faults.slowed(server.actor), 20.0),
    Row("checkpoint truncated, actor killed", damaging(faults.truncate), check=used_the_previous),
    Row("checkpoint corrupt, actor killed", damaging(faults.corrupt), check=used_the_previous),
    Row("disk full 10 s", lambda server: faults.disk_full(server.actor), 10.0, check=saves_again),
    Row("exchange cut 60 s", between(faults.cut), 60.0),
    Row("exchange's connections shut, 20 times a second, 20 s", between(faults.meddling), 20.0),
    Row("Serve controller killed", killing(lambda server: server.pids("ServeController")[0])),
    Row("Ray head (GCS) killed", killing(lambda server: server.head)),
    Row("Ray head and actor killed", head_and_actor_killed, check=loaded_the_newest),
    Row("gateway (ingress) killed", killing(lambda server: server.serving_gateway)),
    Row("replica killed", killing(lambda server: server.replicas[0]), replaces=True, costs=BEGUN),
    Row(
        "EngineCore killed",
        killing(lambda server: server.pids("EngineCore")[0]),
        replaces=True,
        costs=BEGUN,
        engines=("vllm",),
    ),
    Row("replica hung (SIGSTOP) 30 s", lambda server: faults.paused(server.replicas[0]), 30.0),
    Row(
        "EngineCore hung (SIGSTOP)",
        hung_for_good(lambda server: server.pids("EngineCore")[0]),
        replaces=True,
        costs=BEGUN,
        engines=("vllm",),
    ),
    Row("HTTP proxy killed", killing(lambda server: server.pids("ProxyActor")[0]), costs=CONNECTIONS),
    Row("exchange garbled 10 s", between(faults.meddling, garble=True), 10.0),
)
