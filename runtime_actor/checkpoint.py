"""State to disk and back, so that a restarted actor keeps what it learned.

A file is one JSON header line (magic, format version, length and sha256 of the body) and a JSON body. It
is written beside the old one, flushed to the disk and renamed; the old one is kept as `.previous`. A file that
can't be used (damaged, or of a version that this code doesn't read) is put aside as `.refused`, so that the next
save overwrites neither it nor the older one that was used instead. A lock file reserves a name for one process: a
second cluster with the same directory gets the next free name.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from runtime_actor.errors import CheckpointError

logger = logging.getLogger(__name__)

MAGIC = "agent-runtime-checkpoint"
FORMAT_VERSION = 1
MAX_NAMES = 8
MAX_FILE_BYTES = 1 << 30
MAX_HEADER_BYTES = 512

T = TypeVar("T")


class CheckpointStore:
    """One process's checkpoint in `directory`. Blocking; call it from a thread.

    `open` must come first. A failure to open or save is counted and logged once, until one succeeds; it
    never raises, since serving goes on without a checkpoint.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)
        self._lock_file: int | None = None
        self._path: Path | None = None
        self.saved = 0
        self.failed = 0
        self.loaded = "nothing"
        """What the state began from: "checkpoint", "previous" or "nothing"."""
        self.refused: list[str] = []
        """Why files weren't used, at most one reason each."""
        self.error: str | None = None
        """Why the last save failed; None once one succeeded."""
        self._saved_s: float | None = None
        self._complained = False

    def view(self) -> dict[str, Any]:
        """For an operator in /runtime/state."""
        return {
            "format": FORMAT_VERSION,
            "saved": self.saved,
            "failed": self.failed,
            "error": self.error,
            "saved_age_s": None if self._saved_s is None else round(time.monotonic() - self._saved_s, 3),
            "loaded": self.loaded,
            "refused": list(self.refused),
        }

    @property
    def path(self) -> Path | None:
        """The file of this process, once a name is reserved."""
        return self._path

    def open(self) -> bool:
        """Reserve the first free name; False if none can be had."""
        if self._path is not None:
            return True
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            for number in range(MAX_NAMES):
                if self._reserve(self._directory / f"runtime-{number}"):
                    return True
        except OSError as error:
            self._complain(f"no checkpoint in {self._directory}: {error}")
            return False
        self._complain(f"no checkpoint in {self._directory}: all {MAX_NAMES} names are in use")
        return False

    def _reserve(self, stem: Path) -> bool:
        lock_file = os.open(stem.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock_file)
            return False
        except OSError:
            os.close(lock_file)
            raise
        self._lock_file = lock_file
        self._path = stem.with_suffix(".checkpoint")
        for leftover in self._directory.glob(f"{stem.name}.*.tmp"):
            with contextlib.suppress(OSError):
                leftover.unlink()
        return True

    def close(self) -> None:
        """Give the name back."""
        if self._lock_file is not None:
            os.close(self._lock_file)
        self._lock_file = self._path = None

    # --- load ---------------------------------------------------------------------------------------

    def load(self, restore: Callable[[Any], T]) -> T | None:
        """`restore` of the newest usable state: the current file, else the previous one, else None.

        What can't be used is said once and put aside.
        """
        if self._path is None:
            return None
        for name, path in (("checkpoint", self._path), ("previous", _previous(self._path))):
            try:
                state = restore(read_checkpoint(path))
            except FileNotFoundError:
                continue
            except (CheckpointError, OSError) as error:
                logger.warning("checkpoint %s not used: %s", path, error)
                self.refused.append(f"{name}: {error}")
                with contextlib.suppress(OSError):
                    os.replace(path, path.with_suffix(f"{path.suffix}.refused"))
                continue
            self.loaded = name
            return state
        return None

    # --- save ---------------------------------------------------------------------------------------

    def save(self, state: Any) -> bool:
        """Write `state`; False, and counted, if that failed."""
        if self._path is None and not self.open():
            self.failed += 1
            return False
        assert self._path is not None
        temporary = self._path.with_name(f"{self._path.stem}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        try:
            _write_file(temporary, encode(state))
            with contextlib.suppress(FileNotFoundError):
                os.replace(self._path, _previous(self._path))
            os.replace(temporary, self._path)
            _sync_directory(self._directory)
        except (OSError, ValueError, TypeError) as error:
            self.failed += 1
            self.error = str(error)
            self._complain(f"checkpoint {self._path} not written: {error}")
            with contextlib.suppress(OSError):
                temporary.unlink()
            return False
        self.saved += 1
        self.error = None
        self._saved_s = time.monotonic()
        self._complained = False
        return True

    def _complain(self, text: str) -> None:
        if not self._complained:
            self._complained = True
            self.error = self.error or text
            logger.warning("%s; serving goes on without it", text)


def encode(state: Any) -> bytes:
    """Raises ValueError or TypeError for what isn't JSON."""
    body = json.dumps(state, allow_nan=False, separators=(",", ":")).encode()
    header = {
        "magic": MAGIC,
        "version": FORMAT_VERSION,
        "length": len(body),
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    return json.dumps(header).encode() + b"\n" + body


def read_checkpoint(path: Path) -> Any:
    """The state in a file.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: it is truncated, damaged, too large or of another version.
    """
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise CheckpointError(f"{size} bytes are more than {MAX_FILE_BYTES}")
    head, _, body = path.read_bytes().partition(b"\n")
    try:
        header = json.loads(head) if len(head) <= MAX_HEADER_BYTES else None
    except (ValueError, RecursionError) as error:
        raise CheckpointError("the header is damaged") from error
    if not isinstance(header, dict) or header.get("magic") != MAGIC:
        raise CheckpointError("this is no checkpoint")
    if header.get("version") != FORMAT_VERSION:
        raise CheckpointError(f"format version {header.get('version')!r} is not supported, only {FORMAT_VERSION}")
    if header.get("length") != len(body) or header.get("sha256") != hashlib.sha256(body).hexdigest():
        raise CheckpointError("the content is truncated or damaged")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CheckpointError("the content is not JSON") from error


def _previous(path: Path) -> Path:
    return path.with_suffix(".previous")


def _write_file(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
