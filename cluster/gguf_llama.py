"""A Llama model in a GGUF file -> the folder of files that vLLM loads.

Tensors go through one at a time (read from the memory-mapped file, dequantized, rounded to bfloat16,
written), so that memory holds one float32 tensor and not the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from cluster.errors import EmbeddedModelError

BYTES_PER_BFLOAT16 = 2
GGUF_CONTROL_TOKEN = 3

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """The numbers of the GGUF header that `config.json` needs."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    context_tokens: int
    rope_theta: float
    norm_epsilon: float
    vocabulary: int

    @classmethod
    def from_gguf(cls, reader: GGUFReader) -> LlamaShape:
        return cls(
            layers=int(_field(reader, "llama.block_count")),
            hidden=int(_field(reader, "llama.embedding_length")),
            intermediate=int(_field(reader, "llama.feed_forward_length")),
            heads=int(_field(reader, "llama.attention.head_count")),
            kv_heads=int(_field(reader, "llama.attention.head_count_kv")),
            context_tokens=int(_field(reader, "llama.context_length")),
            rope_theta=float(_field(reader, "llama.rope.freq_base")),
            norm_epsilon=float(_field(reader, "llama.attention.layer_norm_rms_epsilon")),
            vocabulary=int(_field(reader, "llama.vocab_size")),
        )


def convert(gguf: Path, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write config, generation config, tokenizer, chat template and weights into the existing `folder`.

    `progress(done, total)` is called after each tensor.

    Raises:
        EmbeddedModelError: the file lacks a key or holds a tensor that a Llama model doesn't have.
        OSError: `folder` can't be written.
    """
    reader = GGUFReader(gguf)
    shape = LlamaShape.from_gguf(reader)
    _write_json(folder / "config.json", _config(shape, reader))
    _write_json(folder / "generation_config.json", _special_ids(reader))
    _write_tokenizer(reader, shape, folder)
    _write_weights(reader, shape, folder / "model.safetensors", progress)


def _field(reader: GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    if field is None:
        raise EmbeddedModelError(f"the model file has no key {key!r}")
    return field.contents()


def _special_ids(reader: GGUFReader) -> dict[str, int]:
    return {
        "bos_token_id": int(_field(reader, "tokenizer.ggml.bos_token_id")),
        "eos_token_id": int(_field(reader, "tokenizer.ggml.eos_token_id")),
        "pad_token_id": int(_field(reader, "tokenizer.ggml.padding_token_id")),
    }


def _config(shape: LlamaShape, reader: GGUFReader) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.hidden // shape.heads,
        "max_position_embeddings": shape.context_tokens,
        "rope_parameters": {"rope_theta": shape.rope_theta, "rope_type": "default"},
        "rms_norm_eps": shape.norm_epsilon,
        "vocab_size": shape.vocabulary,
        # GGUF keeps no output matrix of its own where it is the embedding's.
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in reader.tensors),
        "attention_bias": False,
        "mlp_bias": False,
        **_special_ids(reader),
    }


def _write_tokenizer(reader: GGUFReader, shape: LlamaShape, folder: Path) -> None:
    if (_field(reader, "tokenizer.ggml.model"), _field(reader, "tokenizer.ggml.pre")) != ("gpt2", "smollm"):
        raise EmbeddedModelError("the model file's tokenizer is not the byte-level BPE with split digits")
    tokens: list[str] = _field(reader, "tokenizer.ggml.tokens")
    kinds: list[int] = _field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in _field(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == GGUF_CONTROL_TOKEN
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = _special_ids(reader)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[ids["bos_token_id"]],
        "eos_token": tokens[ids["eos_token_id"]],
        "pad_token": tokens[ids["pad_token_id"]],
        "unk_token": tokens[int(_field(reader, "tokenizer.ggml.unknown_token_id"))],
        "model_max_length": shape.context_tokens,
        "clean_up_tokenization_spaces": False,
    }
    _write_json(folder / "tokenizer_config.json", settings)
    (folder / "chat_template.jinja").write_text(_field(reader, "tokenizer.chat_template"), encoding="utf-8")


def _write_weights(reader: GGUFReader, shape: LlamaShape, path: Path, progress: Callable[[int, int], None]) -> None:
    """The safetensors layout: length of the header (8 bytes, little endian), JSON header, raw tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in reader.tensors:
        size = int(tensor.n_elements) * BYTES_PER_BFLOAT16
        header[_target_name(tensor.name)] = {
            "dtype": "BF16",
            # GGUF writes a shape with the fastest axis first.
            "shape": [int(axis) for axis in reversed(tensor.shape)],
            "data_offsets": [offset, offset + size],
        }
        offset += size
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for done, values in enumerate(_tensors(reader, shape), start=1):
            file.write(bfloat16_bits(values).tobytes())
            progress(done, len(reader.tensors))


def _target_name(name: str) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_NAMES and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.weight"
    raise EmbeddedModelError(f"the model file holds an unexpected tensor {name!r}")


def _tensors(reader: GGUFReader, shape: LlamaShape) -> Iterator[np.ndarray]:
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        if ".attn_q." in tensor.name:
            values = unpermute(values, shape.heads)
        elif ".attn_k." in tensor.name:
            values = unpermute(values, shape.kv_heads)
        yield values


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo GGUF's row order of the query and key matrices ([heads * head_dim, hidden], same shape out).

    GGUF interleaves the two halves of a head, since its rotary embedding turns neighbouring pairs; the
    transformers layout turns row i with row i + head_dim / 2.
    """
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """float32 -> the upper 16 bits, rounded to nearest, ties to even. Finite values only."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
