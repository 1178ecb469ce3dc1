from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime_actor import checkpoint
from runtime_actor.checkpoint import CheckpointStore, encode, read_checkpoint
from runtime_actor.errors import CheckpointError
from runtime_actor.runtime import AgentRuntime
from runtime_actor.settings import RuntimeSettings
from tests.unit.runtime_kit import Kit


def opened(directory: Path) -> CheckpointStore:
    store = CheckpointStore(directory)
    assert store.open()
    return store


def identity(value: Any) -> Any:
    return value


def test_round_trip_and_previous(tmp_path: Path) -> None:
    store = opened(tmp_path / "deep" / "er")
    assert store.load(identity) is None
    assert store.save({"n": 1}) and store.save({"n": 2})
    store.close()
    store = opened(tmp_path / "deep" / "er")
    assert store.load(identity) == {"n": 2}
    assert store.path is not None
    assert read_checkpoint(store.path.with_suffix(".previous")) == {"n": 1}
    assert (store.path.stat().st_mode & 0o777) == 0o600
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-3],
        lambda content: content[: len(content) // 4],
        lambda content: b"",
        lambda content: content[:-1] + b"!",
        lambda content: content.replace(b'"version": 1', b'"version": 9'),
        lambda content: content.replace(b"agent-runtime", b"another-thing"),
        lambda content: b"[" * 100_000,
        lambda content: b"\xff\xfe\n{}",
    ],
)
def test_damage_falls_back_to_the_previous_then_to_nothing(
    tmp_path: Path, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    store.save({"n": 1})
    store.save({"n": 2})
    assert store.path is not None
    store.path.write_bytes(damage(store.path.read_bytes()))
    with pytest.raises(CheckpointError):
        read_checkpoint(store.path)
    with caplog.at_level(logging.WARNING):
        assert store.load(identity) == {"n": 1}
    assert len(caplog.records) == 1
    assert store.view()["loaded"] == "previous" and len(store.refused) == 1
    assert store.path.with_suffix(".checkpoint.refused").exists(), "kept to be looked at"
    previous = store.path.with_suffix(".previous")
    assert store.save({"n": 3}) and read_checkpoint(previous) == {"n": 1}, "the one that was used is kept as well"
    for path in (store.path, previous):
        path.write_bytes(damage(path.read_bytes()))
    assert store.load(identity) is None
    assert store.save({"n": 4}) and store.load(identity) == {"n": 4}


def test_another_version_is_refused_by_name_and_not_lost(tmp_path: Path) -> None:
    """As after a step back to older code."""
    store = opened(tmp_path)
    store.save({"n": 1})
    assert store.path is not None
    newer = store.path.read_bytes().replace(b'"version": 1', b'"version": 2')
    store.path.write_bytes(newer)
    assert store.load(identity) is None
    assert store.refused == ["checkpoint: format version 2 is not supported, only 1"]
    assert store.save({"n": 2}) and store.save({"n": 3})
    assert store.path.with_suffix(".checkpoint.refused").read_bytes() == newer


FULL = """
import resource, sys
from runtime_actor.checkpoint import CheckpointStore
store = CheckpointStore(sys.argv[1])
store.open()
assert store.save({"n": 1})
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
assert not store.save({"n": "x" * 100_000}) and not store.save({"n": "y" * 100_000})
assert store.failed == 2 and "File too large" in store.error, store.error
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""


def test_the_kernel_refuses_to_write_more(tmp_path: Path) -> None:
    """A limit of the process stands for a full disk: the write itself fails half way."""
    again = FULL + "assert store.save({'n': 3}) and store.error is None\n"
    for script, expected in ((FULL, {"n": 1}), (again, {"n": 3})):
        subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=60)
        store = opened(tmp_path)
        assert store.load(identity) == expected
        store.close()
        assert not list(tmp_path.glob("*.tmp"))


def test_a_state_that_cannot_be_restored_falls_back_too(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.save({"n": 1})
    store.save({"n": 2})

    def restore(state: dict[str, int]) -> int:
        if state["n"] == 2:
            raise CheckpointError("of another kind")
        return state["n"]

    assert store.load(restore) == 1


def test_a_crash_between_the_two_renames_keeps_the_old_state(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.save({"n": 1})
    assert store.path is not None
    os.replace(store.path, store.path.with_suffix(".previous"))
    assert store.load(identity) == {"n": 1}


@pytest.mark.parametrize("function", ["write", "fsync", "replace"])
def test_a_full_disk_is_said_once_and_serving_goes_on(
    tmp_path: Path, function: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    store.save({"n": 1})

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        if function == "write":
            patch.setattr(checkpoint, "_write_file", full)
        else:
            patch.setattr(checkpoint.os, function, full)
        assert [store.save({"n": 2}) for _ in range(3)] == [False] * 3
    assert store.failed == 3 and len(caplog.records) == 1
    assert "No space left" in caplog.text
    assert not list(tmp_path.glob("*.tmp"))
    assert store.load(identity) == {"n": 1}
    assert store.save({"n": 3}) and store.load(identity) == {"n": 3}


def test_what_is_not_json_is_refused_without_harm(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.save({"n": 1})
    assert not store.save({"n": float("nan")})
    assert not store.save({"n": b"bytes"})
    assert store.load(identity) == {"n": 1}
    with pytest.raises(ValueError):
        encode({"n": float("inf")})


def test_a_directory_that_cannot_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    store = CheckpointStore(tmp_path / "file" / "below")
    with caplog.at_level(logging.WARNING):
        assert not store.open()
        assert not store.save({"n": 1}) and not store.save({"n": 1})
    assert store.load(identity) is None
    assert store.failed == 2 and len(caplog.records) == 1


def test_two_processes_with_one_directory_do_not_share_a_file(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.save({"n": 1})
    script = (
        "import sys; from runtime_actor.checkpoint import CheckpointStore\n"
        "s = CheckpointStore(sys.argv[1]); s.open(); s.save({'n': 99}); print(s.path)"
    )
    other = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert Path(other.stdout.strip()).name == "runtime-1.checkpoint"
    assert store.save({"n": 2}) and store.load(identity) == {"n": 2}


def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    leftover = tmp_path / "runtime-0.123-abc.tmp"
    leftover.write_bytes(b"half")
    other = tmp_path / "runtime-1.123-abc.tmp"
    other.write_bytes(b"of another process")
    opened(tmp_path)
    assert not leftover.exists() and other.exists()


def test_all_names_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stores = [opened(tmp_path) for _ in range(checkpoint.MAX_NAMES)]
    one_more = CheckpointStore(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert not one_more.open()
    assert "in use" in caplog.text
    stores[0].close()
    assert one_more.open()


def test_secrets_stay_out_of_the_dump() -> None:
    kit = Kit()
    kit.teach("ab")
    kit.runtime.handle([kit.anchor("a")])
    content = encode(kit.runtime.dump())
    assert b"salt" not in content and b"digest-a" not in content and b"token_ids" not in content


@pytest.mark.parametrize("change", [{"no_longer_known": 1}, {"window": 1}, {"policies": [{"name": "not ours"}]}])
def test_settings_that_this_code_refuses_cost_no_knowledge(change: dict[str, Any]) -> None:
    """An actor that restarts with newer code than the one that wrote them."""
    kit = Kit()
    kit.teach("abc", sessions=5)
    kit.runtime.configure(RuntimeSettings.from_dict({"window": 512}), 7)
    dump = kit.runtime.dump()
    dump["settings"] = {**dump["settings"], **change}
    restored = AgentRuntime.restore(dump, RuntimeSettings.from_dict({"window": 256}), 1, kit.clock, epoch=1)
    assert restored.state()["agents"] == kit.runtime.state()["agents"]
    assert restored.settings.window == 256
    assert restored.configure(RuntimeSettings.from_dict({"window": 512}), 7), "the next one that calls configures it"
