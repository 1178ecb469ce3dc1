"""Small LoRA adapters for the embedded model, in PEFT's format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

RANK = 8


def make_adapter(folder: Path, model: Path, seed: int, scale: float = 0.05) -> Path:
    """Random weights for the queries and values of every layer; `scale` 0 changes nothing in the model's answers."""
    config = json.loads((model / "config.json").read_text())
    hidden = int(config["hidden_size"])
    heads, kv_heads = int(config["num_attention_heads"]), int(config["num_key_value_heads"])
    outs = {"q_proj": hidden, "v_proj": hidden // heads * kv_heads}
    rng = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    for layer in range(int(config["num_hidden_layers"])):
        for name, out in outs.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{prefix}.lora_A.weight"] = rng.standard_normal((RANK, hidden), np.float32) * scale
            tensors[f"{prefix}.lora_B.weight"] = rng.standard_normal((out, RANK), np.float32) * scale
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    adapter = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "smollm2",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(outs),
    }
    (folder / "adapter_config.json").write_text(json.dumps(adapter))
    return folder
