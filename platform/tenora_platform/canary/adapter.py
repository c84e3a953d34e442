"""The canary's adapters: small, random, and the same each time for one base model and one seed."""

from __future__ import annotations

import json
from hashlib import sha256

import numpy as np
from safetensors.numpy import save

from tenora_engine.config import ModelInfo

RANK = 4
_MODULES = ("q_proj", "v_proj")
_STRENGTH = 0.3  # of B's entries: greedy answers differ visibly from the base model's


def make_adapter(model: ModelInfo, seed: int) -> tuple[bytes, bytes]:
    """adapter_config.json and adapter_model.safetensors, in PEFT's format."""
    draw = np.random.default_rng(seed)
    tensors = {}
    for layer in range(model.num_layers):
        for module in _MODULES:
            fan_in, fan_out = model.modules[module]
            path = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            a = draw.standard_normal((RANK, fan_in), dtype=np.float32) / fan_in**0.5
            b = draw.standard_normal((fan_out, RANK), dtype=np.float32) * (_STRENGTH / RANK**0.5)
            tensors[f"{path}.lora_A.weight"] = a.astype(np.float32)
            tensors[f"{path}.lora_B.weight"] = b.astype(np.float32)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model.id,
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "target_modules": list(_MODULES),
        "bias": "none",
        "inference_mode": True,
    }
    return json.dumps(config).encode(), save(tensors)


def fitting(name: str, model: ModelInfo) -> str:
    """The adapter's name for this base model: another one needs another adapter."""
    shape = json.dumps([model.id, model.num_layers, sorted(model.modules.items())])
    return f"{name}-{sha256(shape.encode()).hexdigest()[:8]}"
