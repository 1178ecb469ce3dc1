"""Whatever comes over the wire is taken or refused with MessageError, never anything else."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_actor.errors import CheckpointError, MessageError
from runtime_actor.messages import (
    ExchangeReply,
    ExchangeRequest,
    OwnerTag,
    PrefetchAction,
    ReplicaReport,
    RequestAccepted,
    event_from_wire,
)
from runtime_actor.runtime import AgentRuntime
from runtime_actor.settings import RuntimeSettings
from serve_app.routing_state import cluster_view
from tests.unit.runtime_kit import Kit

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


def mutated(wire: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """`wire` with some fields replaced by anything and some left out."""
    changes = st.dictionaries(st.sampled_from(sorted(wire)), ANYTHING, max_size=3)
    missing = st.sets(st.sampled_from(sorted(wire)), max_size=1)
    return st.builds(lambda c, m: {k: v for k, v in {**wire, **c}.items() if k not in m}, changes, missing)


KIT = Kit()
EVENTS = [
    KIT.arrived("s1", "a"),
    KIT.finished("s1", "a"),
    KIT.ended("s1"),
    KIT.anchor("a"),
    KIT.prefetch_finished("x", "useful"),
]
EVENT = st.one_of([mutated(event) for event in EVENTS] + [ANYTHING])
REPORT = mutated(
    KIT.report(resident={"t": {"a": 1}}, anchors={"t": {"a": ["d", 3]}}, sessions=[["t", "s", "", "a", 1.0]])
)


REPLY = ExchangeReply(1, 1, {"t": b"x"}, [], [["t", "s"]], 1.0, cluster={"replicas": {}, "anchors": {}}).to_wire()
ACTION = PrefetchAction("p", "t", "a", "s", "d", 1.0, 1.0, b"", None, None).to_wire()
REQUEST = ExchangeRequest("r1", "replica", 1, 1, [], None).to_wire()
WIRES = [*EVENTS, KIT.report(), REPLY, ACTION, REQUEST, RequestAccepted("r1", 10, 0).to_wire()]
PLACE = {"resident": {}, "running": 1, "waiting": 0, "block_size": 32, "total_blocks": 9, "age_s": 0.0, "silent_s": 0.0}


@settings(deadline=None, max_examples=1500)
@given(st.one_of([mutated(wire) for wire in WIRES] + [ANYTHING]))
def test_decoders_refuse_with_a_message_error(wire: Any) -> None:
    for decode in (
        event_from_wire,
        ExchangeRequest.from_wire,
        ExchangeReply.from_wire,
        ReplicaReport.from_wire,
        PrefetchAction.from_wire,
        RequestAccepted.from_wire,
        OwnerTag.decode,
    ):
        with contextlib.suppress(MessageError):
            decode(wire)


@settings(deadline=None, max_examples=300)
@given(st.builds(lambda r, a: {"replicas": {"r1": r}, "anchors": a}, mutated(PLACE), st.just({}) | ANYTHING) | ANYTHING)
def test_a_gateway_takes_a_view_whole_or_refuses_it(wire: Any) -> None:
    with contextlib.suppress(MessageError):
        found = cluster_view(wire, 0.0)
        assert isinstance(found.anchors, dict)
        assert all(isinstance(place.resident, dict) for place in found.replicas.values())


@settings(deadline=None, max_examples=400)
@given(events=st.lists(EVENT, max_size=6), report=st.none() | REPORT, epoch=st.integers(), version=st.integers())
def test_the_runtime_survives_any_exchange(events: list[Any], report: Any, epoch: int, version: int) -> None:
    kit = Kit()
    kit.runtime.handle([kit.arrived("s1", "a")])
    wire = {**ExchangeRequest("r1", "replica", epoch, version, events, report).to_wire()}
    with contextlib.suppress(MessageError):
        kit.runtime.exchange(ExchangeRequest.from_wire(wire))
    kit.runtime.state()
    kit.runtime.check_invariants()
    replayed = kit.runtime.shared.learned.replayed()
    assert replayed is not None and replayed.dump() == kit.runtime.shared.learned.dump()


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_a_damaged_dump_is_refused_or_restored_whole(data: st.DataObject) -> None:
    kit = Kit()
    kit.teach("ab", sessions=2)
    dump = kit.runtime.dump()
    part = data.draw(st.sampled_from(["top", "learned", "workload", "model"]))
    if part == "top":
        dump = data.draw(mutated(dump))
    elif part == "learned":
        dump["learned"] = data.draw(mutated(dump["learned"]))
    elif part == "workload":
        dump["learned"]["workloads"] = [data.draw(mutated(dump["learned"]["workloads"][0]))]
    else:
        dump["learned"]["workloads"][0]["model"] = data.draw(mutated(dump["learned"]["workloads"][0]["model"]))
    with contextlib.suppress(CheckpointError):
        AgentRuntime.restore(dump, RuntimeSettings(), 0, kit.clock, 2).check_invariants()
