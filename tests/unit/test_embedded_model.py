"""The cache folder's promises, with a small stand-in for the conversion, and once the real conversion."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from tokenizers import Tokenizer

from cluster import embedded_model
from cluster.embedded_model import ensure_embedded_model
from cluster.errors import EmbeddedModelError
from cluster.gguf_llama import bfloat16_bits, unpermute

Convert = Callable[[Path, Path, Callable[[int, int], None]], None]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return embedded_model.cache_folder()


def small_conversion(gguf: Path, folder: Path, progress: Callable[[int, int], None]) -> None:
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    progress(1, 1)


def counting(calls: list[int], convert: Convert = small_conversion) -> Convert:
    def wrapped(gguf: Path, folder: Path, progress: Callable[[int, int], None]) -> None:
        calls.append(1)
        convert(gguf, folder, progress)

    return wrapped


def test_converts_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(embedded_model, "convert", counting(calls))
    first = ensure_embedded_model()
    assert ensure_embedded_model() == first
    assert first.parent == cache
    assert len(calls) == 1


@pytest.mark.parametrize("damage", ["truncate", "delete", "manifest", "empty manifest"])
def test_damage_is_repaired(cache: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setattr(embedded_model, "convert", small_conversion)
    folder = ensure_embedded_model()
    weights = folder / "model.safetensors"
    if damage == "truncate":
        weights.write_bytes(b"weight")
    elif damage == "delete":
        weights.unlink()
    else:
        (folder / "manifest.json").write_text("[]" if damage == "manifest" else "{}")
    ensure_embedded_model()
    assert weights.read_bytes() == b"weights"


def test_interrupted_conversion_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(gguf: Path, folder: Path, progress: Callable[[int, int], None]) -> None:
        small_conversion(gguf, folder, progress)
        raise KeyboardInterrupt

    monkeypatch.setattr(embedded_model, "convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ensure_embedded_model()
    assert [path.name for path in cache.iterdir()] == ["lock"]


def test_killed_conversion_is_cleared_by_the_next(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process can't clean up: its temporary folder is not taken for the model, and goes."""
    leftover = cache / ".converting-dead"
    leftover.mkdir(parents=True)
    (leftover / "model.safetensors").write_bytes(b"half")
    monkeypatch.setattr(embedded_model, "convert", small_conversion)
    folder = ensure_embedded_model()
    assert sorted(path.name for path in cache.iterdir()) == sorted(["lock", folder.name])


def _ensure_and_note(log: str) -> None:
    def noted(gguf: Path, folder: Path, progress: Callable[[int, int], None]) -> None:
        with open(log, "a") as file:
            file.write("converted\n")
        small_conversion(gguf, folder, progress)

    embedded_model.convert = noted
    ensure_embedded_model()


def test_two_at_once_convert_once(cache: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_ensure_and_note, args=(str(log),)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert log.read_text() == "converted\n"


def test_no_disk_is_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_model, "NEEDED_BYTES", 1 << 62)
    with pytest.raises(EmbeddedModelError, match=r"no disk: .*needed") as caught:
        ensure_embedded_model()
    assert "\n" not in str(caught.value)


def test_wrong_file_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_model, "GGUF_SHA256", "0" * 64)
    with pytest.raises(EmbeddedModelError, match="damaged: sha256"):
        ensure_embedded_model()


def test_real_conversion(cache: Path) -> None:
    """What vLLM needs is there, and the text round trip of the tokenizer holds."""
    seen: list[tuple[int, int]] = []
    folder = ensure_embedded_model(lambda done, total: seen.append((done, total)))
    assert seen[-1] == (272, 272)
    config = json.loads((folder / "config.json").read_text())
    with safe_open(folder / "model.safetensors", "pt") as weights:
        names = set(weights.keys())
        embedding = weights.get_tensor("model.embed_tokens.weight")
    assert len(names) == 2 + 9 * config["num_hidden_layers"]
    assert embedding.dtype == torch.bfloat16
    assert tuple(embedding.shape) == (config["vocab_size"], config["hidden_size"])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "def add(a, b):\n    return a + 12345  # ü ☃"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("<|im_start|>123").tokens == ["<|im_start|>", "1", "2", "3"]
    assert "<|im_start|>" in (folder / "chat_template.jinja").read_text()
    assert os.access(folder / "generation_config.json", os.R_OK)


LARGEST_BFLOAT16 = 0x7F7F0000


@given(st.lists(st.tuples(st.integers(0, LARGEST_BFLOAT16), st.booleans())))
def test_bfloat16_rounds_as_torch(values: list[tuple[int, bool]]) -> None:
    """Over bit patterns: all finite float32 numbers that stay finite, subnormal ones included."""
    array = np.array([bits | negative << 31 for bits, negative in values], dtype=np.uint32).view(np.float32)
    ours = torch.from_numpy(bfloat16_bits(array).view(np.int16))
    assert torch.equal(ours, torch.from_numpy(array).to(torch.bfloat16).view(torch.int16))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5))
def test_unpermute_pairs_row_i_with_row_i_plus_half(heads: int, half: int, hidden: int) -> None:
    """GGUF stores the rows (head, pair, side); wanted is (head, side, pair)."""
    rows = np.array(
        [[(head * 100 + pair * 10 + side)] * hidden for head in range(heads) for pair in range(half) for side in (0, 1)]
    )
    wanted = [
        [(head * 100 + pair * 10 + side)] * hidden for head in range(heads) for side in (0, 1) for pair in range(half)
    ]
    assert unpermute(rows, heads).tolist() == wanted
