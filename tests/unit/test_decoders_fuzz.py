"""Files and bytes that were cut, flipped or made by other code: refused with the error that says so, or right."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime_actor import checkpoint
from runtime_actor.errors import CheckpointError, MessageError
from runtime_actor.runtime import AgentRuntime
from runtime_actor.settings import RuntimeSettings
from runtime_actor.tables import ReachTables
from tests.unit.runtime_kit import Kit


def learned() -> Kit:
    kit = Kit()
    kit.teach("abc", sessions=3)
    return kit


KIT = learned()
CONTENT = checkpoint.encode(KIT.runtime.dump())
DUMP = json.loads(CONTENT.split(b"\n", 1)[1])
(TABLES,) = KIT.exchange().tables.values()

MANY = settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Cut, flipped in one to four bits, with a piece taken out, doubled or replaced."""
    kind = draw(st.sampled_from(["cut", "flip", "hole", "double", "noise"]))
    at = draw(st.integers(0, len(content) - 1))
    if kind == "cut":
        return content[:at]
    if kind == "flip":
        changed = bytearray(content)
        for place in draw(st.lists(st.integers(0, 8 * len(content) - 1), min_size=1, max_size=4, unique=True)):
            changed[place // 8] ^= 1 << (place % 8)
        return bytes(changed)
    end = min(len(content), at + draw(st.integers(1, 64)))
    middle = {"hole": b"", "double": 2 * content[at:end], "noise": draw(st.binary(max_size=64))}[kind]
    return content[:at] + middle + content[end:]


@MANY
@given(damaged(CONTENT))
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    if content == CONTENT:
        assert checkpoint.read_checkpoint(path) == json.loads(CONTENT.split(b"\n", 1)[1])
        return
    with contextlib.suppress(CheckpointError):
        # White space in the header and the like may be read; the state is the same then, by its checksum.
        assert checkpoint.read_checkpoint(path) == DUMP


@MANY
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "magic": st.sampled_from(["agent-runtime-checkpoint", "other", 5]),
            "version": st.one_of(st.integers(-3, 9), st.none(), st.text(max_size=3), st.booleans()),
            "length": st.integers(-1, 100),
            "sha256": st.text(max_size=5),
        },
    )
)
def test_only_its_own_version_is_read(tmp_path: Path, changes: dict[str, Any]) -> None:
    head, _, body = CONTENT.partition(b"\n")
    header = {**json.loads(head), **changes}
    path = tmp_path / "file"
    path.write_bytes(json.dumps(header).encode() + b"\n" + body)
    if header == json.loads(head):
        assert checkpoint.read_checkpoint(path) == json.loads(body)
        return
    with pytest.raises(CheckpointError) as caught:
        checkpoint.read_checkpoint(path)
    if header["magic"] == checkpoint.MAGIC and header["version"] != checkpoint.FORMAT_VERSION:
        assert repr(header["version"]) in str(caught.value)


@MANY
@given(damaged(TABLES))
def test_damaged_tables_are_refused_or_well_formed(content: bytes) -> None:
    """They have no checksum: they never leave the cluster's own processes."""
    try:
        tables = ReachTables.from_bytes(content)
    except MessageError:
        return
    n = len(tables.agents)
    assert tables.first.shape == (n + 1, n) and np.isfinite(tables.first).all()
    assert tables.context_values.shape == (len(tables.contexts), n)
    assert len(content) <= 2 * len(TABLES) + 128


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([]) | st.just({})


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    found = [prefix] if prefix else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += paths(inner, (*prefix, key))
    return found


PLACES = paths(DUMP)


@settings(deadline=None, max_examples=600)
@given(st.lists(st.tuples(st.sampled_from(PLACES), LEAVES | st.just("remove")), min_size=1, max_size=3))
def test_a_state_with_anything_anywhere_is_refused_or_restored_whole(changes: list[tuple[Any, Any]]) -> None:
    state = json.loads(json.dumps(DUMP))
    for path, value in changes:
        with contextlib.suppress(KeyError, IndexError, TypeError):
            place = state
            for key in path[:-1]:
                place = place[key]
            if value == "remove":
                del place[path[-1]]
            else:
                place[path[-1]] = value
    with contextlib.suppress(CheckpointError):
        restored = AgentRuntime.restore(state, RuntimeSettings(), 0, KIT.clock, 2)
        restored.check_invariants()
        restored.state()
        checkpoint.encode(restored.dump())
