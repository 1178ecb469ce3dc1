"""One running server for all tests over HTTP: the launcher's own process, two real engines on CPU."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import httpx
import pytest
import yaml
from tokenizers import Tokenizer

from cluster.embedded_model import ensure_embedded_model

ROOT = Path(__file__).resolve().parents[1]
MODEL = "smollm2-135m-instruct"
START_TIMEOUT_S = 600.0
KEYS = {name: f"key-of-{name}" for name in ("one", "two", "team", "frameworks", "strangers", "forecasts", "ops")}
BLOCK_TOKENS = 32
CACHE_BLOCKS = 160
USABLE_TOKENS = (CACHE_BLOCKS - 1) * BLOCK_TOKENS
MODEL_TOKENS = 8192


@dataclass(frozen=True)
class Server:
    """`client` of a tenant: "one", "two" or the operator "ops"; None sends no key."""

    url: str
    model: str
    pid: int

    def client(self, tenant: str | None = "one") -> httpx.Client:
        headers = {"authorization": f"Bearer {KEYS[tenant]}"} if tenant else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=300.0, trust_env=False)


class Filler:
    """Seeded text of a given number of tokens, never the same twice."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._seeds = iter(range(10**9))
        pieces = (piece[1:] for piece in tokenizer.get_vocab() if piece.startswith("\u0120"))
        self._words = sorted(word for word in pieces if word.isascii() and word.isalpha() and 3 < len(word) < 9)

    def __call__(self, tokens: int) -> str:
        words = random.Random(next(self._seeds)).choices(self._words, k=tokens)
        text = "the " + " ".join(words)
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids[:tokens]
        return str(self._tokenizer.decode(ids))

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def token_id(self, text: str) -> int:
        (found,) = self._tokenizer.encode(text, add_special_tokens=False).ids
        return int(found)


def model_dir() -> Path:
    configured = os.environ.get("AGENT_RUNTIME_MODEL_DIR")
    return Path(configured) if configured else ensure_embedded_model()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def server_config(state: Path, source: str) -> dict[str, Any]:
    """serve_config.yaml with a smaller cache, keys of three tenants, and its state in a folder of its own."""
    content: dict[str, Any] = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    application = content["applications"][0]
    # Replicas are started from the working folder of the launcher's Ray.
    application["runtime_env"]["env_vars"]["PYTHONPATH"] = str(ROOT)
    arguments = application["args"]
    arguments["model"]["source"] = source
    arguments["engine_kwargs"] |= {
        "num_gpu_blocks_override": CACHE_BLOCKS,
        "max_model_len": MODEL_TOKENS,
    }
    arguments["runtime"] |= {"checkpoint_dir": str(state / "checkpoints")}
    arguments["gateway"] |= {
        "secret_file": str(state / "identity.key"),
        "api_keys": [
            {
                "tenant": tenant,
                "sha256": hashlib.sha256(key.encode()).hexdigest(),
                "operator": tenant == "ops",
            }
            for tenant, key in KEYS.items()
        ],
    }
    return content


@pytest.fixture(scope="session")
def filler() -> Filler:
    return Filler(Tokenizer.from_file(str(model_dir() / "tokenizer.json")))


@contextmanager
def running_server(config: Path) -> Iterator[Server]:
    """The launcher's own process for `config`; it and all that it started end with the block."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "cluster.local", "--config", str(config), "--port", str(port)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    reader, ready, lines = read_output(process.stdout)
    try:
        # At its end too the output says so, before the process is gone.
        if not ready.wait(START_TIMEOUT_S) or not any("READY" in line for line in lines):
            pytest.fail("the server did not start:\n" + "".join(lines[-40:]))
        yield Server(f"http://127.0.0.1:{port}", MODEL, process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        reader.join(10)
        process.stdout.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    config = folder / "serve_config.yaml"
    config.write_text(yaml.safe_dump(server_config(folder, str(model_dir()))))
    with running_server(config) as started:
        yield started


def read_output(output: IO[str]) -> tuple[threading.Thread, threading.Event, list[str]]:
    """A thread that goes on reading, so that the pipe never fills; set at READY or at the end."""
    ready = threading.Event()
    lines: list[str] = []

    def read() -> None:
        for line in output:
            del lines[:-200]
            lines.append(line)
            if "READY" in line:
                ready.set()
        ready.set()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread, ready, lines


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as opened:
        yield opened
